"""The trend of a run over its last doubling of compute: the least-squares slope of the metric in log compute.

Axes in names: K points of the last doubling.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.noise import least_noise

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
