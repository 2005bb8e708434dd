"""The state of a run, from the files in its directory. Works over a shared file system and does not import torch.

Files that cannot be read are a state, not an error.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.core import run_files
from scalerl.core.errors import ConfigError
from scalerl.core.status import BEAT_S, PHASES, read_status

DEAD_AFTER_S = 12 * BEAT_S
"""Seconds without a sign of life after which a run counts as dead."""

RECENT_STEPS = 50
"""Number of recent steps for the median duration."""

ALIVE = (*PHASES, "waiting")
"""States of a run whose process is alive; a run is waiting if no step has finished for a while."""

STATES = (*ALIVE, "finished", "stopped", "failed", "dead", "unreadable")
"""All states. A dead run shows no sign of life: it was killed, or its machine failed."""


def sign_of_life(path: Path, rows: Sequence[Mapping[str, Any]], now: float) -> tuple[str, str]:
    """Return state and detail of a run, from its status.json and the age of its files.

    Args:
        path: Run directory.
        rows: The last rows of metrics.jsonl.
        now: Current time, seconds since 1970.
    """
    status = read_status(path)
    # the modification time follows the clock of the file system, which may differ from that of the run's machine
    quiet_s = now - max(modified(path / name) for name in (run_files.METRICS, run_files.POINTS, run_files.RUN))
    if status is None:
        return "dead", "no readable status.json"
    silent_s = now - modified(path / run_files.STATUS)
    if status.state != "running":
        return status.state if status.state in STATES else "dead", status.message
    if silent_s > DEAD_AFTER_S:
        return "dead", f"no sign of life for {duration(silent_s)} (process {status.pid} on {status.host})"
    if status.phase != "training" and status.phase in PHASES:
        return status.phase, status.message
    if not rows:
        return "waiting", "the first batch is not complete yet"
    step_s = pace(rows)
    if quiet_s > max(30.0, 5 * step_s if math.isfinite(step_s) else 0.0):
        return "waiting", f"nothing written for {duration(quiet_s)}: a slow batch"
    return "training", ""


def find(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run directories and studies at or below paths: runs, studies, or directories that contain them.

    Raises:
        ConfigError: A path does not exist.
    """
    runs: dict[Path, None] = {}
    studies: dict[Path, None] = {}
    check_there(paths)
    for path in paths:
        for place in [path, *_children(path)]:
            if run_files.is_study(place):
                studies[place] = None
                runs |= dict.fromkeys(
                    run for arm in _children(place) for run in (arm, *_children(arm)) if may_be_run(run)
                )
            elif may_be_run(place):
                runs[place] = None
    return list(runs), list(studies)


def latest(runs: Sequence[Path], most: int) -> list[Path]:
    """Return runs in their order; of more than `most`, those whose evaluations were written last."""
    if len(runs) <= most:
        return list(runs)
    chosen = set(sorted(runs, key=lambda run: modified(run / run_files.POINTS))[-most:])
    return [run for run in runs if run in chosen]


def has_runs(path: Path) -> bool:
    """Return whether there is a run or a study at or below a path."""
    return any(run_files.is_study(place) or may_be_run(place) for place in [path, *_children(path)])


def check_there(paths: Sequence[Path]) -> None:
    """Check that paths exist.

    Raises:
        ConfigError: A path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such directory; name runs, studies, or a directory that contains them")


def may_be_run(path: Path) -> bool:
    """Return whether a directory is a run, or may be one but cannot be read."""
    return run_files.is_run(path) or run_files.is_closed(path)


def pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the median duration of the last steps in seconds; NaN without steps."""
    durations = [float(row["step_s"]) for row in rows[-RECENT_STEPS:] if isinstance(row.get("step_s"), float | int)]
    return statistics.median(durations) if durations else math.nan


def modified(path: Path) -> float:
    """Return the modification time of a file, seconds since 1970; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def duration(seconds: float) -> str:
    """Return a duration as text: 40 s, 9 min, 3.2 h, 2.1 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _children(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [
                entry.name for entry in entries
                if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
            ]  # fmt: skip
        return [path / name for name in sorted(names)]
    except OSError:  # a file, or a directory that `may_be_run` reports
        return []
