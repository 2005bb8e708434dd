"""Backtests: fits the first part of a run and scores the forecast of the rest.

Axes in names: M held-out points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.reading.curves.baselines import BASELINES, Predictor
from scalerl.reading.curves.curve import Curve, checked_curve
from scalerl.reading.curves.estimate import NINE_IN_TEN, as_json
from scalerl.reading.curves.fit import Band, Fit, fit
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import Guided
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.tables.errors import CurveError

PREDICTED = 1000
"""Held-out points above which the forecast is computed at about this many amounts of compute, and interpolated."""


@dataclass(frozen=True)
class Score:
    """Score of one forecast on the points that were not fitted."""

    rmse: float
    """Root mean square error, in the metric's unit."""

    coverage: float
    """Share of points within the 90% band for single evaluations."""

    def __str__(self) -> str:
        return f"error {self.rmse:.4f}, {self.coverage:.0%} in the band"


@dataclass(frozen=True)
class Split:
    """One split of the run."""

    fraction: float
    """Share of the compute that was fitted."""

    shown: int
    """Number of fitted points."""

    held_out: int
    """Number of predicted points."""

    identified: bool
    """Whether the ceiling of the fit is identified."""

    forecast: Score
    """Score of the fitted curve."""

    baselines: dict[str, Score]
    """Score of each naive forecast, by name."""

    fit: Fit = field(repr=False, compare=False)
    """Fit of the first part; not in JSON."""


@dataclass(frozen=True)
class Backtest(Guided):
    """Scores at several splits; prints as a table."""

    splits: tuple[Split, ...]

    def __str__(self) -> str:
        lines = []
        for split in self.splits:
            lines.append(f"first {split.fraction:.0%} ({split.shown} points) predicting {split.held_out}:")
            scores = {"forecast": split.forecast, **split.baselines}
            lines += [f"  {name:<22} {score}" for name, score in scores.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        return {"splits": [as_json({n: v for n, v in vars(split).items() if n != "fit"}) for split in self.splits]}


def backtest(curve: Curve, fractions: Sequence[float] = (0.3, 0.5, 0.7)) -> Backtest:
    """Fit the first part of a run, and score its forecast of the rest and every baseline.

    Args:
        curve: Curve with enough points for a fit before each split, and some points after it.
        fractions: Shares of the last compute at which to split, each in (0, 1).

    Raises:
        CurveError: A fraction is outside (0, 1), or there are too few points before a split or none after it.
    """
    checked_curve(curve)
    return Backtest(tuple(split_at(curve, fraction) for fraction in fractions))


def split_at(curve: Curve, fraction: float) -> Split:
    """Return the scores at one split."""
    if not 0 < fraction < 1:
        raise CurveError(f"fractions must lie between 0 and 1; got {fraction!r}")
    first_part = curve.between(most=fraction * curve.last_compute)
    after = curve.compute > fraction * curve.last_compute
    if len(first_part) < MIN_POINTS:
        raise CurveError(f"the first {fraction:g} of the run holds {len(first_part)} points; a fit needs {MIN_POINTS}")
    compute_M, metric_M = curve.compute[after], curve.metric[after]
    fit_result = fit(first_part)
    band = predicted(fit_result, compute_M)
    inside_M = (band.low <= metric_M) & (metric_M <= band.high)
    return Split(
        fraction=float(fraction),
        shown=len(first_part),
        held_out=len(compute_M),
        identified=fit_result.identified,
        forecast=Score(rmse(band.mean - metric_M), float(inside_M.mean())),
        baselines={
            name: naive_score(first_part, make(first_part), compute_M, metric_M) for name, make in BASELINES.items()
        },
        fit=fit_result,
    )


def predicted(fit_result: Fit, compute_M: Array) -> Band:
    """Return the band of one evaluation at each compute, which are in ascending order.

    A prediction takes 2,000 draws, and neighbors among many points have almost equal ones. Half of the amounts at which
    it is made follow the density of the points, the others are evenly spaced.
    """
    if len(compute_M) <= PREDICTED:
        return fit_result.predict(compute_M, noise=True)
    among = np.linspace(0, len(compute_M) - 1, PREDICTED // 2).astype(int)
    even = np.linspace(compute_M[0], compute_M[-1], PREDICTED // 2)
    at_K = np.unique(np.append(compute_M[among], even))
    band = fit_result.predict(at_K, noise=True)
    columns = (band.mean, band.low, band.high, band.sd)
    return Band(compute_M, *(np.interp(compute_M, at_K, column_K) for column_K in columns))


def naive_score(first_part: Curve, predict: Predictor, compute_M: Array, metric_M: Array) -> Score:
    """Return the score of a baseline; its band is as wide as its errors on the last third of the fitted points."""
    after = np.flatnonzero(first_part.compute > 0)
    recent = after[-max(len(after) // 3, 2) :]
    width = NINE_IN_TEN * rmse(predict(first_part.compute[recent]) - first_part.metric[recent])
    miss_M = predict(compute_M) - metric_M
    return Score(rmse(miss_M), float((np.abs(miss_M) <= width).mean()))


def rmse(error_M: Array) -> float:
    """Return the root mean square of errors."""
    return float(np.sqrt((error_M**2).mean()))
