"""A watched run: new rows, evaluations, warnings and fits."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.config.overrides import read_toml
from scalerl.core.errors import ConfigError
from scalerl.core.rows import RowFile
from scalerl.scaling import CurveError
from scalerl.types import EvalPoint
from scalerl.view.falling import KEPT
from scalerl.view.fits import TaskFit
from scalerl.view.metrics import GROUPS, METRICS, fall, level_of, warnings
from scalerl.view.outlook import curve_of
from scalerl.view.rollouts import RolloutIndex
from scalerl.view.series import Columns, bucketed, number
from scalerl.view.state import (
    RunState,
    modified,
    saved_config,
    sign_of_life,
    sound_rows,
    state_of,
)
from scalerl.view.summary import data_note, default_axis

SHOWN = 2000
"""Number of evaluations above which the figure of a curve leaves some out."""

LIFE_S = 2.0
"""Seconds between checks of the sign of life."""


class WatchedRun:
    """Follows one run directory. Not thread-safe: hold the watcher's lock."""

    def __init__(self, path: Path, name: str, study: str = "") -> None:
        """Read the ends of the run's files.

        Args:
            path: Run directory.
            name: Name on the page.
            study: Id of the study that contains the run; empty: none.
        """
        self.path, self.name, self.study, self.id = path, name, study, id_of(path)
        self.fits: dict[str, TaskFit] = {}
        """Latest fit of each task; set by the watcher."""
        self.version = 0
        """Increases with every change."""
        self.rollouts = RolloutIndex(path)
        self._tail = RowFile(path / "metrics.jsonl")
        self._points_file = RowFile(path / "points.jsonl")
        self._rows: deque[dict[str, Any]] = deque(sound_rows(self._tail.tail()), maxlen=KEPT)
        self._points: dict[str, list[EvalPoint]] = {}
        self._strange = 0
        self._history: Columns | None = None
        self._history_file = RowFile(path / "metrics.jsonl")
        self._config: RunConfig | None = None
        self._life, self._looked = ("waiting", ""), -math.inf
        self._config_written = -1.0
        self._falls: dict[str, str | None] = {}

    def poll(self, now: float) -> bool:
        """Read new rows; return whether anything changed.

        Args:
            now: Seconds since 1970.
        """
        restarts = self._tail.restarts
        lines = sound_rows(line.row for line in self._tail.new_lines())
        if self._tail.restarts != restarts:
            self._rows.clear()
        self._rows += lines
        new_points = self._read_points()
        changed = bool(lines) or new_points or self._tail.restarts != restarts
        if changed or now - self._looked >= LIFE_S:
            changed |= self._look(now)
        if self._history is not None:
            self._read_history()
        if new_points:
            self._falls = {task: self._fall(task) for task in self.tasks}
        self.version += changed
        return changed

    def failed(self, error: BaseException) -> bool:
        """Give the run the state `unreadable` after an unexpected error; return whether the state changed."""
        before, self._life = self._life, ("unreadable", f"{type(error).__name__}: {error}")
        return self._life != before

    def _look(self, now: float) -> bool:
        """Check the configuration and the sign of life; return whether the state changed."""
        self._looked = now
        written, before = modified(self.path / "config.toml"), self._life
        problem = self._tail.problem or self._points_file.problem
        if written != self._config_written:
            try:
                self._config, self._config_written = saved_config(self.path, written), written
            except ConfigError as error:
                problem = str(error)
        if problem:
            self._life = ("unreadable", problem)
        elif self._config is not None:
            self._life = sign_of_life(self.path, list(self._rows), now)
        return self._life != before

    def _read_points(self) -> bool:
        restarts = self._points_file.restarts
        found = [EvalPoint.of(line.row) for line in self._points_file.new_lines()]
        again = self._points_file.restarts != restarts
        if again:
            self._points, self._strange = {}, 0
        for point in found:
            if point is None:
                self._strange += 1
            else:
                self._points.setdefault(point.task, []).append(point)
        return bool(found) or again

    def _read_history(self) -> None:
        assert self._history is not None
        restarts = self._history_file.restarts
        for line in self._history_file.new_lines():
            if self._history_file.restarts != restarts:
                restarts = self._history_file.restarts
                self._history.clear()
            if sound_rows([line.row]):
                self._history.add(line.row)

    # --------------------------------------------------------------------------------------------------------- summary

    @property
    def state(self) -> RunState:
        """State of the run."""
        points = [own[-1] for own in self._points.values()]
        return state_of(self.path, list(self._rows), points, self._config, self._life)

    @property
    def axis(self) -> str:
        """Compute axis of the curve."""
        return default_axis(self._config) if self._config else "step"

    @property
    def tasks(self) -> list[str]:
        """Tasks with evaluations, without suites."""
        main = self._config.main_tasks if self._config else self._points
        return [task for task in self._points if task in main]

    def points(self, task: str) -> list[EvalPoint]:
        """Return the evaluations of a task."""
        return self._points.get(task, [])

    def _fall(self, task: str) -> str | None:
        try:
            return fall(curve_of(self.points(task), self.axis), list(self._rows))
        except CurveError:  # too few points
            return None

    def warnings(self) -> list[str]:
        """Return the warnings, most important first."""
        found = [text for text in self._falls.values() if text]
        if self._config is not None:
            found += warnings(list(self._rows), self._config)
        broken = self._tail.broken + self._points_file.broken + self._strange
        return [*found, f"{broken} lines of metrics.jsonl and points.jsonl cannot be read"] if broken else found

    def summary(self) -> dict[str, Any]:
        """Return the run's entry in the list, as JSON values."""
        state = self.state
        return {
            "id": self.id,
            "name": self.name,
            "path": str(self.path),
            "study": self.study,
            "version": self.version,
            "state": state.state,
            "detail": state.detail,
            "step": state.step,
            "steps": state.steps,
            "step_s": or_none(state.step_s),
            "left_s": or_none(state.left_s),
            "points": sum(map(len, self._points.values())),
            "tasks": {task: self._task(task) for task in self.tasks},
            "warnings": self.warnings(),
            "about": about(self._config) if self._config else "",
        }

    def _task(self, task: str) -> dict[str, Any]:
        last = self.points(task)[-1]
        found = self.fits.get(task)
        return {
            "pass_rate": or_none(last.pass_rate),
            "stderr": or_none(last.stderr),
            "step": last.step,
            "evaluations": len(self.points(task)),
            "fit": found.to_dict() if found else None,
        }

    def curve(self, task: str) -> dict[str, Any]:
        """Return the curve of a task: the current points and the traces of the latest fit."""
        points, found = self.points(task), self.fits.get(task)
        points = points[:: len(points) // SHOWN + 1]
        x = [or_none(float(getattr(point, self.axis))) for point in points]
        y = [or_none(point.pass_rate) for point in points]
        error = [or_none(point.stderr) for point in points]
        return {
            "axis": self.axis,
            "x": x,
            "y": y,
            "stderr": error,
            "step": [point.step for point in points],
            "traces": list(found.traces) if found else [],
        }

    # --------------------------------------------------------------------------------------------------------- metrics

    def history(self) -> Columns:
        """Return all rows as columns; the first call reads the whole file."""
        if self._history is None:
            self._history = Columns(("step", *METRICS))
            self._read_history()
        return self._history

    def metrics(self, places: int) -> list[dict[str, Any]]:
        """Return every metric with its meaning, last value, and a series of at most `places` points."""
        columns = self.history()
        step_N = columns.column("step")
        found = []
        for name, metric in METRICS.items():
            value_N = columns.column(name)
            last = number(self._rows[-1].get(name)) if self._rows else math.nan
            if not np.isfinite(value_N).any():
                continue  # for example router metrics of a dense model
            found.append(
                {
                    "name": name,
                    "group": metric.group,
                    "label": metric.label,
                    "meaning": metric.meaning,
                    "unit": metric.unit,
                    "share": metric.share,
                    "last": or_none(last),
                    "level": level_of(name, last) if math.isfinite(last) else "",
                    "bounds": [*metric.above, *metric.below],
                    **bucketed(step_N, value_N, places),
                }
            )
        return sorted(found, key=lambda one: GROUPS.index(one["group"]))

    def series(self, name: str, low: float, high: float, places: int) -> dict[str, list[float | None]]:
        """Return a series of one metric between two steps."""
        columns = self.history()
        part = columns.between(low, high)
        return bucketed(columns.column("step")[part], columns.column(name)[part], places)

    def config_fields(self) -> dict[str, str]:
        """Return every field of config.toml by its dotted name; empty if it cannot be read."""
        try:
            return dict(_flat(read_toml(self.path / "config.toml"), ""))
        except (OSError, ConfigError):  # the state is "unreadable" then
            return {}


RULES = {
    "arithmetic": "The arithmetic is computed from left to right, modulo 10.",
    "programs": "A program is computed from left to right, modulo 10.",
}
"""What a reader must know about the lab's tasks, by kind."""


def about(config: RunConfig) -> str:
    """Return what a run does, in a few sentences for readers who do not know it."""
    recipe, note = config.recipe, data_note(config)
    model = config.model.path if isinstance(config.model, HuggingFaceModel) else "a tiny Qwen3"
    said = [
        f"Reinforcement learning of {model} on {', '.join(config.main_tasks)}.",
        f"Each step trains on the answers to {recipe.prompts_per_step} prompts, {recipe.generations_per_prompt} for "
        "each, and rewards the correct ones.",
        f"Every {config.evaluation.every} steps the model answers held-out prompts, which it is not trained on.",
        *dict.fromkeys(RULES[task.kind] for task in config.data if task.kind in RULES),
    ]
    return " ".join([*said, *([f"Data: {note}."] if note else [])])


def _flat(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
        return [pair for at, inner in enumerate(value) for pair in _flat(inner, f"{name}.{at}")]
    return [(name, str(value))]


def id_of(path: Path) -> str:
    """Return the id of a directory in the page's addresses."""
    return hashlib.sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def or_none(value: float) -> float | None:
    """Return a finite number unchanged, else None, because JSON has no NaN."""
    return value if math.isfinite(value) else None
