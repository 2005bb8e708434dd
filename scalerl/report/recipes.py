"""Prints the recipes as tables, component by component."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Return the components that differ, as (this recipe's, the reference's) in a few words."""
    ours, theirs = components(recipe), components(reference)
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


def recipe_table(recipes: Mapping[str, Recipe] = RECIPES, console: Console | None = None) -> None:
    """Print recipes side by side; what differs from the first is marked."""
    table = Table(title="Recipes (* differs from the first column)")
    table.add_column("component")
    for name in recipes:
        table.add_column(name)
    columns = [components(recipe) for recipe in recipes.values()]
    for component, reference in columns[0].items():
        cells = [c[component] if c[component] == reference else f"[bold]* {c[component]}[/bold]" for c in columns]
        table.add_row(component, *cells)
    (console or Console()).print(table)


def leave_one_out_table(recipe: Recipe = SCALERL, console: Console | None = None) -> None:
    """Print the leave-one-out variants of a recipe, each with the component it replaces."""
    table = Table(title=f"Leave one out of {recipe.name}")
    for heading in ("name", "component", "instead of", "is"):
        table.add_column(heading)
    for name, variant in leave_one_out(recipe).items():
        for component, (ours, theirs) in differences(variant, recipe).items():
            table.add_row(name, component, theirs, ours)
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
