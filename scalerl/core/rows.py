"""Reads JSONL files of runs, which may grow: only new lines, and all lines of a file that was cut back."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.files import check_file, open_regular, parse_json, trouble
from scalerl.core.types import EvalPoint

CHECKED_BYTES = 128
"""Number of bytes before the current position that must be unchanged; otherwise the file is read again.

A resumed run cuts its files back to a checkpoint, and may then write more than it cut.
"""

LINE_BYTES = 16 << 20
"""Bytes of the longest line; each part of this size of a longer line counts as a broken line."""

TAIL_BYTES = 1 << 19
"""Bytes at the end of a file that `tail` reads: about 400 rows of metrics.jsonl."""


class FileLine(NamedTuple):
    """A row and its position in the file."""

    row: dict[str, Any]
    offset: int
    size: int
    """Size in bytes, including the line break."""


class RowFile:
    """One growing JSONL file. Numbers that are not finite are None."""

    def __init__(self, path: Path, on_restart: Callable[[], None] = lambda: None) -> None:
        """Prepare to read a file, which may not exist yet.

        Args:
            path: The file.
            on_restart: Called when the file was replaced or cut back, before its lines are read again.
        """
        self.path, self._on_restart = path, on_restart
        self.restarts = 0
        """Number of times that the file was replaced or cut back."""
        self.broken = 0
        """Number of lines that are not JSON objects."""
        self.error: OSError | None = None
        """Why the file cannot be read now; None if it can, or if it does not exist or is empty."""
        self._offset, self._last_bytes, self._stamp = 0, b"", (0, 0, 0)

    @property
    def problem(self) -> str:
        """Why the file cannot be read now, in one sentence; may be empty."""
        return trouble(self.error) if self.error else ""

    def new_lines(self) -> Iterator[FileLine]:
        """Yield the complete lines since the last call; after a restart, all lines from the first.

        A file that became unreadable continues at the same place when it is readable again.
        """
        try:
            status = check_file(self.path)
            self.error, stamp = None, (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return
            with self.path.open("rb") as file:
                if not self._continues(file, status.st_ino):
                    self._restart()
                yield from self._lines(file)
            self._stamp = stamp
        except OSError as error:
            if absent := error.errno in (errno.ENOENT, errno.ENODATA):
                self._restart()
            self.error = None if absent else error

    def tail(self, size: int = TAIL_BYTES) -> list[dict[str, Any]]:
        """Return the complete rows in the last bytes, and mark all complete lines as read."""
        try:
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size > size:
                    file.seek(-size, os.SEEK_END)
                    file.readline()  # the rest of a line
                    self._offset = file.tell()
        except OSError:  # `new_lines` keeps the error
            pass
        return [line.row for line in self.new_lines()]

    def row(self, offset: int, size: int) -> dict[str, Any]:
        """Return the row at a position of a `FileLine`; empty if the file has changed there, or cannot be read."""
        try:
            with open_regular(self.path) as file:
                file.seek(offset)
                return _parsed(file.read(size)) or {}
        except OSError:
            return {}

    def _continues(self, file: Any, inode: int) -> bool:
        if self._stamp[0] not in (0, inode):
            return False
        file.seek(self._offset - len(self._last_bytes))
        return bool(file.read(len(self._last_bytes)) == self._last_bytes)

    def _lines(self, file: Any) -> Iterator[FileLine]:
        file.seek(self._offset)
        while (line := file.readline(LINE_BYTES)).endswith(b"\n") or len(line) == LINE_BYTES:
            offset, self._offset = self._offset, self._offset + len(line)
            self._last_bytes = (self._last_bytes + line)[-CHECKED_BYTES:]
            row = _parsed(line)
            if row is not None:
                yield FileLine(row, offset, len(line))
            else:
                self.broken += 1

    def _restart(self) -> None:
        if self._offset:
            self.restarts += 1
            self._on_restart()
        self._offset, self._last_bytes, self._stamp, self.broken = 0, b"", (0, 0, 0), 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete rows of a file, without lines that are not JSON objects; none if it does not exist yet.

    Raises:
        OSError: The file cannot be read.
    """
    file = RowFile(path)
    rows = [line.row for line in file.new_lines()]
    if file.error:
        raise file.error
    return rows


def read_points(run: Path) -> list[EvalPoint]:
    """Return the evaluations of a run directory, without rows that are none.

    Raises:
        OSError: points.jsonl cannot be read.
    """
    points = map(EvalPoint.of, read_rows(run / "points.jsonl"))
    return [point for point in points if point is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line, finite=True)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def number(value: Any) -> float:
    """Return a JSON value as a number; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan
