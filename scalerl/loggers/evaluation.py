"""The data that are logged after an evaluation: points, the forecast with its interval, and a picture of the curve."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalerl.config import RunConfig
from scalerl.scaling import CurveError, Estimate
from scalerl.types import EvalPoint
from scalerl.view.figures import picture
from scalerl.view.outlook import HORIZON, Outlook, points_by_task, run_outlook
from scalerl.view.summary import data_note, default_axis

PICTURE_SHARE = 0.005
"""Largest share of a run's time for pictures; a picture takes 0.3 s of a core, in the trainer's process."""


class Pace:
    """Limits the time for the pictures of one run."""

    def __init__(self) -> None:
        """Allow the first picture immediately."""
        self._next = -math.inf

    def allows(self) -> bool:
        """Return whether pictures have taken less than their share of the time."""
        return time.monotonic() >= self._next

    def drawn(self, seconds: float) -> None:
        """Record the time that a picture has taken."""
        self._next = time.monotonic() + seconds / PICTURE_SHARE


class Evaluation:
    """An evaluation and all earlier ones. Fits and pictures are computed once, by the first thread that needs them."""

    def __init__(self, points: Sequence[EvalPoint], config: RunConfig, pace: Pace) -> None:
        """Store the evaluations of a run so far, at least one.

        Args:
            points: Points of all tasks so far.
            config: Configuration of the run.
            pace: Limit on the time for pictures, shared by all evaluations of the run.
        """
        assert points
        self._pace = pace
        self.step = points[-1].step
        self.by_task = points_by_task(points)
        self._config = config
        self._lock = threading.Lock()
        self._outlooks: dict[str, Outlook] | None = None
        self._picture: bytes | None = None

    @property
    def axis(self) -> str:
        """Compute axis of the forecast."""
        return default_axis(self._config)

    def outlooks(self) -> dict[str, Outlook]:
        """Return fit, forecast and advice by task; tasks without a forecast are left out."""
        with self._lock:
            if self._outlooks is None:
                self._outlooks = {}
                for task in self._config.main_tasks:
                    with suppress(CurveError):  # too few evaluations
                        self._outlooks[task] = run_outlook(self.by_task.get(task, ()), self.axis)
            return self._outlooks

    def metrics(self) -> dict[str, float]:
        """Return the numbers that are logged, by the names of docs/metrics.md."""
        found: dict[str, Any] = {}
        for task, points in self.by_task.items():
            if points[-1].step == self.step:
                found |= {f"eval/{task}/{key}": value for key, value in points[-1].to_dict().items()}
        for task, ahead in self.outlooks().items():
            for name, estimate in zip(HORIZON, ahead.forecast.at, strict=True):
                found |= _named(f"forecast/{task}/{name}", estimate)
            found |= _named(f"forecast/{task}/ceiling", ahead.fit.asymptote)
            found[f"forecast/{task}/identified"] = float(ahead.fit.identified)
        return finite(found, but=("step",))

    def picture(self, *, last: bool = False) -> bytes:
        """Return the curves as a PNG; empty without a forecast, or if pictures have exceeded their share of time.

        Args:
            last: Whether this is the last picture of the run, which is always drawn.
        """
        outlooks = self.outlooks()
        with self._lock:
            if self._picture is None or (last and not self._picture):
                if not outlooks or not (last or self._pace.allows()):
                    self._picture = b""
                else:
                    began = time.thread_time()
                    self._picture = picture([ahead.fit for ahead in outlooks.values()], data_note(self._config))
                    self._pace.drawn(time.thread_time() - began)
            return self._picture


def finite(row: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, float]:
    """Return the finite numbers of a row, without names whose part after the last slash is in `but`."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value) and name.rpartition("/")[2] not in but
    }


def _named(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
