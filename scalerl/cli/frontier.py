"""`scalerl frontier`: the best setting for a budget, by one law over runs with different settings."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.cli.curves import fit_source, log_lines, price_of, sources_of
from scalerl.cli.options import Parser, add_curve_options, add_figures, add_price, number, write_figures
from scalerl.cli.terminal import print_lines
from scalerl.core.files import open_regular, trouble
from scalerl.core.outputs import check_output
from scalerl.reading.curves import CurveError, frontier
from scalerl.reading.curves.frontiers import check_number
from scalerl.reading.curves.settings import as_value, setting_of
from scalerl.reading.pages.frozen import write_page
from scalerl.reading.pages.outlook import Source
from scalerl.reading.pages.page import frontier_page
from scalerl.reading.pages.page_figures import frontier_figure

DESCRIPTION = """pool runs with different settings into one law: which setting is best for a budget, with which
probability, at which compute settings cross, and which run to buy next (docs/frontier.md)"""

RESULT_FIELDS = ("recipe.", "model.", "data.", "evaluation.prompts")
"""Beginnings of the fields that may change a run's curve."""


def frontier_parser() -> Parser:
    """Return the parser of `scalerl frontier`."""
    parser = Parser(prog="scalerl frontier", description=DESCRIPTION)
    add_curve_options(parser)
    words = "settings that vary, such as model.width,recipe.prompts_per_step; numbers count by their log"
    parser.add_argument("--vary", required=True, metavar="FIELD,...", help=words)
    words = "compute of one run, in the unit of the axis"
    parser.add_argument("--budget", required=True, type=number, metavar="C", help=words)
    words = "CSV file with a column run, the path or name of a run, and a column for each setting"
    parser.add_argument("--settings", type=Path, metavar="FILE", help=words)
    words = "another setting to predict and to choose from: its values in the order of --vary; may be repeated"
    parser.add_argument("--also", action="append", default=[], metavar="VALUE,...", help=words)
    words = "do not use exponents of ScaleRL's Table 1 as prior means"
    parser.add_argument("--no-published", action="store_true", help=words)
    add_price(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="PAGE.html", help="also write a page with the curves")
    add_figures(parser)
    return parser


def run_frontier(words: list[str]) -> int:
    """Print the decision; return the exit code.

    Raises:
        CurveError: The runs cannot be pooled, or a setting is not known.
    """
    arguments = frontier_parser().parse_args(words)
    place = check_output(arguments.output, arguments.paths) if arguments.output else None
    names = [name.strip() for name in arguments.vary.split(",") if name.strip()]
    check_number(len(arguments.paths))  # before they are read
    sources = sources_of(arguments.paths, arguments)
    table = settings_of_runs(arguments.settings) if arguments.settings else {}
    settings = [source_setting(source, names, table) for source in sources]
    fits = [fit_source(source, arguments) for source in sources]
    also = [added_setting(text, names) for text in arguments.also]
    price = price_of(sources, arguments.price)
    answer = frontier(fits, settings, arguments.budget, not arguments.no_published, also, price)
    others = other_differences(sources, names)
    runs = [(f.curve, s) for f, s in zip(fits, settings, strict=True)]
    shown = frontier_page(answer, runs)
    figures = write_figures(arguments, shown, {"frontier": frontier_figure(answer, runs)})
    if place:
        write_page(place, shown)
    if arguments.json:
        print(json.dumps({**answer.to_dict(), "other_differences": others}, indent=1, allow_nan=False))
        return 0
    more = f"  note: the runs also differ in {', '.join(others)}, which counts as scatter; add it to --vary"
    print_lines(
        *log_lines(sources),
        *str(answer).split("\n"),
        *([more] if others else []),
        *([f"page      {place}"] if place else []),
        *figures,
    )
    return 0


def added_setting(text: str, names: Sequence[str]) -> dict[str, float | str]:
    """Return the setting of one `--also`."""
    values = [as_value(word.strip()) for word in text.split(",")]
    if len(values) != len(names):
        raise CurveError(f"--also: got {text!r}; allowed: a value for each of {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def settings_of_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each run by its path or name.

    Raises:
        CurveError: The file cannot be read, a row names no run, or two rows name the same.
    """
    try:
        with open_regular(path) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
            table = [
                {
                    (name or "").strip(): (cell or "").strip()
                    for name, cell in row.items()
                    if isinstance(cell, str | None)
                }
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise CurveError(trouble(error)) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise CurveError(f"{path} is not a CSV file ({error}); give a column run and one for each setting") from error
    if not table or "run" not in table[0]:
        raise CurveError(
            f"{path} has no column run; it has {', '.join(table[0] if table else ()) or 'no rows'}. Give the path or "
            "name of each run there"
        )
    rows: dict[str, dict[str, Any]] = {}
    for place, row in enumerate(table, 1):
        if not row["run"]:
            raise CurveError(f"{path}: row {place} has no run; give its path or name")
        key = str(Path(row["run"]))  # without ./ and a slash at the end
        if key in rows:
            raise CurveError(f"{path}: row {place} is a second row for the run {row['run']!r:.100}; keep one of them")
        rows[key] = row
    return rows


def source_setting(source: Source, names: Sequence[str], table: dict[str, dict[str, Any]]) -> dict[str, float | str]:
    """Return the settings of a run from the table, or from its configuration."""
    keys = [key for key in dict.fromkeys((str(source.path), source.name)) if key in table]
    if len(keys) > 1:
        raise CurveError(
            f"--settings has two rows for one run, {keys[0]!r} and {keys[1]!r}: its path and its name; keep one"
        )
    row = table[keys[0]] if keys else source.info.settings if source.info is not None else None
    if row is None:
        hint = "its row in --settings" if table else "a run directory, or a table with --settings"
        raise CurveError(f"{source.path} has no settings: give {hint}")
    return setting_of(row, names, str(source.path))


def other_differences(sources: Sequence[Source], names: Sequence[str]) -> list[str]:
    """Return the fields outside `names` that differ between the runs and may change their curves."""
    rows = [source.info.settings for source in sources if source.info is not None]
    fields = dict.fromkeys(name for row in rows for name in row)
    return [
        name for name in fields
        if name.startswith(RESULT_FIELDS) and name not in (*names, "recipe.name") and not name.endswith("seed")
        and len({str(row.get(name)) for row in rows}) > 1
    ]  # fmt: skip
