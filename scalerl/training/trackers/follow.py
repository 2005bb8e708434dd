"""Sends the metrics and evaluations of a run to its loggers, each in a separate thread."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from scalerl.core.limits import LOGGER_FINISH_S
from scalerl.core.rows import read_points, read_rows
from scalerl.core.run_files import RunInfo
from scalerl.core.types import EvalPoint
from scalerl.reading.pages.drawing import picture
from scalerl.reading.pages.outlook import forecast_numbers
from scalerl.reading.pages.run import RunView
from scalerl.training.trackers.base import LoggedRun, Logger
from scalerl.training.trackers.thread import Record, Worker


class Followers:
    """The loggers of a run; its methods return at once, except for `close`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        info: RunInfo,
        path: Path,
        makers: Mapping[str, Callable[[], Logger]],
        note: Callable[[str], None],
        resumed_step: int | None = None,
        went_back: bool = False,
    ) -> None:
        """Start the threads.

        Args:
            settings: Configuration of the run as nested plain values, which the loggers record.
            info: What run.json says.
            path: Run directory.
            makers: Functions that create the loggers, from `makers_of`.
            note: Function that shows a message to the user.
            resumed_step: Number of updates in the resumed checkpoint; None for a new run.
            went_back: Whether the run had written a later checkpoint, and trains the steps after it differently.
        """
        self._info, self._note = info, note
        self._state, self._rows = "stopped", RunView(info).rows
        record = Record(path)
        self._all = [_Logged(name, make, record) for name, make in makers.items()]
        for logged in self._all:
            if logged.start(settings, path, resumed_step, went_back):
                note(
                    f"logger {logged.name}: the run went back to step {resumed_step or 0}, so a new run starts in the "
                    "tracker, with all rows until there; the old one keeps the abandoned steps"
                )

    def step(self, row: Mapping[str, Any]) -> None:
        """Log a training step, a row of metrics.jsonl."""
        self._rows.append(row)
        for logged in self._all:
            logged.worker.put(partial(logged.row, row))
        self._tell()

    def evaluated(self, points: Sequence[EvalPoint], judged: bool = True) -> None:
        """Log the last evaluation, with the forecast and the curve.

        Args:
            points: Evaluations of the run so far; if not judged, at least the last one.
            judged: Whether to log forecast and curve.
        """
        if self._all and points:
            view = RunView(self._info, self._rows, points)
            for logged in self._all:
                logged.worker.put(partial(logged.evaluation, view, judged))
        self._tell()

    def ended(self, state: str) -> None:
        """Set the outcome of the run, finished, stopped or failed; called before `close`."""
        self._state = state

    def close(self) -> None:
        """End the logged runs; wait at most `LOGGER_FINISH_S`."""
        until = time.monotonic() + LOGGER_FINISH_S
        for logged in self._all:
            for line in logged.worker.close(until, partial(logged.finish, self._state)):
                self._note(line)
        self._all = []

    def _tell(self) -> None:
        for logged in self._all:
            for line in logged.worker.news():
                self._note(line)


