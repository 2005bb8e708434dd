"""Reads grids of cells into tables: CSV with any delimiter, Markdown, HTML, charts exported from wandb and TensorBoard.

Axes in names: K rows of a chunk.
"""

from __future__ import annotations

import csv
import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.tables.errors import CurveError
from scalerl.reading.tables.names import are_points
from scalerl.reading.tables.numbers import DECIMAL_COMMA, EMPTY, GROUPED, number_of
from scalerl.reading.tables.point_rows import BAD_LINES, Ended, left_out
from scalerl.reading.tables.table import Array, Builder, Table, joined_tables

RUN = "run"
"""Column with the name of the run, if a table has a column for each run or a file has several tables."""

CHUNK = 50_000
"""Rows of a CSV file that are converted together."""
SEPARATORS = (",", ";", "\t", "|")
PAIR = re.compile(r"[:=]\s*[-+]?\.?\d|\d\s*/\s*\d")
"""A name and its value, or a step of many: a print of a run, not a header."""
STEP_HEADERS = re.compile(
    r"_?step|relative time.*|wall time|.*global_step|.*/step|epoch|iteration|progress/batch|created at", re.IGNORECASE
)
"""First columns of a chart exported from wandb."""


# --------------------------------------------------------------------------------------------------------------- CSV


def separator_of(lines: Sequence[str]) -> str | None:
    """Return the delimiter of a table from its first lines; "" for spaces; None if they are no table."""
    lines = [line for line in lines if line.strip()][:30]
    if any("\r" in line.rstrip("\r\n") for line in lines):
        return None  # progress bars
    if len(lines) < 2:
        return "," if lines and lines[0].count(",") and not lines[0].lstrip().startswith("{") else None
    if PAIR.search(lines[0]):
        return None
    if (of_points := next((s for s in SEPARATORS if are_points(lines[0].split(s))), None)) is not None:
        return of_points
    best, most = None, 1
    if max(map(len, lines)) > csv.field_size_limit():
        return "," if "," in lines[0] else None  # the reader then says which cell is too long
    for separator in SEPARATORS:
        rows = list(csv.reader(lines, delimiter=separator)) if '"' in lines[0] or "," in lines[0] or separator != "," \
            else [line.split(",") for line in lines]  # fmt: skip
        width = len(rows[0])
        if width > most and is_table(rows, width):
            best, most = separator, width
    if best is None:
        rows = [line.split() for line in lines]
        cells = [cell for row in rows[1:] for cell in row]
        numbers = sum(number_of(cell) is not None for cell in cells) > 0.6 * len(cells)
        words = not any(number_of(cell) is not None for cell in rows[0])
        same = len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)
        if numbers and words and same and is_table(rows, len(rows[0])):
            return ""
    return best


