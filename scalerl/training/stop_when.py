"""Evaluation of the conditions of `stop_when`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from scalerl.config import RunConfig
from scalerl.scaling import CurveError, fit
from scalerl.scaling.stop import reason_to_stop, stop_rule
from scalerl.types import EvalPoint
from scalerl.view.outlook import curve_of, default_axis, points_by_task


def first_to_stop(conditions: Sequence[str], points: Sequence[EvalPoint], config: RunConfig) -> tuple[str, str] | None:
    """Return the first condition that holds with the reason, or None; with fewer than five evaluations none holds.

    Args:
        conditions: Conditions of `stop_when`, as written.
        points: Evaluations of the run so far.
        config: Configuration, which determines the tasks with a forecast and the compute axis.
    """
    by_task = points_by_task(points)
    fits = []
    with suppress(CurveError):  # too few points for a fit
        fits = [fit(curve_of(by_task[task], default_axis(config))) for task in config.main_tasks]
    for condition in conditions:
        reason = reason_to_stop(stop_rule(condition), fits)
        if reason is not None:
            return condition, reason
    return None
