"""A run as every reader sees it: rows, evaluations, forecasts and warnings, in memory or read from its directory."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.rows import TAIL_BYTES, RowFile, number
from scalerl.core.run_files import EVENTS, METRICS, POINTS, RUN, Metric, RunInfo, active_warnings, read_run
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import CurveError
from scalerl.reading.curves.estimate import as_json
from scalerl.reading.pages.figure import plain
from scalerl.reading.pages.outlook import Outlook, Source, curve_of, points_by_task, run_outlook
from scalerl.reading.pages.rollouts import RolloutIndex
from scalerl.reading.pages.series import alarm_level, between, bucketed
from scalerl.reading.pages.state import ALIVE, modified, pace, sign_of_life
from scalerl.reading.tables.table import Array

MOST_ROWS = 400
"""Number of latest rows of metrics in memory."""

MOST_COLUMNS = 500
"""Largest number of columns of metrics.jsonl that are shown."""

LIFE_S = 2.0
"""Seconds between checks of the sign of life."""


class RunView:
    """Rows and evaluations of one run, and what follows from them."""

    def __init__(
        self,
        info: RunInfo | None,
        rows: Iterable[Mapping[str, Any]] = (),
        points: Sequence[EvalPoint] = (),
        path: Path | None = None,
    ) -> None:
        """Store the data of a run.

        Args:
            info: What run.json says; None if it cannot be read.
            rows: The last rows of metrics.jsonl.
            points: The evaluations so far.
            path: The run directory, for commands in the advice; None: unknown.
        """
        self.info, self.directory = info, path
        self.rows: deque[Mapping[str, Any]] = deque(rows, maxlen=MOST_ROWS)
        self.points: dict[str, list[EvalPoint]] = {}
        self.evaluated(points)

    def evaluated(self, points: Sequence[EvalPoint]) -> None:
        """Set the evaluations so far, of all tasks."""
        self.points = points_by_task(points)

    @property
    def axis(self) -> str:
        """Compute axis of the forecasts."""
        return self.info.axis if self.info else "step"

    @property
    def tasks(self) -> list[str]:
        """Tasks with evaluations, without suites."""
        suites = self.info.suites if self.info else ()
        return [task for task in self.points if task not in suites]

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def steps(self) -> int:
        """Number of updates at the end of the run."""
        return self.info.steps if self.info else self.step

    @property
    def evaluated_at(self) -> int:
        """Step of the last evaluation; -1 before the first."""
        return max((points[-1].step for points in self.points.values()), default=-1)

    @property
    def terms(self) -> tuple[float | None, float | None]:
        """Smallest gain that is worth twice the compute, and price of a device-hour; None: not given."""
        return (self.info.min_gain, self.info.price) if self.info else (None, None)

    def outlook(self, task: str) -> Outlook:
        """Return fit, forecast and advice of a task.

        Raises:
            CurveError: There are too few evaluations, or they cannot be fitted.
        """
        result = run_outlook(self.points.get(task, ()), self.axis, *self.terms)
        return result.with_way_back(self.directory, self.every_point(), self.tasks) if self.directory else result

    def every_point(self) -> list[EvalPoint]:
        """Return the evaluations of all tasks and suites."""
        return [point for points in self.points.values() for point in points]

    def outlooks(self) -> dict[str, Outlook]:
        """Return fit, forecast and advice by task; tasks without a forecast are left out."""
        outlooks = {}
        for task in self.tasks:
            with suppress(CurveError):
                outlooks[task] = self.outlook(task)
        return outlooks


class FollowedRun(RunView):
    """The view of a run directory, which may grow.

    Not thread-safe: hold the watcher's lock. Only `history`, `metrics`, `series` and `rollouts`, which read whole
    files, are used without it, because a long run would keep all other pages waiting; hold `reading` for `rollouts`.
    """

    def __init__(self, path: Path, name: str = "", study: str = "", tail: int = TAIL_BYTES) -> None:
        """Read the ends of the run's files.

        Args:
            path: Run directory.
            name: Name on the page.
            study: Id of the study that contains the run; empty: none.
            tail: Bytes at the end of metrics.jsonl that are read.
        """
        super().__init__(None, path=path)
        self.path, self.name, self.study, self.id = path, name or path.name, study, id_of(path)
        self.state, self.detail = "waiting", ""
        self.fits: dict[str, dict[str, Any]] = {}
        """Latest fit of each task for the list, from `list_fit`; set by the watcher."""
        self.version = 0
        """Increases with every change."""
        self.reading = threading.RLock()
        """Held while whole files are read; `poll` does not take it."""
        self.rollouts = RolloutIndex(path)
        self._tail = RowFile(path / METRICS, self.rows.clear)
        self._points_file = RowFile(path / POINTS, self._forget_points)
        self.rows += sound_rows(self._tail.tail(tail))
        self._strange = 0
        self._events: list[Mapping[str, Any]] = []
        self._events_file = RowFile(path / EVENTS, self._events.clear)
        self._history: dict[str, array[float]] = {}
        self._history_file = RowFile(path / METRICS, self._history.clear)
        self._looked, self._info_written = -math.inf, -1.0
        self.poll()

    def poll(self, now: float | None = None) -> bool:
        """Read new rows; return whether anything changed.

        Args:
            now: Seconds since 1970; None: read the clock.
        """
        now = time.time() if now is None else now
        before = self._tail.restarts, self._points_file.restarts
        lines = sound_rows(line.row for line in self._tail.new_lines())
        self.rows += lines
        events = [line.row for line in self._events_file.new_lines()]
        self._events += events
        changed = self._read_points() or bool(lines or events)
        changed |= before != (self._tail.restarts, self._points_file.restarts)
        if changed or now - self._looked >= LIFE_S:
            changed |= self._look(now)
        self.version += changed
        return changed

    def failed(self, error: BaseException) -> bool:
        """Set the state `unreadable` after an unexpected error; return whether the state changed."""
        return self._set_state("unreadable", f"{type(error).__name__}: {error}")

    def _look(self, now: float) -> bool:
        """Check run.json and the sign of life; return whether the state changed."""
        self._looked = now
        written = modified(self.path / RUN)
        problem = self._tail.problem or self._points_file.problem
        if written != self._info_written or self.info is None:
            try:
                self.info, self._info_written = read_run(self.path), written
            except ConfigError as error:
                problem = problem or str(error)
        if problem:
            return self._set_state("unreadable", problem)
        return self.info is not None and self._set_state(*sign_of_life(self.path, list(self.rows), now))

    def _set_state(self, *state: str) -> bool:
        before = (self.state, self.detail)
        self.state, self.detail = state
        return state != before

    def _read_points(self) -> bool:
        points = [EvalPoint.of(line.row) for line in self._points_file.new_lines()]
        self._strange += points.count(None)
        for point in filter(None, points):
            self.points.setdefault(point.task, []).append(point)
        return bool(points)

    def _forget_points(self) -> None:
        self.evaluated(())
        self._strange = 0

    # --------------------------------------------------------------------------------------------------------- summary

    @property
    def left_s(self) -> float:
        """Estimated seconds to the last step, without evaluations; NaN if unknown or if the run is not training."""
        return pace(list(self.rows)) * (self.steps - self.step) if self.state in ALIVE else math.nan

    def warnings(self) -> dict[str, str]:
        """Return the warnings that hold now by key: those of the run, and one about lines that cannot be read."""
        broken = self._tail.broken + self._points_file.broken + self._strange
        unread = {"broken": f"{broken} lines of {METRICS} and {POINTS} cannot be read"} if broken else {}
        return active_warnings(self._events) | unread

    def summary(self) -> dict[str, Any]:
        """Return the run's entry in the list, as JSON values."""
        names = ("id", "name", "study", "version", "state", "detail", "step", "steps")
        return {
            **{name: getattr(self, name) for name in names},
            "path": str(self.path),
            "step_s": as_json(pace(list(self.rows))),
            "left_s": as_json(self.left_s),
            "points": sum(map(len, self.points.values())),
            "tasks": {task: self._task(task) for task in self.tasks},
            "warnings": list(self.warnings().values()),
            "about": self.info.about if self.info else "",
        }

    def _task(self, task: str) -> dict[str, Any]:
        last = self.points[task][-1]
        return {
            "pass_rate": as_json(last.pass_rate),
            "stderr": as_json(last.stderr),
            "step": last.step,
            "evaluations": len(self.points[task]),
            "fit": self.fits.get(task),
        }

    def source(self, task: str, axis: str | None = None) -> Source:
        """Return the curve of a task with the suites of the run.

        Raises:
            CurveError: There are too few evaluations, or they make no curve.
        """
        suites = self.info.suites if self.info else ()
        axis = axis or self.axis
        curves = []
        for suite in suites:
            with suppress(CurveError):  # too few evaluations
                curves.append(curve_of(self.points.get(suite, ()), axis))
        return Source(self.path, self.name, curve_of(self.points[task], axis), self.info, suites=tuple(curves))

    # --------------------------------------------------------------------------------------------------------- metrics

    def history(self) -> dict[str, Array]:
        """Return the columns of all rows with numbers, shape (N,) each; values that are no numbers are NaN."""
        with self.reading:
            for line in self._history_file.new_lines():
                if sound_rows([line.row]):
                    self._add(line.row)
            return {name: np.array(column) for name, column in self._history.items()}

    def _add(self, row: Mapping[str, Any]) -> None:
        count = len(next(iter(self._history.values()), ()))
        for name in row:
            if name not in self._history and len(self._history) < MOST_COLUMNS and math.isfinite(number(row[name])):
                self._history[name] = array("d", [math.nan] * count)
        for name, column in self._history.items():
            column.append(number(row.get(name)))

    def metrics(self, places: int) -> list[dict[str, Any]]:
        """Return every metric with its meaning, last value, and a series of at most `places` points.

        Columns that run.json does not describe come last, under their own names.
        """
        columns, metrics = self.history(), []
        described = self.info.metrics if self.info else {}
        for name in [*described, *(name for name in columns if name not in described and name != "step")]:
            if name not in columns or not np.isfinite(columns[name]).any():
                continue  # for example router metrics of a dense model
            metrics.append({**self.described(name), **bucketed(columns["step"], columns[name], places)})
        return metrics

    def described(self, name: str) -> dict[str, Any]:
        """Return the description of a metric, with its last value and the level of that."""
        description = self.info.metrics.get(name) if self.info else None
        metric = description or Metric("other", name, "a number that the run writes")
        try:
            last = number(self.rows[-1].get(name))
        except IndexError:  # no row yet, or the file was replaced and `poll` reads it again
            last = math.nan
        shown = {"name": name, "last": as_json(last), "level": alarm_level(metric, last)}
        return {**asdict(metric), **shown, "bounds": [*metric.above, *metric.below]}

    def series(self, name: str, low: float, high: float, places: int) -> dict[str, list[float | None]]:
        """Return a series of one metric between two steps.

        Raises:
            ValueError: The run has no such metric.
        """
        columns = self.history()
        if name not in columns:
            raise ValueError(f"name: got {name!r:.80}; allowed: a column of {METRICS} with numbers")
        part = between(columns["step"], low, high)
        return bucketed(columns["step"][part], columns[name][part], places)

    def config_fields(self) -> dict[str, str]:
        """Return every field of the configuration by its dotted name; empty if it cannot be read."""
        return {name: str(value) for name, value in self.info.settings.items()} if self.info else {}


def list_fit(
    points: Sequence[EvalPoint], axis: str, min_gain: float | None = None, price: float | None = None
) -> dict[str, Any]:
    """Return forecast and advice of one task as JSON values for the list of runs.

    Args:
        points: Evaluations of the task.
        axis: Compute axis.
        min_gain: As for `run_outlook`.
        price: As for `run_outlook`.
    """
    values: dict[str, Any] = {"evaluations": len(points), "problem": ""}
    try:
        outlook = run_outlook(points, axis, min_gain, price)
    except CurveError as error:
        return values | {"problem": str(error)}
    twice = outlook.forecast.at[0]
    return values | {"twice": plain([twice.mean, twice.low, twice.high]), "action": outlook.advice.action}


def sound_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that have a step; other columns are checked where they are used."""
    # the names of columns are those of every other row, and in memory once
    return [
        {sys.intern(name): value for name, value in row.items()} for row in rows if isinstance(row.get("step"), int)
    ]


def id_of(path: Path) -> str:
    """Return the id of a directory in the page's addresses."""
    return hashlib.sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
