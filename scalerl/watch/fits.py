"""Fits of the runs that are watched, in one thread beside the server, each once for every new evaluation."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.report.drawing import Json
from scalerl.report.outlook import Outlook, curve_of, run_outlook
from scalerl.report.page_figures import curve_traces
from scalerl.scaling import CurveError, Estimate
from scalerl.types import EvalPoint


@dataclass(frozen=True, slots=True)
class TaskFit:
    """What was fitted of one task of one run."""

    evaluations: int
    """How many evaluations it has seen."""
    problem: str
    """Why there is no fit; empty if there is one."""
    outlook: Outlook | None
    traces: tuple[Json, ...]
    """Of ``curve_traces``, in the colour "@s0"."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the page says about it, as JSON values."""
        found = self.outlook
        if found is None:
            return {"evaluations": self.evaluations, "problem": self.problem}
        advice = found.advice
        return {
            "evaluations": self.evaluations,
            "problem": "",
            "twice": _estimate(found.forecast.at[0]),
            "four": _estimate(found.forecast.at[1]),
            "ceiling": _estimate(found.fit.asymptote),
            "identified": found.fit.identified,
            "reason": found.fit.reason,
            "warnings": list(found.fit.warnings),
            "action": advice.action if advice else "",
            "advice": advice.sentence if advice else "",
        }


def fitted(points: Sequence[EvalPoint], axis: str, name: str) -> TaskFit:
    """Fit the evaluations of one task.

    Args:
        points: of the task.
        axis: compute axis.
        name: of the run, for the picture.
    """
    try:
        found = run_outlook(points, axis)
        curve = curve_of(points, axis)
        least = float(curve.compute[curve.compute > 0][0])
        traces = curve_traces(name, curve, found.fit, ("@s0", "solid"), least, 1.05)
    except CurveError as error:
        return TaskFit(len(points), str(error), None, ())
    return TaskFit(len(points), "", found, tuple(traces))


class Worker:
    """Does jobs one after the other in a thread; of jobs with one key that wait, only the newest is done.

    Consumes / Produces: jobs of ``ask`` / whatever they do.
    Waits for / Unblocked by: a job / ``ask``, or ``close``.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._waiting: dict[object, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.failures: list[str] = []
        """What jobs raised that they should not have; the page shows it."""
        self._thread = threading.Thread(target=self._work, name="fits", daemon=True)
        self._thread.start()

    def ask(self, key: object, job: Callable[[], None]) -> None:
        """Put a job in the queue; one with this key that waits is replaced and keeps its place."""
        with self._changed:
            self._waiting[key] = job
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the job under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                key = next(iter(self._waiting))
                job = self._waiting.pop(key)
            try:
                job()
            except Exception as error:  # one run that cannot be fitted must not end the fits of all others
                self.failures.append(f"{type(error).__name__}: {error}")


def _estimate(found: Estimate) -> list[float | None]:
    values = (found.mean, found.low, found.high)
    return [round(value, 5) if math.isfinite(value) else None for value in values]
