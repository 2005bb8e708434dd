"""A run's curve in words: what it is worth now, at 2x and 4x, and whether to go on. Knows fits, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.scaling import Advice, Curve, CurveError, Fit, Forecast, advise, fit, forecast
from scalerl.types import EvalPoint

MIN_POINTS = 5
"""Evaluations before a curve is fitted."""
MIN_GAIN = 0.01
"""A gain at twice the compute below this is not worth it, unless the user says otherwise."""
HORIZON = ("2x", "4x")

AXIS_NAMES = {"device_hours": "device-hours", "flops": "FLOPs", "tokens": "tokens", "step": "steps"}
"""Compute axes as a reader sees them."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A fit with what follows from it."""

    fit: Fit
    forecast: Forecast
    advice: Advice

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the fit's, with forecast and advice beside them."""
        ahead = self.forecast.to_dict()
        del ahead["fit"]
        return {**self.fit.to_dict(), "forecast": ahead, "advice": self.advice.to_dict()}

    def lines(self) -> list[str]:
        """Return the outlook as text for a terminal."""
        found, ahead = self.fit, self.forecast
        axis = AXIS_NAMES.get(found.curve.axis, found.curve.axis)
        last = float(found.curve.metric[-1])
        lines = [
            f"curve     {len(found.curve)} evaluations to {found.last_compute:.3g} {axis}, last value {last:.3f}",
            f"  A       {found.asymptote}   the ceiling" + ("" if found.identified else ", NOT identified yet"),
            f"  B       {found.efficiency}   the steepness",
            f"  C_mid   {found.midpoint}   {axis} at half of the climb",
        ]
        for name, estimate in zip(HORIZON, ahead.at, strict=True):
            lines.append(
                f"at {name:<6} {estimate.mean:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
                f"   against {last:.3f} now: {estimate.mean - last:+.3f}"
            )
        return [*lines, *(f"warning   {w}" for w in found.warnings), f"advice    {self.advice.sentence}"]


def outlook(curve: Curve, min_gain: float = MIN_GAIN) -> Outlook:
    """Fit a curve and look ahead.

    Raises:
        CurveError: the curve cannot be fitted; the message says why.
    """
    found = fit(curve)
    return Outlook(found, forecast(found, at=list(HORIZON)), advise(found, budget="2x", min_gain=min_gain))


def run_outlook(points: Sequence[EvalPoint], axis: str, label: str = "") -> Outlook:
    """Look ahead from a run's evaluations over one compute axis.

    Raises:
        CurveError: too few evaluations, or nothing to fit, as early in a run or where it did not learn.
    """
    rows = [point.to_dict() for point in points]
    if len(rows) < MIN_POINTS:
        raise CurveError(f"too few evaluations for a forecast: got {len(rows)}; at least {MIN_POINTS} are needed")
    curve = Curve(
        compute=[row[axis] for row in rows],
        metric=[row["pass_rate"] for row in rows],
        stderr=[row["stderr"] for row in rows],
        axis=axis,
        label=label or str(rows[0]["task"]),
    )
    return outlook(curve)
