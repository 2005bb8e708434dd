"""Reads files and tables into columns: JSONL, run directories, CSV, rows.

A table is `{"column": [value, ...]}`, with None for missing cells. Files are read line by line, and columns of numbers
are packed, because a file may have millions of rows.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from scalerl.core.errors import UserError
from scalerl.core.files import check_file, lack_of_room, parse_json, trouble

Table = dict[str, Sequence[Any]]

AXES = ("device_hours", "flops", "tokens", "step", "compute")
"""Compute columns, in the order in which they are tried if none is named."""

METRICS = ("pass_rate", "metric")
"""Metric columns, in the order in which they are tried if none is named."""

TOGETHER = 4096
"""Rows that are converted together."""

PACKED = {float: "d", int: "q"}
"""Types of numbers that are stored in 8 bytes, and not in 40, with their codes of `array`."""

MOST_WORDS = 1000
"""Number of distinct words of a column up to which each word is in memory once."""


class CurveError(UserError):
    """An error in the input; its message gives what was got, what is allowed and what to do."""


def read_table(path: str | Path, *, growing: bool = False) -> tuple[Table, tuple[str, ...]]:
    """Read the columns of a file, or of the points.jsonl of a run directory, and return them with notes about repairs.

    Args:
        path: The file or directory.
        growing: Whether the file is still written, so that a last line without its end is left out.

    Raises:
        CurveError: The file does not exist, is of an unknown type, is empty or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "points.jsonl").is_file():
            raise CurveError(f"{path} is a directory without a points.jsonl; give a run directory or a file")
        path = path / "points.jsonl"
    if not path.exists():
        raise CurveError(f"{path}: no such file; give a run directory or a file of points")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise CurveError(f"{path}: got a file that ends in {path.suffix or 'nothing'!r}; allowed: {', '.join(READERS)}")
    if trouble_ahead := lack_of_room(path, MEMORY[path.suffix.lower()]):
        raise CurveError(trouble_ahead)
    try:
        lines, first = text_lines(path, growing=growing), list[str]()
        for line in lines:
            first.append(line)
            if line.strip():
                return reader(path, chain(first, lines))
        raise CurveError(f"{path} is empty; a curve needs a row for each evaluation")
    except OSError as error:
        raise CurveError(trouble(error)) from error


def text_lines(path: Path, *, growing: bool = False) -> Iterator[str]:
    """Yield the lines of a text file with their ends; arguments and errors are those of `read_table`."""
    check_file(path)
    position = 0
    with path.open("rb") as file:
        for line in file:
            if growing and not line.endswith(b"\n"):
                return
            try:
                # spreadsheets write a byte-order mark before the first column name
                text = line.decode("utf-8-sig" if position == 0 else "utf-8")
            except UnicodeDecodeError as error:
                at = position + error.start
                raise CurveError(f"{path} is not text (byte {at} is not UTF-8); give a JSONL or CSV file") from error
            if "\0" in text:
                raise CurveError(f"{path} is not text (it contains zero bytes); give a JSONL or CSV file")
            position += len(line)
            yield text


def is_points(path: str | Path) -> bool:
    """Return whether a file has rows of points, by its first line; also for a path that does not exist.

    A directory has them if it has a points.jsonl. Any other log is read by `importers`.
    """
    path = Path(path)
    if path.is_dir():
        return (path / "points.jsonl").is_file()
    if path.suffix.lower() not in READERS:
        return False
    try:
        check_file(path)
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"").decode("utf-8-sig", errors="replace")
    except OSError:
        return True  # the reader of points says what is wrong
    try:
        row = parse_json(first) if path.suffix.lower() == ".jsonl" else dict.fromkeys(next(csv.reader([first]), []))
    except (ValueError, csv.Error):
        return False
    names = {name.strip() for name in row} if isinstance(row, dict) else set()
    return not names.isdisjoint(METRICS) and not names.isdisjoint(AXES)


class Unreadable:
    """Counts the lines that cannot be read."""

    def __init__(self, path: Path, row_form: str) -> None:
        """Prepare to count.

        Args:
            path: The file, for messages.
            row_form: What the lines should be.
        """
        self.path, self.row_form = path, row_form
        self.count, self.first, self.problem = 0, 0, ""

    def add(self, number: int, problem: str) -> None:
        """Count a line, with its number and what is wrong with it."""
        if not self.count:
            self.first, self.problem = number, problem
        self.count += 1

    def note(self, good: int, last: int | None) -> tuple[str, ...]:
        """Return the note about the last line, if it alone cannot be read and has no end.

        Args:
            good: Number of the other lines.
            last: Number of the last line, which may be incomplete; None: it is complete.

        Raises:
            CurveError: No line can be read, or one before the last cannot.
        """
        if not self.count:
            return ()
        if good and self.count == 1 and self.first == last:
            return (f"the last line of {self.path.name} is incomplete (was the run killed?) and was left out",)
        raise CurveError(
            f"{self.path}: {self.count} of {good + self.count} lines are not {self.row_form}, the first is line "
            f"{self.first} ({self.problem}); correct or remove them"
        )


