"""Follows growing JSONL files: reads only new bytes, and rereads a file that was cut back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.watch.state import parsed

SEEN = 128
"""Number of bytes before the current position that must be unchanged; otherwise the file is read again.

A resumed run cuts its files back to a checkpoint, and may then write more than it cut.
"""

CHUNK = 1 << 24
"""Bytes per read."""


class Line(NamedTuple):
    """A row and its position in the file."""

    row: dict[str, Any]
    offset: int
    size: int
    """Size in bytes, including the line break."""


class RowFile:
    """One growing JSONL file."""

    def __init__(self, path: Path) -> None:
        """Prepare to read a file, which may not exist yet."""
        self.path = path
        self.restarts = 0
        """Number of times that the file was replaced or cut back."""
        self.broken = 0
        """Number of lines that are not JSON objects."""
        self._offset, self._seen, self._stamp = 0, b"", (0, 0, 0)

    def new_lines(self) -> Iterator[Line]:
        """Yield the complete lines since the last call; after a restart, all lines from the first.

        An unreadable file counts as empty, and is read again when it becomes readable.
        """
        try:
            found = self.path.stat()
        except OSError:
            self._restart()
            return
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return
        try:
            with self.path.open("rb") as file:
                if not self._continues(file, found.st_ino):
                    self._restart()
                yield from self._lines(file)
        except OSError:
            self._restart()
            return
        self._stamp = stamp

    def skip(self) -> None:
        """Mark all complete lines of the file as read."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(max(0, end - CHUNK))
                last = file.read()
        except OSError:
            return
        whole = last[: last.rfind(b"\n") + 1]
        self._offset, self._seen = end - len(last) + len(whole), whole[-SEEN:]

    def _continues(self, file: Any, inode: int) -> bool:
        if self._stamp[0] not in (0, inode):
            return False
        file.seek(self._offset - len(self._seen))
        return bool(file.read(len(self._seen)) == self._seen)

    def _lines(self, file: Any) -> Iterator[Line]:
        file.seek(self._offset)
        rest = b""
        while read := file.read(CHUNK):
            *whole, rest = (rest + read).split(b"\n")
            for line in whole:
                offset, self._offset = self._offset, self._offset + len(line) + 1
                row = parsed(line)
                if row is not None:
                    yield Line(row, offset, len(line) + 1)
                else:
                    self.broken += 1
            if whole:
                self._seen = (self._seen + b"\n".join([*whole, b""]))[-SEEN:]

    def _restart(self) -> None:
        if self._offset:
            self.restarts += 1
        self._offset, self._seen, self._stamp, self.broken = 0, b"", (0, 0, 0), 0
