"""Reads tables into frames: CSV with any delimiter, Markdown, HTML, charts exported from wandb and TensorBoard.

Axes in names: K rows of a chunk.
"""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from scalerl.importers.frame import DECIMAL_COMMA, EMPTY, GROUPED, Array, Builder, Frame, Words, joined, number_of
from scalerl.scaling.readers import CurveError

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


class CsvTable:
    """Collects the rows of a CSV file, chunk by chunk; its first row is the header."""

    def __init__(self, separator: str, name: str) -> None:
        self.separator, self.name = separator, name
        self.header: list[str] = []
        self.good, self.number, self.bad = 0, 1, dict[int, int]()

    def read(self, lines: Iterable[str]) -> None:
        """Read lines, after those that were read before.

        Raises:
            CurveError: A column occurs twice, or a cell is too long.
        """
        content = (line for line in lines if line[0] not in "#\r\n" and line.strip())
        rows: Iterator[list[str]] = (
            csv.reader(content, delimiter=self.separator) if self.separator else (line.split() for line in content)
        )
        try:
            if not self.header and (header := next(rows, None)):
                self.begin([cell.strip() for cell in header])
            while chunk := list(islice(rows, CHUNK)):
                self.add(chunk)
        except csv.Error as error:  # such as a cell of over 128 KiB
            text = f"{self.name} is not a CSV file of numbers ({error}); give one row for each evaluation"
            raise CurveError(text) from error

    def begin(self, header: list[str]) -> None:
        """Set the columns."""
        twice = next((cell for i, cell in enumerate(header) if cell and cell in set(header[:i])), None) \
            if len(set(header)) < len([c for c in header if c]) + ("" in header) else None  # fmt: skip
        if twice is not None:
            raise CurveError(
                f"{self.name}: the header has {twice!r:.60} more than once; give every column a different name"
            )
        self.header, self.owners = plain_header(header)
        self.runs = sorted(set(self.owners) - {""})
        self.builders = {run: Builder() for run in self.runs or [""]}
        self.decimal_commas: bool | None = None

    def add(self, chunk: list[list[str]]) -> None:
        """Convert rows."""
        width = len(self.header)
        rows = chunk if set(map(len, chunk)) == {width} else []
        self.number += len(rows)
        for cells in chunk if not rows else ():
            self.number += 1
            if len(cells) == width:
                rows.append(cells)
            elif len(cells) < width and not any(cell.strip() for cell in cells):
                continue
            else:
                self.bad[self.number] = len(cells)
        self.good += len(rows)
        if not rows:
            return
        if self.decimal_commas is None and self.separator != ",":
            sample = [cell.strip() for row in rows[:1000] for cell in row if "," in cell]
            self.decimal_commas = any(DECIMAL_COMMA.fullmatch(c) and not GROUPED.fullmatch(c) for c in sample)
        columns = list(zip(*rows, strict=True))
        for run, builder in self.builders.items():
            numbers = {}
            words = []
            for name, owner, cells_K in zip(self.header, self.owners, columns, strict=True):
                if not name or owner not in ("", run):
                    continue
                value_K, nan_K, places = self.converted(cells_K)
                index_K = np.flatnonzero(~np.isnan(value_K) | nan_K)
                if len(index_K):
                    numbers[name] = (index_K, value_K[index_K])
                words += [(name, place, cells_K[place]) for place in places]
            start = builder.size
            builder.add_columns(numbers, len(rows))
            for name, place, word in words:
                builder.add_text(name, word, start + place)

    def converted(self, cells_K: Sequence[str]) -> tuple[Array, NDArray[np.bool_], list[int]]:
        """Return a column as numbers, with NaN for the rest; which cells say NaN; the places of words."""
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
            if self.decimal_commas and (DECIMAL_COMMA.fullmatch(text) or GROUPED.fullmatch(text)):
                value_K[place] = float(text.replace(",", "."))
            elif (number := number_of(text)) is not None:
                value_K[place] = number
            elif text.lower() not in EMPTY:
                words.append(place)
        return value_K, nan_K, words

    def frame(self, most_bad: float) -> tuple[Frame, list[str]]:
        """Return the rows of all runs so far, with notes about those that were left out.

        Raises:
            CurveError: More than the share `most_bad` of the rows have not the header's width.
        """
        notes = []
        if self.bad and list(self.bad) == [self.number]:
            notes.append(f"the last line of {self.name} is incomplete (was the run killed?) and was left out")
        elif self.bad and (not self.good or len(self.bad) > most_bad * (self.good + len(self.bad))):
            first = min(self.bad)
            raise CurveError(
                f"{self.name}: {len(self.bad)} of {self.good + len(self.bad)} lines are not rows of {len(self.header)} "
                f"cells like the header, the first is line {first} ({self.bad[first]} cells); correct or remove them"
            )
        elif self.bad:
            notes.append(
                f"{len(self.bad)} unreadable lines of {self.name} were left out, the first is line {min(self.bad)}"
            )
        frames = []
        for run, builder in self.builders.items() if self.header else ():
            frame = builder.frame()
            if run and len(self.runs) > 1:
                frame = labeled(frame, run)
            frames.append(frame)
        return joined(frames) if frames else Frame(0, {}), notes


def labeled(frame: Frame, run: str) -> Frame:
    """Return a frame with the name of its run in a column."""
    rows_N = np.arange(frame.size)
    return Frame(frame.size, frame.cells, {**frame.words, RUN: Words(rows_N, np.zeros_like(rows_N), (run,))})


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
TABLE = re.compile(r"<table\b.*?</table>", re.IGNORECASE | re.DOTALL)
TABLE_ROW = re.compile(r"<tr\b.*?(?=<tr\b|</table>|$)", re.IGNORECASE | re.DOTALL)
TABLE_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)(?=</t[hd]>|<t[hd]\b|</tr>)", re.IGNORECASE | re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def markdown_tables(text: str) -> list[Frame]:
    """Return the tables with numbers in a Markdown text."""
    tables: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        match = MARKDOWN_ROW.match(line)
        if match is None:
            inside = False
            continue
        if not inside:
            tables.append([])
            inside = True
        if "-" not in line or not MARKDOWN_RULE.match(line):
            tables[-1].append([cell.strip() for cell in match[1].split("|")])
    return [frame for table in tables if (frame := rows_frame(table)) is not None]


def html_tables(text: str) -> list[Frame]:
    """Return the tables with numbers in HTML, such as the one that a notebook of transformers shows."""
    tables = []
    for table in TABLE.findall(text):
        rows = [
            [html.unescape(TAG.sub("", cell)).strip() for cell in TABLE_CELL.findall(row)]
            for row in TABLE_ROW.findall(table)
        ]
        if (frame := rows_frame([row for row in rows if row])) is not None:
            tables.append(frame)
    return tables


def rows_frame(rows: Sequence[Sequence[str]]) -> Frame | None:
    """Return the frame of a header and rows; None if there are no numbers."""
    if len(rows) < 2:
        return None
    builder = Builder()
    header = rows[0]
    for cells in rows[1:]:
        if len(cells) == len(header):
            for name, cell in zip(header, cells, strict=True):
                if name:
                    builder.add_text(name, cell, builder.size)
            builder.size += 1
    frame = builder.frame()
    return frame if frame.names else None


def peeked(lines: Iterable[str], count: int) -> tuple[list[str], Iterator[str]]:
    """Return the first lines, and all lines."""
    iterator = iter(lines)
    first = list(islice(iterator, count))
    return first, chain(first, iterator)
