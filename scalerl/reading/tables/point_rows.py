"""Reads the lines of points.jsonl, and says which lines of a file were left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scalerl.core.files import parse_json
from scalerl.reading.tables.errors import CurveError
from scalerl.reading.tables.table import Builder, Table

BAD_LINES = 0.1
"""Largest share of unreadable lines in the log of a trainer. In a file of points, every line must be readable."""


class Ended:
    """Lines, one after the other; after the last, `whole` says whether it has its end."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.whole = True

    def __iter__(self) -> Iterator[str]:
        line = "\n"
        for line in self._lines:
            yield line
        self.whole = line.endswith("\n")


def left_out(
    path: Path, form: str, bad: Mapping[int, str], good: int, last: int | None, *, most: float = BAD_LINES
) -> tuple[str, ...]:
    """Return the note about lines that cannot be read.

    Args:
        path: The file.
        form: What its lines should be.
        bad: What is wrong, by number of the line.
        good: Number of the other lines.
        last: Number of the last line if it has no end, so that it may be incomplete; None: it has one.
        most: Largest share of unreadable lines.

    Raises:
        CurveError: There are more of them.
    """
    if not bad:
        return ()
    if good and [*bad] == [last]:
        return (f"the last line of {path.name} is incomplete (was the run killed?) and was left out",)
    first, count = min(bad), len(bad)
    if not good or count > most * (good + count):
        raise CurveError(
            f"{path}: {count} of {good + count} lines are not {form}, the first is line {first} ({bad[first]}); "
            "correct or remove them"
        )
    return (f"{count} unreadable lines of {path.name} were left out, the first is line {first}",)


def read_point_rows(path: Path, lines: Iterable[str]) -> Table:
    """Read JSON lines with the columns of points, of which none may be unreadable except an incomplete last one.

    Raises:
        CurveError: A line is no JSON object.
    """
    ended, builder, bad, last = Ended(lines), Builder(), dict[int, str](), 0
    for number, line in enumerate(ended, 1):
        if not line.strip():
            continue
        last = number
        try:
            row = parse_json(line.rstrip("\n"))
        except ValueError as error:
            bad[number] = str(error)
            continue
        if isinstance(row, dict):
            builder.add(row)
        else:
            bad[number] = f"{line.strip():.60}"
    notes = left_out(path, "JSON objects", bad, builder.size, None if ended.whole else last, most=0.0)
    return builder.table(form="JSON lines", name=path.name, notes=notes, points=True, grows=True)
