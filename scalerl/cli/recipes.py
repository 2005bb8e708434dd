"""`scalerl recipes`: prints the recipes, field by field."""

from __future__ import annotations

from scalerl.cli.options import Parser
from scalerl.config.recipe import RECIPES, SCALERL, Recipe, leave_one_out
from scalerl.core.serialization import leaves

CELL_CHARACTERS = 16
"""Longest text that a table shows, in characters."""


def fields(recipe: Recipe) -> dict[str, str]:
    """Return every value of a recipe by its dotted name; the kind of a part has the name of the part.

    Example: {"loss": "cispo", "loss.max_ratio": "5.0", "aggregation": "prompt", ...}
    """
    values = recipe.model_dump(exclude={"name"})
    return {name.removesuffix(".kind"): _words(value) for name, value in leaves(values)}


def differing(first: Recipe, second: Recipe) -> dict[str, tuple[str, str]]:
    """Return the fields in which two recipes differ, with both values ("-": none)."""
    ours, theirs = fields(first), fields(second)
    listed = dict.fromkeys([*ours, *theirs])
    parts = list(dict.fromkeys(name.partition(".")[0] for name in listed))
    names = sorted(listed, key=lambda name: parts.index(name.partition(".")[0]))  # keep the fields of a part together
    pairs = {name: (ours.get(name, "-"), theirs.get(name, "-")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def run_recipes(words: list[str]) -> int:
    """Print the recipes; return the exit code."""
    Parser(prog="scalerl recipes", description="Print the fields in which the recipes differ.").parse_args(words)
    print_recipes()
    return 0


def print_recipes() -> None:
    """Print the fields in which the other recipes, and the leave-one-out variants, differ from ScaleRL."""
    variants = {recipe.name if name in RECIPES else name: recipe for name, recipe in leave_one_out().items()}
    for title, recipes in (("recipe", RECIPES), ("leave one out", variants)):
        print(f"{title:16}  {'field':22}  {SCALERL.name:16}  here")
        for name, recipe in recipes.items():
            for at, (field, (ours, here)) in enumerate(differing(SCALERL, recipe).items()):
                print(f"{'' if at else name:16}  {field:22}  {ours:16}  {here}")
        print()
    print("train with one of them: scalerl train --recipe NAME")
    print("every field of the recipe: scalerl train --help all")


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    if isinstance(value, str) and len(value) > CELL_CHARACTERS:
        return value[: CELL_CHARACTERS - 1] + "…"
    return "off" if value is None else str(value)
