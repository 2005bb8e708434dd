"""Fits the watched runs in a background thread, once per new evaluation."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.core.errors import outcome
from scalerl.scaling import CurveError, Estimate
from scalerl.types import EvalPoint
from scalerl.view.outlook import Outlook, run_outlook
from scalerl.view.page_figures import Json, curve_traces


@dataclass(frozen=True, slots=True)
class TaskFit:
    """Result of fitting one task of one run."""

    evaluations: int
    """Number of evaluations fitted."""
    problem: str
    """Reason why there is no fit; empty if the fit succeeded."""
    outlook: Outlook | None
    traces: tuple[Json, ...]
    """Traces of `curve_traces` in the color "@s0"."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fit for the page, as JSON values."""
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
        points: Evaluations of the task.
        axis: Compute axis.
        name: Name of the run in the figure.
    """
    try:
        found = run_outlook(points, axis)
        curve = found.fit.curve  # the page adds the current points
        least = float(curve.compute[curve.compute > 0][0])
        traces = curve_traces(name, curve, found.fit, ("@s0", "solid"), least, 1.05)
    except CurveError as error:
        return TaskFit(len(points), str(error), None, ())
    return TaskFit(len(points), "", found, tuple(traces))


class Worker:
    """Runs jobs one at a time in a thread; a new job replaces a waiting job with the same key.

    Consumes / Produces: jobs of `ask` / their effects.
    Waits for / Unblocked by: a job / `ask`, or `close`.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._waiting: dict[object, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.failures: list[str] = []
        """Unexpected exceptions of jobs; the page shows them."""
        self._thread = threading.Thread(target=self._work, name="fits", daemon=True)
        self._thread.start()

    def ask(self, key: object, job: Callable[[], None]) -> None:
        """Queue a job; it replaces a waiting job with the same key, at the same position."""
        with self._changed:
            self._waiting[key] = job
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the current job."""
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
            if error := outcome(job).exception():  # a failed fit of one run must not end the fits of all others
                self.failures.append(f"{type(error).__name__}: {error}")


def _estimate(found: Estimate) -> list[float | None]:
    values = (found.mean, found.low, found.high)
    return [round(value, 5) if math.isfinite(value) else None for value in values]
