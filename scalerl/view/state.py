"""The state of a run, from the files in its directory. Works over a shared file system and does not import torch.

Only the ends of JSONL files are read: the state of a run of any length takes a few milliseconds. Files that cannot be
read are a state, not an error.
"""

from __future__ import annotations

import errno
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalerl.config import RunConfig, read_config
from scalerl.core.errors import ConfigError
from scalerl.core.files import trouble
from scalerl.core.rows import RowFile
from scalerl.training.status import BEAT_S, PHASES, Status, read_status
from scalerl.types import EvalPoint

DEAD_AFTER_S = 12 * BEAT_S
"""Seconds without a sign of life after which a run counts as dead."""

RECENT_STEPS = 50
"""Number of recent steps for the median duration."""

STATES = {
    **PHASES,
    "waiting": "the process is alive, but no step has finished for a while",
    "finished": "all steps are done, or a condition of `stop_when` holds",
    "stopped": "stopped with a checkpoint; `scalerl resume` continues it",
    "failed": "ended by an error",
    "dead": "no sign of life: the run was killed, or its machine failed; `scalerl resume` continues it",
    "unreadable": "its files cannot be read",
}
"""Meanings of the states."""

ALIVE = (*PHASES, "waiting")
"""States of a run whose process is alive."""


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run.

    Example: RunState(path=Path("runs/mine"), name="mine", state="training", detail="", step=120, steps=480,
        step_s=1.5, left_s=540.0, row={"step": 120, ...}, points={"arithmetic": EvalPoint(...)}, config=RunConfig(...))
    """

    path: Path
    name: str
    state: str
    """Key of `STATES`."""
    detail: str
    """One sentence about the state; may be empty."""
    step: int
    steps: int
    step_s: float
    """Median duration of the recent steps, seconds; NaN before the first step."""
    left_s: float
    """Estimated seconds to the last step, without evaluations; NaN if unknown or if the run is not training."""
    row: Mapping[str, Any]
    """The last row of metrics.jsonl; empty before the first step."""
    points: Mapping[str, EvalPoint]
    """The last evaluation of each task."""
    config: RunConfig | None
    """Configuration of the run; None if it cannot be read."""

    @property
    def main_points(self) -> dict[str, EvalPoint]:
        """The last evaluation of each trained task, without suites."""
        main = self.config.main_tasks if self.config else tuple(self.points)
        return {task: point for task, point in self.points.items() if task in main}


def run_state(path: Path, now: float | None = None) -> RunState:
    """Return the state of a run directory.

    Args:
        path: Run directory.
        now: Current time, seconds since 1970; None: read the clock.
    """
    now = time.time() if now is None else now
    metrics, evaluations = RowFile(path / "metrics.jsonl"), RowFile(path / "points.jsonl")
    rows = sound_rows(metrics.tail())
    points = [point for row in evaluations.tail() if (point := EvalPoint.of(row))]
    try:
        config = saved_config(path, modified(path / "config.toml"))
    except ConfigError as error:
        return state_of(path, rows, points, None, ("unreadable", str(error)))
    problem = metrics.problem or evaluations.problem
    life = ("unreadable", problem) if problem else sign_of_life(path, rows, now)
    return state_of(path, rows, points, config, life)


def state_of(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    points: Iterable[EvalPoint],
    config: RunConfig | None,
    found: tuple[str, str],
) -> RunState:
    """Return the state of a run from rows that have been read.

    Args:
        path: Run directory.
        rows: The last rows of metrics.jsonl.
        points: The last evaluations, of every task.
        config: Configuration of the run.
        found: State and detail from `sign_of_life`.
    """
    state, detail = found
    step = int(rows[-1]["step"]) if rows else 0
    steps = config.steps if config else step
    step_s = pace(rows)
    left_s = step_s * (steps - step) if state in ALIVE else math.nan
    last = {point.task: point for point in points}
    return RunState(path, path.name, state, detail, step, steps, step_s, left_s, rows[-1] if rows else {}, last, config)


def sign_of_life(path: Path, rows: Sequence[Mapping[str, Any]], now: float) -> tuple[str, str]:
    """Return state and detail of a run, from its status.json and the age of its files.

    Args:
        path: Run directory.
        rows: The last rows of metrics.jsonl.
        now: Current time, seconds since 1970.
    """
    status = read_status(path)
    written = max(modified(path / name) for name in ("metrics.jsonl", "points.jsonl", "config.toml"))
    quiet_s, step_s = now - written, pace(rows)
    slow_s = max(30.0, 5 * step_s if math.isfinite(step_s) else 0.0)
    if status is None:
        return "dead", "no readable status.json"
    if status.state != "running":
        return status.state if status.state in STATES else "dead", status.message
    # the modification time follows the clock of the file system, which may differ from that of the run's machine
    silent_s = now - modified(path / "status.json")
    if silent_s > DEAD_AFTER_S:
        return "dead", f"no sign of life for {duration(silent_s)} ({_place(status)})"
    if status.phase != "training" and status.phase in PHASES:
        return status.phase, status.message
    if not rows:
        return "waiting", "the first batch is not complete yet"
    if quiet_s > slow_s:
        return "waiting", f"nothing written for {duration(quiet_s)}: a slow batch"
    return "training", ""


def find(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run directories and studies at or below paths: runs, studies, or directories that contain them.

    Raises:
        ConfigError: A path does not exist.
    """
    runs: dict[Path, None] = {}
    studies: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such directory; name runs, studies, or a directory that contains them")
        for one in [path, *_children(path)]:
            if os.path.isfile(one / "study.toml"):
                studies[one] = None
                runs |= dict.fromkeys(run for arm in _children(one) for run in (arm, *_children(arm)) if is_run(run))
            elif is_run(one):
                runs[one] = None
    return list(runs), list(studies)


def is_run(path: Path) -> bool:
    """Return whether a directory is a run, or may be one but cannot be read."""
    return os.path.exists(path / "config.toml") or _closed(path)


def sound_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that have a step; other columns are checked where they are used."""
    return [row for row in rows if isinstance(row.get("step"), int)]


def pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the median duration of the last steps in seconds; NaN without steps."""
    known = [float(row["step_s"]) for row in rows[-RECENT_STEPS:] if isinstance(row.get("step_s"), float | int)]
    return statistics.median(known) if known else math.nan


def modified(path: Path) -> float:
    """Return the modification time of a file, seconds since 1970; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def duration(seconds: float) -> str:
    """Return a duration as text: 40 s, 9 min, 3.2 h, 2.1 days; "-" if unknown."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


@lru_cache(maxsize=256)
def saved_config(path: Path, written: float) -> RunConfig:
    """Return a run's configuration, cached by its modification time.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    try:
        return read_config(path / "config.toml", [])
    except ConfigError:
        if _closed(path):
            raise ConfigError(trouble(PermissionError(errno.EACCES, "", str(path)))) from None
        raise


def _closed(path: Path) -> bool:
    """Return whether a directory cannot be read."""
    return os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def _children(path: Path) -> list[Path]:
    try:
        return sorted(one for one in path.iterdir() if os.path.isdir(one))
    except OSError:  # a file, or a directory that `is_run` reports
        return []


def _place(status: Status) -> str:
    return f"process {status.pid} on {status.host}"