def is_table(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether the first row is a header and most of the others have its width, and numbers."""
    header, body = rows[0], rows[1:]
    names = [name for name in header if name.strip()]
    if not names or sum(number_of(name) is not None for name in names) > 0.2 * len(names):
        return False
    if any(len(name) > 200 or "{" in name for name in names):
        return False
    fitting = [row for row in body if len(row) == width]
    if len(fitting) < 0.7 * len(body):
        return False
    return any(number_of(cell) is not None for row in fitting for cell in row)


def read_csv(path: Path, separator: str, lines: Iterable[str]) -> Table:
    """Read a CSV file with a header; "" separates cells at spaces.

    Raises:
        CurveError: A column occurs twice, a cell is too long, or too many rows have not the header's width.
    """
    ended = Ended(line for line in lines if line[0] not in "#\r\n" and line.strip())
    rows: Iterator[list[str]] = (
        csv.reader(ended, delimiter=separator) if separator else (line.split() for line in ended)
    )
    builder, bad, number, commas = Builder(), dict[int, str](), 1, separator != ","
    try:
        header = [cell.strip() for cell in next(rows, [])]
        check_header(header, path)
        for chunk in iter(lambda: list(islice(rows, CHUNK)), []):
            for place, cells in enumerate(chunk, number + 1):
                if len(cells) > len(header) or (len(cells) < len(header) and any(cell.strip() for cell in cells)):
                    bad[place] = f"{len(cells)} cells"
            number += len(chunk)
            if full := [cells for cells in chunk if len(cells) == len(header)]:
                commas = commas and (builder.size > 0 or has_decimal_commas(full))
                add_cells(builder, full, commas)
    except csv.Error as error:  # such as a cell of over 128 KiB
        raise CurveError(f"{path} is not a CSV file of numbers ({error}); give one row for each evaluation") from error
    points, form = are_points(header), f"rows of {len(header)} cells like the header"
    last = None if ended.whole else number
    notes = left_out(path, form, bad, builder.size, last, most=0.0 if points else BAD_LINES)
    table = of_owners(builder.table(), header)
    return replace(
        chart_of_tensorboard(table, path), form="CSV", name=path.name, notes=notes, points=points, grows=True
    )


def check_header(header: list[str], path: Path) -> None:
    """Raise if a name occurs twice."""
    twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if twice is not None:
        raise CurveError(f"{path}: the header has {twice!r:.60} more than once; give every column a different name")


def has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a number such as `0,5` is among the first cells."""
    sample = [cell.strip() for row in rows[:1000] for cell in row if "," in cell]
    return any(DECIMAL_COMMA.fullmatch(cell) and not GROUPED.fullmatch(cell) for cell in sample)


def add_cells(builder: Builder, rows: Sequence[Sequence[str]], commas: bool) -> None:
    """Add rows, whose columns get their numbers in the header as names."""
    numbers, words = {}, []
    for number, cells_K in enumerate(zip(*rows, strict=True)):
        value_K, nan_K, places = converted(cells_K, commas)
        index_K = np.flatnonzero(~np.isnan(value_K) | nan_K)
        if len(index_K):
            numbers[str(number)] = (index_K, value_K[index_K])
        words += [(str(number), builder.size + place, cells_K[place]) for place in places]
    builder.add_columns(numbers, len(rows))
    for name, place, word in words:
        builder.add_text(name, word, place)


def of_owners(table: Table, header: list[str]) -> Table:
    """Return a table of numbered columns with the names of the header; columns of several runs become rows of each."""
    names, owners = plain_header(header)
    runs = sorted(set(owners) - {""})

    def named(columns: dict[str, Any], run: str) -> dict[str, Any]:
        return {
            name: cells
            for number, cells in columns.items()
            if (name := names[int(number)]) and owners[int(number)] in ("", run)
        }

    tables = [replace(table, cells=named(table.cells, run), words=named(table.words, run)) for run in runs or [""]]
    return (
        joined_tables([labeled(part, run) for part, run in zip(tables, runs, strict=True)])
        if len(runs) > 1
        else tables[0]
    )


def converted(cells_K: Sequence[str], commas: bool) -> tuple[Array, NDArray[np.bool_], list[int]]:
    """Return a column as numbers, with NaN for the rest; which cells say NaN; the places of words.

    Args:
        cells_K: The cells.
        commas: Whether a comma is the sign before the decimals.
    """
    try:
        value_K = np.array(list(map(float, cells_K)))
        return value_K, np.isnan(value_K), []
    except ValueError:
        pass
    value_K = np.full(len(cells_K), np.nan)
    nan_K = np.zeros(len(cells_K), dtype=bool)
    words = []
    for place, cell in enumerate(cells_K):
        if not cell:
            continue
        try:
            value_K[place] = float(cell)
            nan_K[place] = value_K[place] != value_K[place]
            continue
        except ValueError:
            text = cell.strip()
        if commas and (DECIMAL_COMMA.fullmatch(text) or GROUPED.fullmatch(text)):
            value_K[place] = float(text.replace(",", "."))
        elif (number := number_of(text)) is not None:
            value_K[place] = number
        elif text.lower() not in EMPTY:
            words.append(place)
    return value_K, nan_K, words


def chart_of_tensorboard(table: Table, path: Path) -> Table:
    """Return a download of TensorBoard, `Wall time, Step, Value`, whose metric has the tag in its file name."""
    if {name.lower() for name in table.names} != {"wall time", "step", "value"}:
        return table
    value = next(name for name in table.names if name.lower() == "value")
    tag = path.stem.rpartition("-tag-")[2] or "value"
    return replace(table, cells={(tag if name == value else name): cell for name, cell in table.cells.items()})


def labeled(table: Table, run: str) -> Table:
    """Return a table with the name of its run in a column."""
    return table.labeled(RUN, np.full(table.size, run, dtype=object))


def plain_header(header: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of a CSV file, and the run of each column ("" for a column of all runs).

    In a chart's export, `Step, run - metric, run - metric__MIN, ...`, only step and metric columns keep a name. A run's
    name may contain ` - `.
    """
    if len(header) < 2 or not STEP_HEADERS.fullmatch(header[0]) or not any(" - " in name for name in header[1:]):
        return header, [""] * len(header)
    first = "_step" if header[0] == "Step" else header[0]
    names, owners = [first], [""]
    for name in header[1:]:
        run, dash, metric = name.rpartition(" - ")
        spread = name.endswith(("__MIN", "__MAX"))
        # wandb adds `run - _step` beside each metric
        names.append("" if spread or (dash and metric in ("_step", first)) else metric)
        owners.append(run if dash else "")
    return names, owners


# ------------------------------------------------------------------------------------------------ Markdown and HTML

MARKDOWN_ROW = re.compile(r"^\s*\|(.+)\|\s*$")
MARKDOWN_RULE = re.compile(r"^\s*\|?[\s:|\-]+\|?\s*$")
HTML_TABLE = re.compile(r"<table\b.*?</table>", re.IGNORECASE | re.DOTALL)
TABLE_ROW = re.compile(r"<tr\b.*?(?=<tr\b|</table>|$)", re.IGNORECASE | re.DOTALL)
TABLE_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)(?=</t[hd]>|<t[hd]\b|</tr>)", re.IGNORECASE | re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def markdown_tables(text: str) -> list[Table]:
    """Return the tables with numbers in a Markdown text."""
    grids: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        match = MARKDOWN_ROW.match(line)
        if match is None:
            inside = False
            continue
        if not inside:
            grids.append([])
            inside = True
        if "-" not in line or not MARKDOWN_RULE.match(line):
            grids[-1].append([cell.strip() for cell in match[1].split("|")])
    return [table for grid in grids if (table := grid_table(grid)) is not None]


def html_tables(text: str) -> list[Table]:
    """Return the tables with numbers in HTML, such as the one that a notebook of transformers shows."""
    grids = [
        [
            [html.unescape(TAG.sub("", cell)).strip() for cell in TABLE_CELL.findall(row)]
            for row in TABLE_ROW.findall(grid)
        ]
        for grid in HTML_TABLE.findall(text)
    ]
    return [table for grid in grids if (table := grid_table([row for row in grid if row])) is not None]


def grid_table(rows: Sequence[Sequence[str]]) -> Table | None:
    """Return the table of a header and rows; None if there are no numbers."""
    header, builder = rows[0] if rows else [], Builder()
    for cells in rows[1:]:
        if len(cells) == len(header):
            for name, cell in zip(header, cells, strict=True):
                if name:
                    builder.add_text(name, cell, builder.size)
            builder.size += 1
    table = builder.table()
    return table if table.names else None
