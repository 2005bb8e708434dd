"""Reads the log of a run that trains again when it has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalerl.core.files import trouble
from scalerl.core.rows import CHECKED_BYTES
from scalerl.reading.logs.points import Imported, of_tables, summarized
from scalerl.reading.tables.errors import Away, CurveError, LogError, TooEarly, with_command
from scalerl.reading.tables.events import MOST_ENTRIES
from scalerl.reading.tables.forms import find_log, read_directory, read_file, wandb_path
from scalerl.reading.tables.table import Table
from scalerl.reading.tables.trackers import WandbRun

SIDE_FILES = ("-wal",)
"""Ends of the names of files beside a SQLite database that have its newest rows."""

REST = 20.0
"""Multiple of the time of a look for which a follower then rests, because each look reads the whole log."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size in bytes and time of the last change in ns of each file of a log."""


class GrowingLog:
    """One log that grows: a file, the directory of a run, a tracker's store, or a run on wandb."""

    def __init__(self, path: Path, *, points: bool = True) -> None:
        """Prepare to read a log, which may not exist yet.

        Args:
            path: As for `importers.read`.
            points: Whether rows with the columns of points are taken as they are.
        """
        self.path, self.points = path, points
        run = wandb_path(str(path))
        self._wandb = WandbRun(run) if run is not None else None
        self._stamp: Stamp | None = None
        self._kind = ""
        self._file = path
        self._end, self._tail = 0, b""
        self._earlier: list[Table] = []
        """Parts of the run in a file that was since cut back or replaced (rotated)."""
        self._last: Table | None = None
        self.restarts = 0
        """Number of times that the file was cut back or replaced."""
        self.rest_s = 0.0
        """Seconds until the next look is worth its time."""

    def look(self) -> Table | None:
        """Return the log; None if nothing has changed since the last call.

        Raises:
            TooEarly: The log lacks what later rows may bring.
            Away: The tracker or the disk does not answer now.
            CurveError: The log cannot be read.
        """
        start, stamp = time.monotonic(), None if self._wandb else stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            return None
        self._stamp = None  # after an error, the next look reads again
        try:
            table = self._read()
        except LogError:
            raise
        except CurveError as error:
            raise with_command(error) from error
        except OSError as error:
            raise Away(trouble(error)) from error
        self._last, self._stamp, self.rest_s = table, stamp, REST * (time.monotonic() - start)
        return table

    def imported(self, choices: Mapping[str, Any]) -> Imported:
        """Return the points of the last look, after the parts of the run that came before; choices are those of `read`.

        A file that begins again with the first steps is a new run, and not a further part.
        """
        assert self._last is not None
        log = of_tables([self._last], paths=[self.path], **choices)
        if self._earlier:
            before = of_tables(self._earlier, **choices)
            first, start = (part.rows[0].get("step") for part in (log, before))
            if first is not None and start is not None and first > start:
                return of_tables([*self._earlier, self._last], **choices)
            self._earlier = []
        return log

    @property
    def ended(self) -> str:
        """How the run ended, if the log says so: "finished", "failed", ..."""
        return "" if self._last is None else self._last.ended or ("finished" if summarized(self._last) else "")

    def _read(self) -> Table:
        if self._wandb is not None:
            return self._wandb.read()
        if not self.path.is_dir():
            return self._read_file(self.path)
        self._kind, paths = find_log(self.path, self._kind, points=self.points)
        return self._read_file(paths[0]) if self._kind == "file" else read_directory(self._kind, paths, self.path)

    def _read_file(self, path: Path) -> Table:
        if path == self._file and self._end and bytes_before(path, self._end) != self._tail:
            self.restarts += 1
            self._earlier += [self._last] if self._last is not None else []
            self._end = 0
        self._file = path  # another one is such as the trainer_state.json of the next checkpoint
        table = read_file(path, growing=True)
        # a document, such as trainer_state.json, is written anew each time
        self._end = path.stat().st_size if table.grows else 0
        self._tail = bytes_before(path, self._end)
        return table


def bytes_before(path: Path, end: int) -> bytes:
    """Return the bytes of a file before a position, as far as it has them."""
    with path.open("rb") as file:
        file.seek(max(0, end - CHECKED_BYTES))
        return file.read(min(end, CHECKED_BYTES))


def stamp_of(path: Path) -> Stamp:
    """Return what changes with a log: the size and time of its file, or of all files in its directory.

    Raises:
        TooEarly: There is no such file.
        Away: The disk does not answer.
    """
    try:
        if not path.is_dir():
            files = [path, *(Path(f"{path}{end}") for end in SIDE_FILES)]
            return tuple(sorted(stamped(file) for file in files if file == path or file.exists()))
        entries: list[Path] = []
        for place, _, names in os.walk(path):
            entries += [Path(place, name) for name in names]
            if len(entries) > MOST_ENTRIES:  # the reader says so
                break
        return tuple(sorted(stamped(file) for file in entries if file.exists()))
    except FileNotFoundError as error:
        raise TooEarly(trouble(error)) from error
    except OSError as error:
        raise Away(trouble(error)) from error


def stamped(file: Path) -> tuple[str, int, int, int]:
    """Return the stamp of one file."""
    status = file.stat()
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns
