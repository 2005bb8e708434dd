"""The state of a run directory, from what is on disk, so that it works over a shared directory. Does not import torch.

Only the ends of the row files are read: the state of a run of any length costs a few milliseconds.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalerl.config import RunConfig, read_config
from scalerl.config.base import ConfigError
from scalerl.training.status import BEAT_S, Status, read_status

DEAD_AFTER_S = 12 * BEAT_S
"""A run whose sign of life is older than this is dead."""

SILENT_S = 120.0
"""The same for a run without status.json (of an older version): its rows must be no older, or ten steps."""

TAIL_BYTES = 1 << 16
"""End of a row file that is read."""

RECENT_STEPS = 50
"""Steps whose median duration is the rate."""

STATES = {
    "training": "steps are being done",
    "waiting": "the process lives, and no step was done for long: a start, an evaluation, or a slow batch",
    "finished": "all steps are done, or a condition of `stop_when` holds",
    "stopped": "stopped in order; `scalerl resume` continues it",
    "failed": "ended by an error",
    "dead": "no sign of life: killed, or its machine is gone; `scalerl resume` continues it",
    "unreadable": "its config.toml cannot be read",
}
"""What a state means."""


@dataclass(frozen=True, slots=True)
class RunState:
    """How a run stands.

    Example: RunState(path=Path("runs/mine"), name="mine", state="training", detail="", step=120, steps=480,
        step_s=1.5, left_s=540.0, row={"step": 120, ...}, points={"arithmetic": {"step": 100, "pass_rate": 0.41, ...}},
        config=RunConfig(...))
    """

    path: Path
    name: str
    state: str
    """Key of ``STATES``."""
    detail: str
    """More about the state in one sentence; may be empty."""
    step: int
    steps: int
    step_s: float
    """Median duration of the recent steps, seconds; NaN before the second."""
    left_s: float
    """Seconds to the last step at that rate, without evaluations; NaN where it is not training or not known."""
    row: Mapping[str, Any]
    """The last row of metrics.jsonl; empty before the first step."""
    points: Mapping[str, Mapping[str, Any]]
    """The last evaluation of each task, a row of points.jsonl."""
    config: RunConfig | None
    """None where it cannot be read."""

    @property
    def main_points(self) -> dict[str, Mapping[str, Any]]:
        """The last evaluations of the tasks that are trained, without suites."""
        main = self.config.main_tasks if self.config else tuple(self.points)
        return {task: point for task, point in self.points.items() if task in main}


def run_state(path: Path, now: float | None = None) -> RunState:
    """Return the state of a run directory.

    Args:
        path: of the directory.
        now: seconds since 1970; None is the clock's.
    """
    now = time.time() if now is None else now
    rows, points = sound_rows(tail_rows(path / "metrics.jsonl")), sound_points(tail_rows(path / "points.jsonl"))
    try:
        config = saved_config(path, modified(path / "config.toml"))
    except ConfigError as error:
        return state_of(path, rows, points, None, ("unreadable", str(error)))
    return state_of(path, rows, points, config, sign_of_life(path, rows, config, now))


def state_of(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    config: RunConfig | None,
    found: tuple[str, str],
) -> RunState:
    """Return the state of a run from rows that were read already.

    Args:
        path: of the run directory.
        rows: the last rows of metrics.jsonl.
        points: the last rows of points.jsonl.
        config: of the run.
        found: state and detail, as of ``sign_of_life``.
    """
    state, detail = found
    step = int(rows[-1]["step"]) if rows else 0
    steps = config.steps if config else step
    step_s = pace(rows)
    left_s = step_s * (steps - step) if state in ("training", "waiting") else math.nan
    last = {str(point["task"]): point for point in points}
    return RunState(path, path.name, state, detail, step, steps, step_s, left_s, rows[-1] if rows else {}, last, config)


def sign_of_life(path: Path, rows: Sequence[Mapping[str, Any]], config: RunConfig, now: float) -> tuple[str, str]:
    """Return state and detail of a run, from its status.json and the age of its files.

    Args:
        path: of the run directory.
        rows: the last rows of metrics.jsonl.
        config: of the run.
        now: seconds since 1970.
    """
    status = read_status(path)
    written = max(modified(path / name) for name in ("metrics.jsonl", "points.jsonl", "config.toml"))
    quiet_s, step_s = now - written, pace(rows)
    slow_s = max(30.0, 5 * step_s if math.isfinite(step_s) else 0.0)
    if status is None:
        return _without_status(rows, config, quiet_s, step_s)
    if status.state != "running":
        return status.state if status.state in STATES else "dead", status.message
    # the time at which the file was written, by the clock of the file system, not by that of the run's machine
    silent_s = now - modified(path / "status.json")
    if silent_s > DEAD_AFTER_S:
        return "dead", f"no sign of life for {duration(silent_s)} ({_place(status)})"
    if not rows:
        return "waiting", "no step is done yet: the start, the first evaluation or the first batch"
    if quiet_s > slow_s:
        return "waiting", f"nothing was written for {duration(quiet_s)}: an evaluation, a checkpoint or a slow batch"
    return "training", ""


def _without_status(
    rows: Sequence[Mapping[str, Any]], config: RunConfig, quiet_s: float, step_s: float
) -> tuple[str, str]:
    if rows and int(rows[-1]["step"]) >= config.steps:
        return "finished", ""
    if quiet_s < max(SILENT_S, 10 * step_s if math.isfinite(step_s) else 0.0):
        return ("training", "") if rows else ("waiting", "no step is done yet")
    return "dead", f"nothing was written for {duration(quiet_s)}"


def summary_line(found: RunState) -> str:
    """Return a run's state in one line: "training, step 120/480, 1.5 s a step, 9 min left, pass rate 0.412 ± 0.006"."""
    parts = [found.state, f"step {found.step}/{found.steps}"]
    if found.state in ("training", "waiting") and math.isfinite(found.step_s):
        parts += [f"{found.step_s:.3g} s a step", f"{duration(found.left_s)} left"]
    several = len(found.main_points) > 1
    for task, point in found.main_points.items():
        parts.append(f"pass rate{f' of {task}' if several else ''} {point['pass_rate']:.3f} ± {point['stderr']:.3f}")
    return ", ".join(parts)


