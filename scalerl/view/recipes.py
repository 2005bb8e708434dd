"""Prints the recipes as tables, component by component."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from scalerl.config.base import Part
from scalerl.config.recipe import RECIPES, SCALERL, Recipe, leave_one_out

LONGEST = 16
"""Longest text that a table shows, in characters."""


def components(recipe: Recipe) -> dict[str, str]:
    """Return each component of a recipe in a few words."""
    return {name: _words(getattr(recipe, name)) for name in type(recipe).model_fields if name != "name"}


def differences(recipe: Recipe, reference: Recipe) -> dict[str, tuple[str, str]]:
    """Return the components that differ: (description in this recipe, description in the reference)."""
    own_values, reference_values = components(recipe), components(reference)
    return {
        name: (own_values[name], reference_values[name])
        for name in own_values
        if own_values[name] != reference_values[name]
    }


def fields(part: Part, prefix: str = "") -> dict[str, str]:
    """Return every value of a recipe by its dotted name; the kind of a part has the name of the part.

    Example: {"loss": "cispo", "loss.max_ratio": "5.0", "aggregation": "prompt", ...}
    """
    found: dict[str, str] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Part):
            kind = getattr(value, "kind", None)
            found |= ({prefix + name: str(kind)} if kind else {}) | fields(value, f"{prefix}{name}.")
        elif name not in ("kind", "name"):
            found[prefix + name] = _words(value)
    return found


def split_fields(recipes: Mapping[str, Recipe]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the fields in which recipes differ, with the value of each ("-": none), and those that all share."""
    columns = [fields(recipe) for recipe in recipes.values()]
    listed = dict.fromkeys(name for column in columns for name in column)
    parts = list(dict.fromkeys(name.partition(".")[0] for name in listed))
    names = sorted(listed, key=lambda name: parts.index(name.partition(".")[0]))  # keep the fields of a part together
    rows = {name: [column.get(name, "-") for column in columns] for name in names}
    differing = {name: values for name, values in rows.items() if len(set(values)) > 1}
    return differing, {name: values[0] for name, values in rows.items() if name not in differing}


def recipe_table(
    recipes: Mapping[str, Recipe] = RECIPES, console: Console | None = None, everything: bool = False
) -> None:
    """Print the fields in which recipes differ, side by side; six recipes fit in 80 columns.

    Args:
        recipes: Recipes by name; the others are compared with the first.
        console: Console to print to.
        everything: Whether to also print the fields that all recipes share.
    """
    console = console or Console()
    differing, shared = split_fields(recipes)
    first = next(iter(recipes))
    table = Table(
        title=f"Recipes (= as {first}, - absent)",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for name in recipes:
        table.add_column(name, overflow="fold")
    for name, values in differing.items():
        own = ["=" if value == values[0] != "-" else value for value in values[1:]]
        # a long name breaks at its last hyphen, which keeps the column as narrow as the others
        table.add_row(name, *(_broken(value) for value in (values[0], *own)))
    console.print(table)
    if not everything:
        console.print(f"{len(shared)} more fields are the same in all recipes: scalerl recipes --all")
        return
    same = Table(
        title="The same in all recipes", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for heading in ("", "value"):
        same.add_column(heading, overflow="fold")
    for name, value in shared.items():
        same.add_row(name, value)
    console.print(same)


def _broken(value: str, widest: int = 10) -> str:
    head, hyphen, tail = value.rpartition("-")
    return f"{head}-\n{tail}" if len(value) > widest and hyphen and head else value


def leave_one_out_table(recipe: Recipe = SCALERL, console: Console | None = None) -> None:
    """Print the leave-one-out variants of a recipe, each with the component it replaces."""
    table = Table(title=f"Leave one out of {recipe.name}")
    for heading in ("name", "component", "instead of", "is"):
        table.add_column(heading)
    for name, variant in leave_one_out(recipe).items():
        for component, (own_values, reference_values) in differences(variant, recipe).items():
            table.add_row(name, component, reference_values, own_values)
    (console or Console()).print(table)


def _words(value: object) -> str:
    if isinstance(value, Part):
        inner = [f"{name} {_words(getattr(value, name))}" for name in type(value).model_fields if name != "kind"]
        kind = getattr(value, "kind", "")
        return "\n".join([str(kind), *inner] if kind else inner)
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    if isinstance(value, str) and len(value) > LONGEST:
        return value[: LONGEST - 1] + "…"
    return "off" if value is None else str(value)
