"""Reads files and tables into columns: JSONL, run directories, CSV, rows, data frames.

A table is `{"column": [value, ...]}`, with None for missing cells.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.core.files import parse_json, read_bytes, trouble

Table = dict[str, list[Any]]


class CurveError(ValueError):
    """An error in the input; its message gives what was got, what is allowed and what to do."""


def read_table(path: str | Path) -> tuple[Table, tuple[str, ...]]:
    """Read the columns of a file, or of the points.jsonl of a run directory, and return them with notes about repairs.

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
    try:
        # utf-8-sig: spreadsheets write a byte-order mark before the first column name
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise CurveError(trouble(error)) from error
    except UnicodeDecodeError as error:
        raise CurveError(f"{path} is not text (byte {error.start} is not UTF-8); give a JSONL or CSV file") from error
    if "\0" in text:
        raise CurveError(f"{path} is not text (it contains zero bytes); give a JSONL or CSV file")
    if not text.strip():
        raise CurveError(f"{path} is empty; a curve needs a row for each evaluation")
    return reader(path, text)


def read_jsonl(path: Path, text: str) -> tuple[Table, tuple[str, ...]]:
    """Read one JSON object per line; an incomplete last line is left out with a note, other bad lines are errors."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[Mapping[str, Any]] = []
    notes: tuple[str, ...] = ()
    for number, line in lines:
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == lines[-1][0] and not text.endswith("\n") and rows:
                notes = (f"line {number} of {path.name} is incomplete (was the run killed?) and was left out",)
                break
            raise CurveError(f"{path}, line {number} is not JSON ({error}): {line[:60]!r}") from error
        if not isinstance(row, dict):
            raise CurveError(f"{path}, line {number}: each line must be a JSON object, got {line[:60]!r}")
        rows.append(row)
    return table_of_rows(rows), notes


def read_csv(path: Path, text: str) -> tuple[Table, tuple[str, ...]]:
    """Read a header line and one row per line; an incomplete last row is left out with a note."""
    try:
        header, *rows = csv.reader(io.StringIO(text.lstrip(), newline=""))
    except csv.Error as error:  # such as a cell of over 128 KiB
        raise CurveError(f"{path} is not a CSV file of numbers ({error}); give one row for each evaluation") from error
    header = [name.strip() for name in header]
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise CurveError(f"{path}: the header has {twice[0][:60]!r} more than once; give every column a different name")
    notes: tuple[str, ...] = ()
    rows = [row for row in rows if row]
    if rows and len(rows[-1]) < len(header) and not text.endswith("\n"):
        rows.pop()
        notes = (f"the last line of {path.name} is incomplete (was the run killed?) and was left out",)
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise CurveError(
                f"{path}, row {number} has {len(row)} cells, the header has {len(header)}: {str(row)[:70]}"
            )
    cells = [[cell.strip() or None for cell in column] for column in zip(*rows, strict=True)]
    return dict(zip(header, cells or [[] for _ in header], strict=True)), notes


READERS: dict[str, Callable[[Path, str], tuple[Table, tuple[str, ...]]]] = {
    ".jsonl": read_jsonl,
    ".csv": read_csv,
}
"""Reader by file extension."""


def table_of_rows(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the columns of rows (dicts); a missing value is None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def table_of_frame(frame: Any) -> Table:
    """Return the columns of a data frame: an object with `.columns` and `frame[name]`, or a mapping of arrays.

    This includes pandas, polars and pyarrow tables; none of them is imported.
    """
    names = getattr(frame, "columns", None)
    if names is not None and not all(isinstance(name, str) for name in names):
        names = getattr(frame, "column_names", None)  # pyarrow has the names here and the data in .columns
    if names is None and isinstance(frame, Mapping):
        names = list(frame)
    if names is None:
        raise CurveError(f"a {type(frame).__name__} has no columns; give a data frame or a dict of arrays")
    return {str(name): np.asarray(frame[name]).tolist() for name in names}