def find(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run directories and the studies at or below paths: a run, a study, or a directory that holds them.

    Raises:
        ConfigError: a path that does not exist.
    """
    runs: dict[Path, None] = {}
    studies: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such directory; name runs, studies, or a directory that holds them")
        for one in [path, *_children(path)]:
            if (one / "study.toml").exists():
                studies[one] = None
                runs |= dict.fromkeys(run for arm in _children(one) for run in _children(arm) if is_run(run))
            elif is_run(one):
                runs[one] = None
    return list(runs), list(studies)


def is_run(path: Path) -> bool:
    """Return whether a directory is one of a run."""
    return (path / "config.toml").is_file()


def tail_rows(path: Path, size: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """Return the complete rows in the last bytes of a JSONL file; a line that is no JSON object is left out."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            start = file.seek(max(0, end - size))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    found = (parsed(line) for line in lines[1 if start else 0 : -1])
    return [row for row in found if row is not None]


def sound_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that have a step; what else a row says is looked at where it is used."""
    return [row for row in rows if isinstance(row.get("step"), int)]


def sound_points(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that can be points of a curve, with NaN for an unknown pass rate or standard error."""
    found = []
    for row in rows:
        compute = [row.get(name) for name in ("step", "device_hours", "flops", "tokens")]
        measured = {name: math.nan if row.get(name) is None else row[name] for name in ("pass_rate", "stderr")}
        numbers = [*compute, *measured.values()]
        if isinstance(row.get("task"), str) and all(isinstance(value, int | float) for value in numbers):
            found.append({**row, **measured})
    return found


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None where it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the median duration of the last steps in seconds; NaN without any."""
    known = [row["step_s"] for row in rows[-RECENT_STEPS:] if isinstance(row.get("step_s"), float | int)]
    return statistics.median(known) if known else math.nan


def modified(path: Path) -> float:
    """Return when a file was written, seconds since 1970; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def duration(seconds: float) -> str:
    """Return a duration in words: 40 s, 9 min, 3.2 h, 2.1 days; "-" where it is not known."""
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
    """Return a run's configuration, read once for each time that it was written.

    Raises:
        ConfigError: it cannot be read.
    """
    return read_config(path / "config.toml", [])


def _children(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []


def _place(status: Status) -> str:
    return f"process {status.pid} on {status.host}"
