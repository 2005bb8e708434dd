"""Prints the recipes as tables, field by field."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

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
    """Print the fields in which recipes differ, side by side, and the leave-one-out variants of ScaleRL.

    Args:
        everything: Whether to also print the fields that all recipes share.
    """
    console = Console()
    differing, shared = split_fields(list(RECIPES.values()))
    table = _table(f"Recipes (= as {next(iter(RECIPES))}, - absent)", "", *RECIPES)
    for name, values in differing.items():
        own = ["=" if value == values[0] != "-" else value for value in values[1:]]
        # a long name breaks at its last hyphen, which keeps the column as narrow as the others
        table.add_row(name, *(_broken(value) for value in (values[0], *own)))
    console.print(table)
    if everything:
        same = _table("The same in all recipes", "", "value")
        for pair in shared.items():
            same.add_row(*pair)
        console.print(same)
    else:
        console.print(f"{len(shared)} more fields are the same in all recipes: scalerl recipes --all")
    variants = _table(f"Leave one out of {SCALERL.name}", "name", "field", "instead of", "is")
    for name, variant in leave_one_out().items():
        for at, (field, values) in enumerate(split_fields([SCALERL, variant])[0].items()):
            variants.add_row("" if at else name, field, *values)
    console.print(variants)


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _broken(value: str, widest: int = 10) -> str:
    head, hyphen, tail = value.rpartition("-")
    return f"{head}-\n{tail}" if len(value) > widest and hyphen and head else value


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    if isinstance(value, str) and len(value) > LONGEST:
        return value[: LONGEST - 1] + "…"
    return "off" if value is None else str(value)
