"""Prints the recipes, field by field."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.config.base import Part
from scalerl.config.recipe import RECIPES, SCALERL, Recipe, leave_one_out

LONGEST = 16
"""Longest text that a table shows, in characters."""


def fields(part: Part, prefix: str = "") -> dict[str, str]:
    """Return every value of a recipe by its dotted name; the kind of a part has the name of the part.

    Example: {"loss": "cispo", "loss.max_ratio": "5.0", "aggregation": "prompt", ...}
    """
    values: dict[str, str] = {}
    for name, value in part:
        if isinstance(value, Part):
            values |= fields(value, f"{prefix}{name}.")
        elif name != "name":  # that of the recipe
            values[prefix.removesuffix(".") if name == "kind" else prefix + name] = _words(value)
    return values


def split_fields(recipes: Sequence[Recipe]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the fields in which recipes differ, with the value of each ("-": none), and those that all share."""
    columns = [fields(recipe) for recipe in recipes]
    listed = dict.fromkeys(name for column in columns for name in column)
    parts = list(dict.fromkeys(name.partition(".")[0] for name in listed))
    names = sorted(listed, key=lambda name: parts.index(name.partition(".")[0]))  # keep the fields of a part together
    rows = {name: [column.get(name, "-") for column in columns] for name in names}
    differing = {name: values for name, values in rows.items() if len(set(values)) > 1}
    return differing, {name: values[0] for name, values in rows.items() if name not in differing}


def print_recipes(*, everything: bool) -> None:
    """Print the fields in which the other recipes, and the leave-one-out variants, differ from ScaleRL.

    Args:
        everything: Whether to also print the fields that all recipes share.
    """
    shared = split_fields(list(RECIPES.values()))[1]
    for title, recipes in (("recipe", RECIPES), ("leave one out", leave_one_out())):
        print(f"{title:16}  {'field':22}  {SCALERL.name:16}  here")
        for name, recipe in recipes.items():
            for at, (field, values) in enumerate(split_fields([SCALERL, recipe])[0].items()):
                print(f"{'' if at else name:16}  {field:22}  {values[0]:16}  {values[1]}")
        print()
    if not everything:
        print(f"{len(shared)} more fields are the same in all recipes: scalerl recipes --all")
        return
    print("the same in all recipes")
    for name, value in shared.items():
        print(f"{name:24}  {value}")


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    if isinstance(value, str) and len(value) > LONGEST:
        return value[: LONGEST - 1] + "…"
    return "off" if value is None else str(value)
