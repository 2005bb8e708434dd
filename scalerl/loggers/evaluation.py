"""The data that are logged after an evaluation: points, the forecast with its interval, and a picture of the curve."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.view.figures import picture
from scalerl.view.outlook import HORIZON, data_note
from scalerl.view.run import RunView

PICTURE_SHARE = 0.005
"""Largest share of a run's time for pictures; a picture takes 0.3 s of a core, in the trainer's process."""


class Pictures:
    """Draws the curves of a run as PNG, each evaluation once for all loggers, within a share of the run's time."""

    def __init__(self) -> None:
        """Allow the first picture immediately."""
        self._lock = threading.Lock()
        self._next = -math.inf
        self._drawn: tuple[RunView | None, bytes] = (None, b"")

    def of(self, view: RunView, *, last: bool = False) -> bytes:
        """Return a picture; empty without a forecast, or if pictures have exceeded their share of the time.

        Args:
            view: The run at an evaluation.
            last: Whether this is the last picture of the run, which is always drawn.
        """
        fits = [ahead.fit for ahead in view.outlooks().values()]
        with self._lock:
            known = self._drawn[0] is view and (self._drawn[1] or not last)
            if not known and fits and (last or time.monotonic() >= self._next):
                began = time.thread_time()
                assert view.config is not None
                self._drawn = (view, picture(fits, data_note(view.config)))
                self._next = time.monotonic() + (time.thread_time() - began) / PICTURE_SHARE
            elif not known:
                self._drawn = (view, b"")
            return self._drawn[1]


def evaluation_numbers(view: RunView) -> dict[str, float]:
    """Return the numbers of the last evaluation and of the forecast, by the names of docs/metrics.md."""
    found: dict[str, Any] = {}
    for task, points in view.points.items():
        if points[-1].step == view.evaluated_at:
            found |= {f"eval/{task}/{key}": value for key, value in points[-1].to_dict().items()}
    for task, ahead in view.outlooks().items():
        estimates = dict(zip(HORIZON, ahead.forecast.at, strict=True)) | {"ceiling": ahead.fit.asymptote}
        for name, estimate in estimates.items():
            key = f"forecast/{task}/{name}"
            found |= {key: estimate.mean, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
        found[f"forecast/{task}/identified"] = float(ahead.fit.identified)
    return finite(found, but=("step",))


def finite(row: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, float]:
    """Return the finite numbers of a row, without names whose part after the last slash is in `but`."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value) and name.rpartition("/")[2] not in but
    }
