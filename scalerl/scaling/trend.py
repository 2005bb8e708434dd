"""The trend of a run over its last doubling of compute, as a second opinion beside the forecast.

Real runs often keep rising slowly after their climb, where the law has a ceiling. The trend is the least-squares slope
of the metric in log compute, combined with the gains of public runs.

Axes in names: K points of the last doubling.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.noise import least_noise

PRIOR_RISE = 0.01
"""Mean rise per doubling of compute after a climb, as a share of the metric's range.

For eight public runs from five repositories, the forecast gave a gain above 0.01 a probability below 0.2. Over the next
doubling these runs gained 0.013 in the median; seven of the eight gained between -0.015 and 0.043.
"""

PRIOR_SD = 0.02
"""Standard deviation of this rise."""

LEAST_POINTS = 5
"""Smallest number of points for the slope, used if the last doubling has fewer."""


class Trend(NamedTuple):
    """The rise per doubling of compute, before the prior.

    Example: `Trend(rise=0.004, error=0.003, width=1.0)` gains more than 0.01 over the next doubling with probability
    0.02.
    """

    rise: float
    """Least-squares slope of the metric in log2 of compute, in the metric's unit."""

    error: float
    """Standard error of the slope."""

    width: float
    """Width of the metric's range."""

    def probability(self, gain: float, doublings: float) -> float:
        """Return the probability that the next doublings of compute gain more than `gain`.

        Args:
            gain: Gain in the metric's unit.
            doublings: Number of doublings of compute ahead, > 0.
        """
        from scipy.special import ndtr

        prior = 1.0 / (PRIOR_SD * self.width) ** 2
        data = 1.0 / self.error**2
        mean = (prior * PRIOR_RISE * self.width + data * self.rise) / (prior + data)
        return float(ndtr((mean - gain / doublings) * np.sqrt(prior + data)))


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
    return Trend(rise, noise / np.sqrt(spread), width)
