"""`scalerl recipes`: prints the recipes field by field, and what other trainers have of them."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli.options import Parser, add_json
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError, nearest
from scalerl.reading.trainers import TRAINERS, Row, Trainer, check, configuration, read_settings, recognized

if TYPE_CHECKING:  # needs pydantic, which other trainers' users may not have
    from scalerl.training.config.recipe import Recipe

CELL_CHARACTERS = 16
"""Longest text that a table shows, in characters."""

DESCRIPTION = """Print the fields in which the recipes differ. With --for: the settings of another trainer that come
nearest to ScaleRL, as its configuration. With --check: what a configuration of another trainer has of ScaleRL, and what
the paper measured for each difference."""


def run_recipes(words: list[str]) -> int:
    """Print the recipes, the settings of a trainer, or a comparison; return the exit code.

    Raises:
        ConfigError: There is no such trainer, or the file is none of its configurations.
    """
    parser = Parser(prog="scalerl recipes", description=DESCRIPTION)
    trainers = ", ".join(TRAINERS)
    parser.add_argument("--for", dest="trainer", metavar="TRAINER", help=f"print the settings of a trainer: {trainers}")
    about = "compare a configuration: JSON, YAML, TOML, or a script with the arguments; the trainer is recognized"
    parser.add_argument("--check", type=Path, metavar="FILE", help=about)
    add_json(parser, "print JSON, with --for or --check")
    arguments = parser.parse_args(words)
    trainer = None if arguments.trainer is None else _trainer(arguments.trainer)
    if arguments.check is not None:
        print_check(arguments.check, trainer, as_json=arguments.json)
    elif trainer is not None:
        print_settings(trainer, as_json=arguments.json)
    elif arguments.json:
        raise ConfigError("got --json without --for or --check; allowed: --json with one of them")
    else:
        print_recipes()
    return 0


# --------------------------------------------------------------------------------------------------- other trainers


def print_settings(trainer: Trainer, *, as_json: bool = False) -> None:
    """Print the settings of a trainer that come nearest to ScaleRL."""
    if not as_json:
        print(configuration(trainer), end="")
        return
    settings = {setting.name: setting.value for setting in trainer.nearest}
    comments = {setting.name: setting.why for setting in trainer.nearest}
    record = {"trainer": trainer.name, "checked_version": trainer.checked, "installed_version": _installed(trainer)}
    print(json.dumps({**record, "settings": settings, "comments": comments, "lacks": dict(trainer.lacks)}, indent=2))


def print_check(path: Path, trainer: Trainer | None, *, as_json: bool = False) -> None:
    """Print what a configuration has of each component of ScaleRL, and what the paper measured for it.

    Without a trainer, the settings identify it.

    Raises:
        ConfigError: The file cannot be read, or is not a configuration of the trainer.
    """
    settings = read_settings(path)
    candidates = recognized(TRAINERS.values(), settings)
    if not candidates or (trainer is not None and trainer not in candidates):
        names = ", ".join(TRAINERS) if trainer is None else trainer.name
        start = f"; it begins with {_first(settings)}"
        other = f", but of {candidates[0].name}: leave out --for" if candidates else start
        raise ConfigError(f"{path}: got a file without settings of {names}{other}")
    trainer = trainer or candidates[0]
    rows = check(trainer, settings)
    if as_json:
        record = {"trainer": trainer.name, "checked_version": trainer.checked, "installed_version": _installed(trainer)}
        print(json.dumps({**record, "components": [row._asdict() for row in rows]}, indent=2))
        return
    print_lines(f"{path}: {trainer.title}; {_versions(trainer)}")
    print()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    print("\n".join(table(rows, max(80, min(width, 160)))))
    print()
    equal, open_ = sum(row.same is True for row in rows), sum(row.same is None for row in rows)
    print_lines(
        f"{equal} of {len(rows)} as in ScaleRL{f', {open_} not in the file' if open_ else ''}. Ceilings and B: "
        "arXiv 2510.13786, 8B model; ceilings within 0.02 are equal. The nearest settings: "
        f"scalerl recipes --for {trainer.name}"
    )


def table(rows: list[Row], width: int) -> list[str]:
    """Return the lines of the table.

    `width` is the number of characters of a line, at least 80.
    """
    marks = {True: "=", None: "?", False: " "}
    free = width - NAME_WIDTH - MOVED_WIDTH
    widths = (NAME_WIDTH, 2 * free // 7, 2 * free // 9, free - 2 * free // 7 - 2 * free // 9, MOVED_WIDTH)
    heads = ("component", "theirs", "ScaleRL's", "measured in the paper", "it moved")
    lines = _cells(heads, widths)
    for row in rows:
        lines += _cells((f"{marks[row.same]} {row.component}", *row[1:3], row.measured, row.moved), widths)
    return lines


NAME_WIDTH, MOVED_WIDTH = 17, 15
"""Widths of the first and the last column of the table, in characters."""


def _cells(cells: tuple[str, ...], widths: tuple[int, ...]) -> list[str]:
    wrapped = [textwrap.wrap(cell, width - 1) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    columns = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    return [
        "".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
        for parts in zip(*columns, strict=True)
    ]


def _trainer(name: str) -> Trainer:
    key = name.lower().replace("_", "-")
    trainer = next((t for t in TRAINERS.values() if key in (t.name, t.title.lower(), t.name.replace("-", ""))), None)
    if trainer is None:
        raise ConfigError(f"--for: got {name[:80]!r}{nearest(key, TRAINERS)}; allowed: {', '.join(TRAINERS)}")
    return trainer


def _first(settings: dict[str, Any]) -> str:
    return ", ".join(name[:40] for name in list(settings)[:3])


def _installed(trainer: Trainer) -> str | None:
    """Return the version of a trainer in this environment, or None."""
    try:
        return version(trainer.package)
    except PackageNotFoundError:
        return None


def _versions(trainer: Trainer) -> str:
    """Return which version the names were checked against, and whether it is the user's."""
    installed = _installed(trainer)
    checked = f"names checked against {trainer.checked}"
    if installed is None:
        return f"{checked}; the file's version is unknown"
    same = trainer.checked.split()[0] == installed
    return checked + (", as installed here" if same else f"; {installed} is installed here and was not checked")


