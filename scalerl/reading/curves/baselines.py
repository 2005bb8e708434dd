"""Naive forecasts as baselines of the law: last value, line in log compute, power law; and the recent trend.

Each takes a curve and returns a function from compute, shape (M,), to metric, shape (M,), within the metric's bounds.
Axes in names: N points, K points of the last doubling, M amounts of compute, P powers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.curve import Curve, thinned
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.noise import least_noise

Predictor = Callable[[Array], Array]

POWERS = np.exp(np.linspace(np.log(0.02), np.log(5.0), 200))
"""Possible exponents of the power law."""

MOST_POINTS = 1000
"""Number of points above which the power law is fitted to means of neighbors."""


def last_value(curve: Curve) -> Predictor:
    """Predict the last value of the curve."""
    return lambda compute_M: np.full(len(compute_M), curve.metric[-1])


def linear_in_log_compute(curve: Curve) -> Predictor:
    """Predict by the least-squares line in ln C through all points after compute 0, clipped to the metric's bounds."""
    after = curve.compute > 0
    slope, level = np.polyfit(np.log(curve.compute[after]), curve.metric[after], 1)
    return lambda compute_M: np.clip(level + slope * np.log(compute_M), *curve.bounds)


def power_law(curve: Curve) -> Predictor:
    """Predict by R = A - D C^-b, fitted by least squares with A within the bounds and D >= 0."""
    last, curve = curve.last_compute, thinned(curve, MOST_POINTS)
    after = curve.compute > 0
    ratio_N, metric_N = curve.compute[after] / last, curve.metric[after]
    high = curve.bounds[1]
    # in logarithms, because the smallest compute to the largest power may overflow; such a power is not chosen
    decay_PN = np.exp(np.minimum(-POWERS[:, None] * np.log(ratio_N), 300.0))
    mean_P = decay_PN.mean(axis=1)
    centered_PN = decay_PN - mean_P[:, None]
    drop_P = np.maximum(-(centered_PN @ metric_N) / np.maximum((centered_PN**2).sum(axis=1), 1e-300), 0.0)
    ceiling_P = metric_N.mean() + drop_P * mean_P
    # if A is limited by the bound, only D is fitted
    drop_P = np.where(ceiling_P > high, decay_PN @ (high - metric_N) / (decay_PN**2).sum(axis=1), drop_P)
    ceiling_P = np.minimum(ceiling_P, high)
    cost_P = ((ceiling_P[:, None] - drop_P[:, None] * decay_PN - metric_N) ** 2).sum(axis=1)
    best = int(cost_P.argmin())
    ceiling, drop, power = float(ceiling_P[best]), float(drop_P[best]), float(POWERS[best])
    return lambda compute_M: np.clip(ceiling - drop * (compute_M / last) ** -power, *curve.bounds)


BASELINES: dict[str, Callable[[Curve], Predictor]] = {
    "last value": last_value,
    "linear in log compute": linear_in_log_compute,
    "power law": power_law,
}
"""Baselines by name."""


LEAST_POINTS = 5
"""Smallest number of points for the slope, used if the last doubling has fewer."""


class Trend(NamedTuple):
    """The rise per doubling of compute.

    Example: `Trend(rise=0.004, error=0.003)`
    """

    rise: float
    """Least-squares slope of the metric in log2 of compute, in the metric's unit."""

    error: float
    """Standard error of the slope."""


def trend(curve: Curve) -> Trend:
    """Return the slope over the last doubling of compute, from at least `LEAST_POINTS` points.

    Args:
        curve: Curve with at least five points.
    """
    last = curve.last_compute
    count = max(int((curve.compute > last / 2).sum()), LEAST_POINTS)
    after = curve.compute > 0
    doublings_K = np.log2(curve.compute[after][-count:] / last)
    metric_K = curve.metric[after][-count:]
    across_K = doublings_K - doublings_K.mean()
    spread = float(across_K @ across_K)
    rise = float(across_K @ metric_K) / spread
    residual_K = metric_K - metric_K.mean() - rise * across_K
    width = float(np.ptp(curve.bounds))
    noise = max(np.sqrt(float(residual_K @ residual_K) / (len(metric_K) - 2)), least_noise(curve) * width)
    return Trend(rise, noise / float(np.sqrt(spread)))
