"""Reads the log of a run that trains, again and again: only when it has changed, and of long texts only new lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from scalerl.core.files import trouble
from scalerl.importers.errors import Away, LogError, TooEarly
from scalerl.importers.formats import (
    EVENTS,
    FILE,
    Lines,
    Log,
    Rows,
    complete,
    find_log,
    lines_of,
    read_directory,
    read_file,
    read_wandb,
)
from scalerl.importers.points import Imported, of_logs, summarized, with_command
from scalerl.importers.tensorboard import MOST_ENTRIES, tensorboard_frame
from scalerl.importers.trackers import WandbRun, wandb_path
from scalerl.scaling.readers import CurveError

LONG = 1 << 20
"""Bytes of a text from which only its new lines are read. Of a shorter one the form may still change."""

CHECKED_BYTES = 128
"""Bytes before the end of the last look that must be unchanged; otherwise the file was cut back or replaced."""

SIDE_FILES = ("-wal",)
"""Ends of the names of files beside a SQLite database that have its newest rows."""

AT_ONCE = (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b")
"""Beginnings of texts that are always read as a whole: UTF-16, gz."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size in bytes and time of the last change in ns of each file of a log."""


class GrowingLog:
    """One log that grows: a file, the directory of a run, a tracker's store, or a run on wandb."""

    def __init__(self, path: Path, **choices: Any) -> None:
        """Prepare to read a log, which may not exist yet.

        Args:
            path: As for `importers.read`.
            choices: Those of `importers.read`.
        """
        self.path, self.choices = path, choices
        run = wandb_path(str(path))
        self._wandb = WandbRun(run) if run is not None else None
        self._stamp: Stamp | None = None
        self._text: GrowingText | None = None
        self._kind = ""
        self._open_files: dict[Path, Any] = {}
        self._earlier: list[Log] = []
        """Parts of the run in files that were since cut back or replaced (rotated)."""
        self._last: Log | None = None
        self.restarts = 0
        """Number of times that the file was cut back or replaced."""
        self._parted = 0
        self.ended = ""
        """How the run ended, if the log says so: "finished", "failed", ..."""

    def look(self) -> Imported | None:
        """Return the points so far; None if nothing has changed since the last call.

        Raises:
            TooEarly: The log lacks what later rows may bring.
            Away: The tracker or the disk does not answer now.
            CurveError: The log cannot be read, or needs a choice.
        """
        stamp = None if self._wandb else stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            return None
        self._stamp = None  # after an error, the next look reads again
        try:
            log = self._read()
        except LogError:
            raise
        except CurveError as error:
            raise with_command(error) from error
        except OSError as error:
            raise Away(trouble(error)) from error
        imported = self._points(log)
        self.ended = log.ended or ("finished" if summarized(log.frame) else "")
        self._stamp = stamp
        return imported

    def _read(self) -> Log:
        if self._wandb is not None:
            return read_wandb(self._wandb)
        if not self.path.is_dir():
            return self._read_text(self.path)
        kind, paths = find_log(self.path, self._kind)
        self._kind = kind
        if kind == EVENTS:
            frame = tensorboard_frame(paths, self.path, self._open_files)
            return Log(frame, "TensorBoard", self.path.name)
        return self._read_text(paths[0]) if kind == FILE else read_directory(kind, paths, self.path)

    def _read_text(self, path: Path) -> Log:
        if self._text is None or self._text.path != path:  # such as the trainer_state.json of the next checkpoint
            self._text = GrowingText(path)
        log = self._text.read()
        if self._text.restarts > self._parted:
            self.restarts, self._parted = self.restarts + 1, self._text.restarts
            if self._last is not None:
                self._earlier.append(self._last)
        self._last = log
        return log

    def _points(self, log: Log) -> Imported:
        """Return the points of the log, after the parts of the run that came before it.

        A file that begins again with the first steps is a new run, and not a further part.
        """
        imported = of_logs([log], paths=[self.path], **self.choices)
        if not self._earlier:
            return imported
        before = of_logs(self._earlier, **self.choices)
        first, start = (part.rows[0].get("step") for part in (imported, before))
        if first is None or start is None or first <= start:
            self._earlier = []
            return imported
        return of_logs([*self._earlier, log], **self.choices)


class GrowingText:
    """One file. Of a long text of lines only those are read that were added, up to the last line with an end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        """Number of times that a text of lines was cut back or replaced."""
        self._reader: Lines | Rows | None = None
        self._end, self._tail = 0, b""

    def read(self) -> Log:
        """Return all of the log; errors are those of `read_file`."""
        if self._end and not self._continues():
            self.restarts += 1
            self._reader, self._end, self._tail = None, 0, b""
        size = size_of(self.path)
        end = end_of_lines(self.path, size)
        if self._reader is not None:
            self._reader.add(complete(lines_of(self.path, False, "utf-8", self._end, end)))
            log = self._reader.log()
        else:
            log = read_file(self.path, size)
            if end >= LONG and not bytes_before(self.path, 2).startswith(AT_ONCE):
                self._reader = log.reader
        if log.reader is not None:  # a document, such as trainer_state.json, is written anew each time
            self._end, self._tail = end, bytes_before(self.path, end)
        return log

    def _continues(self) -> bool:
        return size_of(self.path) >= self._end and bytes_before(self.path, self._end) == self._tail


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it cannot be read, which `read_file` says."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def bytes_before(path: Path, end: int, most: int = CHECKED_BYTES) -> bytes:
    """Return at most `most` bytes of a file before a position; b"" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, end - most))
            return file.read(min(end, most))
    except OSError:
        return b""


def end_of_lines(path: Path, size: int) -> int:
    """Return the position after the last line end within the first bytes of a file; 0 without one."""
    place = size
    while place > 0:
        start = max(0, place - LONG)
        offset = bytes_before(path, place, LONG).rfind(b"\n")
        if offset >= 0:
            return start + offset + 1
        place = start
    return 0


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