# ------------------------------------------------------------------------------------------------ the recipes here


def fields(recipe: Recipe) -> dict[str, str]:
    """Return every value of a recipe by its dotted name; the kind of a part has the name of the part.

    Example: {"loss": "cispo", "loss.max_ratio": "5.0", "aggregation": "prompt", ...}
    """
    from scalerl.core.serialization import leaves

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


def print_recipes() -> None:
    """Print the fields in which the other recipes, and the leave-one-out variants, differ from ScaleRL."""
    from scalerl.training.config.recipe import RECIPES, SCALERL, leave_one_out

    variants = {recipe.name if name in RECIPES else name: recipe for name, recipe in leave_one_out().items()}
    for title, recipes in (("recipe", RECIPES), ("leave one out", variants)):
        print(f"{title:16}  {'field':22}  {SCALERL.name:16}  here")
        for name, recipe in recipes.items():
            for at, (field, (ours, theirs)) in enumerate(differing(SCALERL, recipe).items()):
                print(f"{'' if at else name:16}  {field:22}  {ours:16}  {theirs}")
        print()
    print("train with one of them: scalerl train --recipe NAME")
    print("every field of the recipe: scalerl train --help all")
    print("settings of another trainer: scalerl recipes --for TRAINER")


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return "–".join(str(v) for v in value)
    if isinstance(value, str) and len(value) > CELL_CHARACTERS:
        return value[: CELL_CHARACTERS - 1] + "…"
    return "off" if value is None else str(value)
