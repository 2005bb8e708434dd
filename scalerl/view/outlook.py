"""Fit, forecast and advice for one curve, as text: the level now, at 2x and 4x, and whether to continue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scalerl.scaling import Advice, Curve, CurveError, Fit, Forecast, advise, fit, forecast
from scalerl.types import EvalPoint

MIN_POINTS = 5
"""Smallest number of evaluations for a fit."""
MIN_GAIN = 0.01
"""Default of `min_gain`: the gain that justifies twice the compute."""
HORIZON = ("2x", "4x")


@dataclass(frozen=True, slots=True)
class Outlook:
    """A fit with its forecast and advice."""

    fit: Fit
    forecast: Forecast
    advice: Advice | None
    """None if the fit has no uncertainty (always with the paper's method)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON values, with the additional keys forecast and advice."""
        advice = self.advice.to_dict() if self.advice else None
        return {**forecast_dict(self.forecast), "advice": advice}

    def lines(self) -> list[str]:
        """Return the outlook as text for a terminal."""
        found, ahead = self.fit, self.forecast
        axis = found.curve.unit
        last = float(found.curve.metric[-1])
        lines = [
            f"curve     {len(found.curve)} evaluations to {found.last_compute:.3g} {axis}, last value {last:.3f}",
            f"  A       {found.asymptote}   the ceiling" + ("" if found.identified else ", NOT identified yet"),
            f"  B       {found.efficiency}   the steepness",
            f"  C_mid   {found.midpoint}   the midpoint, {axis} at half of the climb",
        ]
        for name, estimate in zip(HORIZON, ahead.at, strict=True):
            known = not math.isnan(estimate.low)
            interval = f"({estimate.low:.3f} to {estimate.high:.3f})" if known else "(no uncertainty given)"
            lines.append(
                f"at {name:<6} {estimate.mean:.3f} {interval}   against {last:.3f} now: {estimate.mean - last:+.3f}"
            )
        lines += [f"warning   {w}" for w in found.warnings]
        advice = self.advice.sentence if self.advice else f"none: {found.reason}"
        return [*lines, f"advice    {advice}"]


def forecast_dict(ahead: Forecast) -> dict[str, Any]:
    """Return the fit as JSON values, with the additional key forecast."""
    values = ahead.to_dict()
    return {**values.pop("fit"), "forecast": values}


def outlook(
    curve: Curve, min_gain: float = MIN_GAIN, *, method: str = "posterior", exclude_below: float = 0.0
) -> Outlook:
    """Fit a curve, forecast it and give advice; `method` and `exclude_below` are passed to `fit`.

    Raises:
        CurveError: The curve cannot be fitted; the message has the reason.
    """
    found = fit(curve, method, exclude_below=exclude_below)
    certain = len(found.draws.asymptote) == 1
    advice = None if certain else advise(found, budget="2x", min_gain=min_gain)
    return Outlook(found, forecast(found, at=list(HORIZON)), advice)


def points_by_task(points: Sequence[EvalPoint]) -> dict[str, list[EvalPoint]]:
    """Return a run's evaluations by task, in their order."""
    found: dict[str, list[EvalPoint]] = {}
    for point in points:
        found.setdefault(point.task, []).append(point)
    return found


def run_outlook(points: Sequence[EvalPoint], axis: str, label: str = "") -> Outlook:
    """Return the outlook of a run, from its evaluations of one task, on one compute axis.

    Results are cached, because the display and the loggers of a run need the same ones.

    Raises:
        CurveError: There are too few evaluations.
    """
    if len(points) < MIN_POINTS:
        raise CurveError(f"too few evaluations for a forecast: got {len(points)}; at least {MIN_POINTS} are needed")
    return _kept_outlook(tuple(points), axis, label)


@lru_cache(maxsize=16)
def _kept_outlook(points: tuple[EvalPoint, ...], axis: str, label: str) -> Outlook:
    return outlook(curve_of(points, axis, label))


def curve_of(points: Sequence[EvalPoint], axis: str, label: str = "") -> Curve:
    """Return the curve of a run's evaluations of one task, on one compute axis."""
    assert len({point.task for point in points}) <= 1, points
    return Curve(
        compute=[getattr(point, axis) for point in points],
        metric=[point.pass_rate for point in points],
        stderr=[point.stderr for point in points],
        axis=axis,
        label=label or points[0].task,
    )
