"""Metrics for display: the level of a value, and series of at most some hundred points.

Axes in names: N steps, K buckets.
"""

from __future__ import annotations

import numpy as np

from scalerl.core.run_files import Metric
from scalerl.reading.pages.figure import plain
from scalerl.reading.tables.table import Array


def alarm_level(metric: Metric, value: float) -> str:
    """Return "caution" or "bad" if a value crosses thresholds of its metric, else ""."""
    crossed = [value > bound for bound in metric.above] + [value < bound for bound in metric.below]
    return ("", "caution", "bad")[min(2, sum(crossed))]


def between(step_N: Array, low: float, high: float) -> slice:
    """Return the rows between two steps, plus one on each side so that lines reach the edge."""
    first, last = np.searchsorted(step_N, [low, high], side="left")
    return slice(max(0, int(first) - 1), int(last) + 2)


def bucketed(step_N: Array, value_N: Array, most: int) -> dict[str, list[float | None]]:
    """Reduce a series to at most `most` buckets, each with minimum, mean and maximum of neighboring steps.

    Args:
        step_N: Increasing steps.
        value_N: Values; NaN is ignored.
        most: K, maximum number of buckets.

    Returns:
        Lists x, low, mean and high, (K,) each; None for values that are not finite.
    """
    known_N = np.isfinite(value_N)
    step_N, value_N = step_N[known_N], value_N[known_N]
    first_K = np.linspace(0, len(step_N), min(most, len(step_N)) + 1).astype(int)[:-1]
    count_K = np.diff([*first_K, len(step_N)])
    return {
        "x": plain(np.add.reduceat(step_N, first_K) / count_K),
        "low": plain(np.minimum.reduceat(value_N, first_K)),
        "mean": plain(np.add.reduceat(value_N, first_K) / count_K),
        "high": plain(np.maximum.reduceat(value_N, first_K)),
    }