class _Logged:
    """One logger with its thread; all methods except `start` run in that thread."""

    logger: Logger

    def __init__(self, name: str, make: Callable[[], Logger], record: Record) -> None:
        self.name, self.worker, self._make, self._record = name, Worker(f"logger {name}"), make, record

    def start(self, settings: Mapping[str, Any], path: Path, resumed_step: int | None, went_back: bool) -> bool:
        """Begin or continue the logged run; return whether a new one starts because the run went back."""
        shown = {key: value for key, value in settings.items() if key != "loggers"}  # may hold secrets
        # the only setting that changes steps which were logged, when a run resumes from before them
        rates = json.dumps(settings["recipe"]["optimizer"].get("later_rates", []))
        logged, part = self._record.get(self.name, "row", -1), self._record.get(self.name, "part", 1)
        trained_again = logged > (resumed_step or 0)  # a run without a checkpoint starts over
        anew = trained_again and (went_back or rates != self._record.get(self.name, "rates", rates))
        part += anew
        name, run_id = path.absolute().name, "" if anew else self._record.get(self.name, "id", "")
        run = LoggedRun(name if part == 1 else f"{name}-{part}", path, run_id, resumed_step, part)
        self.worker.put(partial(self._begin, shown, run, rates, anew))
        if resumed_step is not None:
            self.worker.put(partial(self._catch_up, path, resumed_step))
        return anew

    def _begin(self, config: Mapping[str, Any], run: LoggedRun, rates: str, anew: bool) -> None:
        with ExitStack() as failed:
            failed.callback(self.worker.give_up)
            if anew:
                self._record.put(self.name, id="", row=-1, evaluation=-1, part=run.part)
            self.logger = self._make()
            self._record.put(self.name, id=str(self.logger.start(config, run)), rates=rates)
            failed.pop_all()

    def _catch_up(self, path: Path, last: int) -> None:
        """Log the rows of the run's files up to a step that were not logged; evaluations without their forecasts."""
        if self._record.get(self.name, "row", -1) >= last:
            return
        rows = {row["step"]: row for row in read_rows(path / "metrics.jsonl") if isinstance(row.get("step"), int)}
        points: dict[int, dict[str, float]] = {}
        for point in read_points(path):
            points.setdefault(point.step, {}).update(point_numbers(point))
        for step in sorted({*rows, *points}):
            if step <= last and step in rows:
                self.row(rows[step])
            if step <= last and step in points and self._is_new("evaluation", step):
                self.logger.log(finite(points[step], but=("step",)), step)

    def row(self, row: Mapping[str, Any]) -> None:
        if self._is_new("row", int(row["step"])):
            self.logger.log(finite(row), int(row["step"]))

    def evaluation(self, view: RunView, judged: bool) -> None:
        if not self._is_new("evaluation", view.evaluated_at):
            return
        self.logger.log(evaluation_numbers(view, judged), view.evaluated_at)
        if judged and (drawn := curve_picture(view)):
            with tempfile.TemporaryDirectory(prefix="scalerl-") as directory:
                png = Path(directory) / f"step_{view.evaluated_at:06d}.png"
                png.write_bytes(drawn)
                self.logger.figure("curve", png, view.evaluated_at)

    def finish(self, state: str) -> None:
        self.logger.finish(state)

    def _is_new(self, key: str, step: int) -> bool:
        """Return whether a step was not logged before the run was resumed, and record it as logged.

        The record is written before the row is logged. A process that is killed between the two loses the row; the
        other order would log it twice.
        """
        if step <= self._record.get(self.name, key, -1):
            return False
        self._record.put(self.name, **{key: step})
        return True


@lru_cache(maxsize=1)  # of the last evaluation, for all loggers
def curve_picture(view: RunView) -> bytes:
    """Return the curves of a run with their forecasts as PNG; empty without a forecast."""
    assert view.info is not None
    fits = [outlook.fit for outlook in view.outlooks().values()]
    return picture(fits, "; ".join(view.info.notes)) if fits else b""


def evaluation_numbers(view: RunView, judged: bool = True) -> dict[str, float]:
    """Return the numbers of the last evaluation and, if judged, of the forecast, by the names of docs/metrics.md."""
    numbers: dict[str, Any] = {}
    for points in view.points.values():
        if points[-1].step == view.evaluated_at:
            numbers |= point_numbers(points[-1])
    for task, outlook in view.outlooks().items() if judged else ():
        numbers |= {f"forecast/{task}/{name}": value for name, value in forecast_numbers(outlook).items()}
    return finite(numbers, but=("step",))


def point_numbers(point: EvalPoint) -> dict[str, Any]:
    """Return the values of an evaluation of one task by the names of docs/metrics.md."""
    return {f"eval/{point.task}/{key}": value for key, value in point.to_dict().items()}


def finite(row: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, float]:
    """Return the finite numbers of a row, without names whose part after the last slash is in `but`."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value) and name.rpartition("/")[2] not in but
    }
