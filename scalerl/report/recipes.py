"""The recipes as one table, component by component. It knows recipes and a terminal, nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from scalerl.parts import Part
from scalerl.recipe import RECIPES, Recipe


def components(recipe: Recipe) -> dict[str, str]:
    """Return each component of a recipe in a few words."""
    return {name: _words(getattr(recipe, name)) for name in type(recipe).model_fields if name != "name"}


def recipe_table(recipes: Mapping[str, Recipe] = RECIPES, console: Console | None = None) -> None:
    """Print recipes side by side; what differs from the first is marked."""
    table = Table(title="Recipes (values that differ from the first column are bold)")
    table.add_column("component")
    for name in recipes:
        table.add_column(name)
    columns = [components(recipe) for recipe in recipes.values()]
    for component, reference in columns[0].items():
        cells = [c[component] if c[component] == reference else f"[bold]{c[component]}[/bold]" for c in columns]
        table.add_row(component, *cells)
    (console or Console()).print(table)


def _words(value: object) -> str:
    if isinstance(value, Part):
        inner = [f"{name} {_words(getattr(value, name))}" for name in type(value).model_fields if name != "kind"]
        kind = getattr(value, "kind", "")
        return "\n".join([str(kind), *inner] if kind else inner)
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    return "off" if value is None else str(value)
