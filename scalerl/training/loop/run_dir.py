"""The run directory: configuration and row files, which loggers, pages and fits read.

docs/metrics.md lists the files and their contents. On a resume, `rewind` truncates the row files to the rows that the
checkpoint counts, so that the files of a resumed run equal those of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import sync, take_hold, write_whole
from scalerl.core.manifest import BLOCK_BYTES, Damaged, add_to_digest, digest, new_digest
from scalerl.core.outputs import check_encodable, check_new_directory, check_stays_inside
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied
from scalerl.core.rows import RowFile
from scalerl.core.run_files import (
    CONFIG,
    EVENTS,
    LOCK,
    METRICS,
    POINTS,
    RECORDS,
    ROLLOUTS,
    RUN,
    SAMPLES,
    STATUS,
)
from scalerl.core.types import EvalPoint
from scalerl.training.config import RunConfig, read_config, to_toml
from scalerl.training.loop.run_info import run_info

NO_RESULTS = (EVENTS, ROLLOUTS, SAMPLES, RECORDS)
"""Row files that are not results. RECORDS has the exact tokens of the rows of SAMPLES, which have its offsets."""

ROW_FILES = (METRICS, POINTS, *NO_RESULTS)


NEW_FILES = (CONFIG, RUN, STATUS, "loggers.json", LOCK)
NEW_DIRECTORIES = ("rollouts", "checkpoints", "weights", "servers", "tensorboard", "wandb")
"""What a run makes before its first results, apart from row files."""


class RunDirectory:
    """The files of one run, locked by one process at a time."""

    def __init__(self, path: Path, config: RunConfig, new_directories: Sequence[Path] | None = None) -> None:
        """Open and lock an existing run directory; `create` and `resume` call this.

        Args:
            path: The directory.
            config: Configuration of the run.
            new_directories: Those made for a new run, innermost first; None: the run exists.

        Raises:
            ConfigError: Another process has locked it, or a link in it leads outside.
        """
        self.path, self.config, self._new_directories = path, config, new_directories
        self._lock = take_hold(path)
        self._digests: dict[str, tuple[int, Any]] = {}  # bytes digested of each row file, and their hash
        if self._lock is None:
            raise ConfigError(f"{path}: another process is training in this run directory; wait for it or stop it")
        try:
            check_stays_inside(path)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Start a new run.

        Raises:
            ConfigError: The path is a file, a run, or a directory with files in it, which a run could overwrite.
        """
        if (path / "config.toml").exists():
            raise ConfigError(
                f"{path} already holds a run; continue it with `scalerl resume {path}`, or give another --run-dir. "
                "Nothing was changed"
            )
        check_encodable(path, "--run-dir")
        check_new_directory(path, "--run-dir")
        rollouts = path / "rollouts"
        new_directories = [place for place in (rollouts, *rollouts.parents) if not place.exists()]
        rollouts.mkdir(parents=True, exist_ok=True)
        run = cls(path, config, new_directories)
        run.save_config(config)
        return run

    @classmethod
    def resume(cls, path: Path) -> RunDirectory:
        """Open an existing run with its configuration.

        Raises:
            ConfigError: There is no run, another process has locked it, or a link in it leads outside.
        """
        check_encodable(path, "the run directory")
        run = cls(path, saved_config(path))
        (path / "rollouts").mkdir(exist_ok=True)
        return run

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Discard a new run if the block fails."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the files of a new run that has no results, so that its directory is free again, and unlock it.

        A run that existed before keeps its files, and so does one in which a process died: its traceback is in a log.
        Directories that existed before stay.
        """
        if self._new_directories is not None and not any(self.path.glob("*.log")):
            for name in (*NEW_FILES, *ROW_FILES):
                (self.path / name).unlink(missing_ok=True)
            for name in NEW_DIRECTORIES:
                shutil.rmtree(self.path / name, ignore_errors=True)
            for place in self._new_directories:
                with suppress(OSError):  # it is gone, or contains other files
                    place.rmdir()
        self.close()

    def save_config(self, config: RunConfig) -> None:
        """Write config.toml and run.json."""
        self.config = config
        write_whole(self.path / CONFIG, to_toml(config))
        write_whole(self.path / RUN, run_info(config).to_json())

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a JSONL file; numbers that are not finite become null."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({k: _finite(v) for k, v in row.items()}) + "\n" for row in rows)

    def add_samples(self, rows: Sequence[dict[str, Any]], records: Iterable[bytes]) -> None:
        """Append rows to rollouts/samples.jsonl, each with the place of its record: [offset, bytes] in samples.bin.

        The records are written first, so that a kill leaves no row without its record.
        """
        with (self.path / RECORDS).open("ab") as file:
            for row, record in zip(rows, records, strict=True):
                row["record"] = [file.tell(), file.write(record)]
        self.append(SAMPLES, rows)

    def add_points(self, points: Iterable[EvalPoint]) -> None:
        """Append rows to points.jsonl, and force them to disk."""
        self.append(POINTS, [point.to_dict() for point in points])
        sync(self.path / POINTS)

    def points(self) -> list[EvalPoint]:
        """Return the points in points.jsonl."""
        file = RowFile(self.path / POINTS)
        rows = [EvalPoint.of(line.row) for line in file.new_lines()]
        points = [point for point in rows if point is not None]
        if broken := len(rows) - len(points) + file.broken or file.problem:
            raise ConfigError(
                f"{file.path}: {file.problem or f'{broken} rows cannot be read'}; restore the file as the run wrote "
                "it. Nothing was changed"
            )
        return points

    def cursors(self) -> dict[str, int]:
        """Return the sizes of the row files for a checkpoint, after forcing their rows to disk."""
        existing = [name for name in ROW_FILES if (self.path / name).exists()]
        for name in existing:
            sync(self.path / name)
        return {name: (self.path / name).stat().st_size if name in existing else 0 for name in ROW_FILES}

    def row_digests(self, cursors: Mapping[str, int]) -> dict[str, str]:
        """Return the XXH3 digest of the rows that a checkpoint counts, by file; only new rows are read."""
        for name, size in cursors.items():
            if size:
                done, running = self._digests.get(name, (0, new_digest()))
                add_to_digest(running, self.path / name, done, size)
                self._digests[name] = (size, running)
        return {name: self._digests[name][1].hexdigest() for name, size in cursors.items() if size}

    def check_rows(self, state: Mapping[str, Any]) -> None:
        """Check that the rows which a checkpoint counts exist. Samples of texts may be missing; they are not results.

        Args:
            state: Trainer's part of the checkpoint.

        Raises:
            Damaged: A file is shorter, or its beginning has other contents.
        """
        for name, size in state.get("cursors", {}).items():
            if name not in NO_RESULTS and (fault := self._row_fault(name, size, state)):
                raise Damaged(fault)

    def rewind(self, state: Mapping[str, Any]) -> list[str]:
        """Truncate the row files to the rows that a checkpoint counts, and return notes for the user.

        Args:
            state: Trainer's part of a checkpoint that passed `check_rows`; empty to start over.
        """
        cursors, notes = state.get("cursors", {}), []
        for name in ROW_FILES:
            path, size = self.path / name, cursors.get(name, 0)
            if fault := self._row_fault(name, size, state):
                notes.append(f"{fault}; the run continues with the samples that exist")
                size = _whole_rows(path) if path.exists() else 0
            if path.exists():
                os.truncate(path, size)
        self._digests.clear()
        return notes

    def _row_fault(self, name: str, size: int, state: Mapping[str, Any]) -> str:
        """Return how a row file differs from what a checkpoint counts, or an empty string."""
        path, expected = self.path / name, state.get("row_digests", {}).get(name)
        length = path.stat().st_size if path.exists() else 0
        if length < size:
            return f"{name} has {length} bytes, and the checkpoint counts {size}: rows are missing"
        if expected and digest(path, size) != expected:
            return f"the first {size} bytes of {name} are not the rows that the checkpoint counts"
        return ""


def _whole_rows(path: Path) -> int:
    """Return the number of bytes of a file up to the end of its last whole row."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            if (newline := file.read(end - start).rfind(b"\n")) >= 0:
                return start + newline + 1
            end = start
    return 0


def recorded(error: ProcessDied | PluginError, directory: Path) -> str:
    """Append the traceback of a failed process or user function to errors.log; return the message with its path.

    Args:
        error: The error; without a traceback nothing is written.
        directory: The run directory.
    """
    if not error.trace:
        return str(error)
    path = directory / "errors.log"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n{error.trace.rstrip()}\n\n")
    except OSError as full:  # a full disk may be the cause
        return f"{error} (its traceback could not be written to {path}: {full.strerror})"
    return f"{error} (traceback: {path})"


def saved_config(path: Path) -> RunConfig:
    """Return the configuration of a run directory.

    Raises:
        ConfigError: There is no run.
    """
    if not (path / "config.toml").exists():
        raise ConfigError(f"{path}: no run here (no config.toml); start one with `scalerl train --run-dir {path}`")
    return read_config(path / "config.toml", [])


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
