"""A run directory: plain files that loggers, pages and fits only read. It knows names and rows, no tensors.

Files and their contents are listed in docs/metrics.md. After a kill, `rewind` cuts the row files back to the rows that
the checkpoint knows, so that a resumed run's files are those of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalerl.config import HuggingFaceModel, RunConfig, read_config, to_toml
from scalerl.config.base import ConfigError
from scalerl.config.data import PromptFile
from scalerl.files import sync, take_hold, write_whole
from scalerl.outputs import check_new_directory
from scalerl.training.manifest import Damaged, digest
from scalerl.types import EvalPoint

ROW_FILES = ("metrics.jsonl", "points.jsonl", "rollouts.jsonl", "rollouts/samples.jsonl")


SAMPLES = ("rollouts.jsonl", "rollouts/samples.jsonl")
"""Those that hold texts for a reader and no results."""


class RunMoved(RuntimeError):
    """The run directory is not where it was; the message says where it is."""


class RunDirectory:
    """One run's files, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open an existing run directory and take hold of it; `create` and `resume` call this.

        Raises:
            ConfigError: another process holds it.
        """
        self.path = path
        self._lock = take_hold(path)
        self._digests: dict[str, tuple[int, Any]] = {}  # bytes digested so far of each row file, and their hash
        if self._lock is None:
            raise ConfigError(f"{path}: another process is training in this run directory; wait for it or stop it")

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Start a new run.

        Raises:
            ConfigError: the directory holds anything already.
        """
        check_empty(path)
        (path / "rollouts").mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run.save_config(config)
        return run

    @classmethod
    def resume(cls, path: Path) -> tuple[RunDirectory, RunConfig]:
        """Open a run that was started before; returns it with its configuration.

        Raises:
            ConfigError: there is no run.
        """
        config = saved_config(path)
        (path / "rollouts").mkdir(exist_ok=True)
        return cls(path), config

    def close(self) -> None:
        """Give up the hold."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def save_config(self, config: RunConfig) -> None:
        """Write config.toml at once."""
        self.write("config.toml", to_toml(config))

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a JSONL file; a number that is not finite becomes null."""
        self.check_place()
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({k: _finite(v) for k, v in row.items()}) + "\n" for row in rows)

    def add_points(self, points: Iterable[EvalPoint]) -> None:
        """Add rows to points.jsonl, and force them to disk."""
        self.append("points.jsonl", [point.to_dict() for point in points])
        with (self.path / "points.jsonl").open("rb") as file:
            os.fsync(file.fileno())

    def points(self) -> list[EvalPoint]:
        """Read points.jsonl back."""
        path = self.path / "points.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        try:
            return [EvalPoint(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path}: a row cannot be read ({error}); put the file back as the run wrote it. Nothing was changed"
            ) from None

    def write(self, name: str, text: str) -> None:
        """Write a small text file of the run, whole or not at all."""
        self.check_place()
        write_whole(self.path / name, text)

    def cursors(self) -> dict[str, int]:
        """Return the sizes of the row files, for a checkpoint; what is counted is on disk when this returns."""
        self.check_place()
        there = [name for name in ROW_FILES if (self.path / name).exists()]
        for name in there:
            sync(self.path / name)
        return {name: (self.path / name).stat().st_size if name in there else 0 for name in ROW_FILES}

    def row_digests(self, cursors: Mapping[str, int]) -> dict[str, str]:
        """Return the SHA-256 of the rows that a checkpoint counts, by file; only what is new since is read."""
        for name, size in cursors.items():
            if size:
                done, running = self._digests.get(name, (0, hashlib.sha256()))
                with (self.path / name).open("rb") as file:
                    file.seek(done)
                    running.update(file.read(size - done))
                self._digests[name] = (size, running)
        return {name: self._digests[name][1].hexdigest() for name, size in cursors.items() if size}

    def check_rows(self, state: Mapping[str, Any]) -> None:
        """Check that the rows which a checkpoint counts are there. Samples of texts may be gone: they are no result.

        Args:
            state: the trainer's part of the checkpoint; of an earlier version, which has no digests, only sizes count.

        Raises:
            Damaged: a file is shorter, or its beginning has other contents.
        """
        for name, size in state.get("cursors", {}).items():
            if name not in SAMPLES and (fault := self._row_fault(name, size, state)):
                raise Damaged(fault)

    def rewind(self, state: Mapping[str, Any]) -> list[str]:
        """Cut the row files back to what a checkpoint knew, and never make them longer; return notes for the user.

        Args:
            state: the trainer's part of a checkpoint that passed `check_rows`; empty to begin anew.
        """
        cursors, notes = state.get("cursors", {}), []
        for name in ROW_FILES:
            size = cursors.get(name, 0)
            if fault := self._row_fault(name, size, state):
                notes.append(f"{fault}; the run goes on with the samples that are there")
                size = self._whole_rows(name)
            if (self.path / name).exists():
                os.truncate(self.path / name, size)
        self._digests.clear()
        return notes

    def _row_fault(self, name: str, size: int, state: Mapping[str, Any]) -> str:
        """Return how a row file differs from what a checkpoint counts; empty where it does not."""
        path, expected = self.path / name, state.get("row_digests", {}).get(name)
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            return f"{name} has {found} bytes, and the checkpoint counts {size}: rows are missing"
        if expected and digest(path, size) != expected:
            return f"the first {size} bytes of {name} are not the rows that the checkpoint counts"
        return ""

    def _whole_rows(self, name: str) -> int:
        """Return the size of a row file up to its last complete line."""
        path = self.path / name
        return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0

    def check_place(self) -> None:
        """Refuse to write where this run is no more.

        Raises:
            RunMoved: its directory was moved, removed or replaced meanwhile; the message says where it is now.
        """
        if moved := self.moved():
            raise RunMoved(moved)

    def moved(self) -> str:
        """Return a message where the directory was moved, removed or replaced since it was opened; else nothing."""
        if self._lock is None:  # given up
            return ""
        own = os.fstat(self._lock)
        try:
            there = os.stat(self.path / ".lock")
            if (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino):
                return ""
        except OSError:
            pass
        if not own.st_nlink:
            return f"{self.path} was removed while the run was going on, with what was computed"
        held = Path(f"/proc/self/fd/{self._lock}")
        now = held.readlink().parent if held.exists() else "its new place"
        return (
            f"{self.path} was moved while the run was going on. What was computed is in {now}; continue with: "
            f"scalerl resume {now}"
        )


def check_empty(path: Path) -> None:
    """Refuse a run directory that holds anything: a run would overwrite a model, rows or notes that lie there.

    Raises:
        ConfigError: it is a file, a run, or a directory with files in it.
    """
    if (path / "config.toml").exists():
        raise ConfigError(
            f"{path} already holds a run; continue it with `scalerl resume {path}`, or give another --run-dir. "
            "Nothing was changed"
        )
    check_new_directory(path, "--run-dir")


def inputs_of(config: RunConfig) -> list[tuple[str, Path]]:
    """Return what a run reads from this machine: the fields, and the files and directories that they name."""
    files = [(f"data.{task.curve}.path", task.path) for task in config.data if isinstance(task, PromptFile)]
    model = [("model.path", config.model.path)] if isinstance(config.model, HuggingFaceModel) else []
    return [(name, Path(path)) for name, path in (*model, *files) if path]


def saved_config(path: Path) -> RunConfig:
    """Return the configuration of a run directory.

    Raises:
        ConfigError: there is no run.
    """
    if not (path / "config.toml").exists():
        raise ConfigError(f"{path}: no run here (no config.toml); start one with `scalerl train --run-dir {path}`")
    return read_config(path / "config.toml", [])


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
