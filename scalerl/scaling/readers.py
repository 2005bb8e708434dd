"""Reads files and tables into columns: JSONL, run directories, CSV, rows.

A table is `{"column": [value, ...]}`, with None for missing cells.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scalerl.core.errors import UserError
from scalerl.core.files import check_file, parse_json, read_bytes, trouble

Table = dict[str, list[Any]]

AXES = ("device_hours", "flops", "tokens", "step", "compute")
"""Compute columns, in the order in which they are tried if none is named."""

METRICS = ("pass_rate", "metric")
"""Metric columns, in the order in which they are tried if none is named."""


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
    try:
        # utf-8-sig: spreadsheets write a byte-order mark before the first column name
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise CurveError(trouble(error)) from error
    except UnicodeDecodeError as error:
        raise CurveError(f"{path} is not text (byte {error.start} is not UTF-8); give a JSONL or CSV file") from error
    if "\0" in text:
        raise CurveError(f"{path} is not text (it contains zero bytes); give a JSONL or CSV file")
    if growing:
        text = text[: text.rfind("\n") + 1]
    if not text.strip():
        raise CurveError(f"{path} is empty; a curve needs a row for each evaluation")
    return reader(path, text)


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


def json_objects(path: Path, text: str, most_bad: float = 0.0) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the objects of JSON lines, and a note about lines that were left out; see `unreadable_note`."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for number, line in lines:
        try:
            row = parse_json(line)
        except ValueError as error:
            bad[number] = str(error)
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad[number] = f"{line:.60}"
    last = lines[-1][0] if lines and (most_bad or not text.endswith("\n")) else None
    return rows, unreadable_note(path, bad, len(rows), last, most_bad, "JSON objects")


def csv_rows(
    path: Path, text: str, most_bad: float = 0.0, separator: str = ","
) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """Return the header and the rows of a CSV file, and a note about rows that were left out; see `unreadable_note`."""
    try:
        header, *lines = csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=separator)
    except csv.Error as error:  # such as a cell of over 128 KiB
        raise CurveError(f"{path} is not a CSV file of numbers ({error}); give one row for each evaluation") from error
    header = [name.strip() for name in header]
    twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if twice is not None:
        raise CurveError(f"{path}: the header has {twice!r:.60} more than once; give every column a different name")
    rows = [line for line in lines if len(line) == len(header)]
    bad = {n: f"{len(line)} cells" for n, line in enumerate(lines, 2) if line and len(line) != len(header)}
    last = len(lines) + 1 if most_bad or not text.endswith("\n") else None
    notes = unreadable_note(path, bad, len(rows), last, most_bad, f"rows of {len(header)} cells like the header")
    return header, rows, notes


def unreadable_note(
    path: Path, bad: Mapping[int, str], good: int, last: int | None, most_bad: float, row_form: str
) -> tuple[str, ...]:
    """Return the note about lines that cannot be read.

    Args:
        path: The file, for messages.
        bad: Numbers of these lines, with the problem of each.
        good: Number of the other lines.
        last: Number of the last line, which may be incomplete; None: it is complete.
        most_bad: Largest share of lines that may be left out.
        row_form: What the lines should be.

    Raises:
        CurveError: No line can be read, or more than the share `most_bad` cannot.
    """
    if bad and (not good or ([*bad] != [last] and len(bad) > most_bad * (good + len(bad)))):
        raise CurveError(
            f"{path}: {len(bad)} of {good + len(bad)} lines are not {row_form}, the first is line {min(bad)} "
            f"({bad[min(bad)]}); correct or remove them"
        )
    if [*bad] == [last]:
        return (f"the last line of {path.name} is incomplete (was the run killed?) and was left out",)
    return (f"{len(bad)} unreadable lines of {path.name} were left out, the first is line {min(bad)}",) if bad else ()


def read_jsonl(path: Path, text: str) -> tuple[Table, tuple[str, ...]]:
    """Read one JSON object per line."""
    rows, notes = json_objects(path, text)
    return table_of_rows(rows), notes


def read_csv(path: Path, text: str) -> tuple[Table, tuple[str, ...]]:
    """Read a header line and one row per line."""
    header, rows, notes = csv_rows(path, text)
    cells = [[row[i].strip() or None for row in rows] for i in range(len(header))]
    return dict(zip(header, cells, strict=True)), notes


READERS: dict[str, Callable[[Path, str], tuple[Table, tuple[str, ...]]]] = {".jsonl": read_jsonl, ".csv": read_csv}
"""Reader by file extension."""


def table_of_rows(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the columns of rows (dicts); a missing value is None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