class JsonLines:
    """The objects of JSON lines, one after the other; after the last, `notes` says which lines were left out."""

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        """Prepare to read lines; the path is for messages."""
        self._lines = lines
        self.notes: tuple[str, ...] = ()
        self._bad = Unreadable(path, "JSON objects")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects.

        Raises:
            CurveError: Lines are not objects, other than a last one without its end.
        """
        good, line, last = 0, "\n", 0
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            last = number
            try:
                row = parse_json(line.rstrip("\n"))
            except ValueError as error:
                self._bad.add(number, str(error))
                continue
            if isinstance(row, dict):
                good += 1
                yield row
            else:
                self._bad.add(number, f"{line.strip():.60}")
        self.notes = self._bad.note(good, None if line.endswith("\n") else last)


class CsvLines:
    """The rows of a CSV file, one after the other; after the last, `notes` says which were left out."""

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        """Read the header; the path is for messages.

        Raises:
            CurveError: A name occurs twice, or the header cannot be read.
        """
        self.path, self.notes, self._complete = path, tuple[str, ...](), True
        self._rows = csv.reader(self._noted(lines))
        header = next(self._read(), [])
        self.header = [name.strip() for name in header]
        twice = next((name for name, count in Counter(self.header).items() if name and count > 1), None)
        if twice is not None:
            raise CurveError(f"{path}: the header has {twice!r:.60} more than once; give every column a different name")

    def _noted(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines from the header on; a carriage return ends one too."""
        begun = False
        for line in lines:
            self._complete = line.endswith("\n")
            text = line if begun else line.lstrip()
            begun = begun or bool(text)
            if text:
                yield from io.StringIO(text, newline="") if "\r" in text else (text,)

    def _read(self) -> Iterator[list[str]]:
        try:
            yield from self._rows
        except csv.Error as error:  # such as a cell of over 128 KiB
            text = f"{self.path} is not a CSV file of numbers ({error}); give one row for each evaluation"
            raise CurveError(text) from error

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the rows with as many cells as the header.

        Raises:
            CurveError: Rows have other numbers of cells, other than a last one without its end; or a cell is too long.
        """
        width, good, number = len(self.header), 0, 1
        bad = Unreadable(self.path, f"rows of {width} cells like the header")
        for number, row in enumerate(self._read(), 2):
            if len(row) == width:
                good += 1
                yield row
            elif row:
                bad.add(number, f"{len(row)} cells")
        self.notes = bad.note(good, None if self._complete else number)


class Columns:
    """Collects rows into a table."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any] | array[Any]] = {}
        self._size = 0
        self._words: dict[str, dict[str, str]] = {}

    def add(self, names: Iterable[str], cells: Sequence[Sequence[Any]], rows: int) -> None:
        """Add a number of rows, with the cells of each column."""
        cells_by_name = dict(zip(names, cells, strict=True))
        for name in [*self._columns, *(name for name in cells_by_name if name not in self._columns)]:
            column = self._columns.get(name, [None] * self._size)
            self._columns[name] = extended(column, self._shared(name, cells_by_name.get(name, [None] * rows)))
        self._size += rows

    @property
    def table(self) -> Table:
        """The rows so far."""
        return dict(self._columns)

    def _shared(self, name: str, cells: Sequence[Any]) -> Sequence[Any]:
        """Return the cells of a column, in which equal words are one object."""
        words = self._words.setdefault(name, {})
        if len(words) > MOST_WORDS or not any(type(cell) is str for cell in cells):
            return cells
        return [words.setdefault(cell, cell) if type(cell) is str else cell for cell in cells]


def extended(column: list[Any] | array[Any], cells: Sequence[Any]) -> list[Any] | array[Any]:
    """Return a column with more cells; it is packed as long as all its cells are numbers of one type."""
    kinds = set(map(type, cells))
    code = PACKED.get(next(iter(kinds))) if len(kinds) == 1 else None
    if code is not None and (not column or (isinstance(column, array) and column.typecode == code)):
        packed = column if isinstance(column, array) else array(code)
        try:
            packed.extend(array(code, cells))
            return packed
        except OverflowError:  # an integer of more than 64 bits
            pass
    unpacked = column if isinstance(column, list) else list(column)
    unpacked.extend(cells)
    return unpacked


def read_jsonl(path: Path, lines: Iterable[str]) -> tuple[Table, tuple[str, ...]]:
    """Read one JSON object per line."""
    rows = JsonLines(path, lines)
    table = table_of_rows(rows)
    return table, rows.notes


def read_csv(path: Path, lines: Iterable[str]) -> tuple[Table, tuple[str, ...]]:
    """Read a header line and one row per line."""
    rows, columns = CsvLines(path, lines), Columns()
    columns.add(rows.header, [[]] * len(rows.header), 0)
    remaining = iter(rows)
    while part := list(islice(remaining, TOGETHER)):
        cells = [[cell.strip() or None for cell in column] for column in zip(*part, strict=True)]
        columns.add(rows.header, cells, len(part))
    return columns.table, rows.notes


READERS: dict[str, Callable[[Path, Iterable[str]], tuple[Table, tuple[str, ...]]]] = {
    ".jsonl": read_jsonl, ".csv": read_csv,
}  # fmt: skip
"""Reader by file extension."""


MEMORY = {".jsonl": 3.0, ".csv": 12.0}
"""Memory of a table and its curve in multiples of the file, measured with 1,000,000 rows of four columns."""


def table_of_rows(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the columns of rows (dicts); a missing value is None."""
    remaining, columns = iter(rows), Columns()
    while part := list(islice(remaining, TOGETHER)):
        names = list(dict.fromkeys(name for row in part for name in row))
        columns.add(names, [[row.get(name) for row in part] for name in names], len(part))
    return columns.table
