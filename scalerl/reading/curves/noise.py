"""The noise of evaluations: its size, its differences between points, and draws of evaluations within the bounds.

Axes in names: N points, M amounts of compute, D draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.law import Array

NOISE_FLOOR = 1e-5
"""Smallest standard deviation of the noise, as a share of the metric's range."""

UNSEEN_NOISE = 0.01
"""Smallest standard deviation of the noise if all values are equal and no standard error is given."""

NOISE_AT_BOUND = 0.01
"""Term added to p(1 - p) when noise is scaled with it, because noise does not vanish at the metric's bounds."""

OTHER_NOISE = 0.1
"""Minimum share of the variance that does not depend on the number of answers, such as from changes of the weights."""

NEIGHBOR_POINTS = 9
"""Number of points over which standard errors are smoothed, so that a point's noise does not decide its weight."""

LEAST_SD = 1e-7
"""Minimum standard deviation of an evaluation, as a share of the range."""

LEAST_BOUND_DISTANCE = 0.5
"""Minimum distance of a mean from a bound, in standard deviations; the mean of half a normal distribution is 0.4."""


def local_noise(metric_N: Array) -> float:
    """Return the standard deviation of the noise around a locally straight curve; robust to outliers.

    It is computed from second differences.
    """
    bend_N = metric_N[2:] - 2 * metric_N[1:-1] + metric_N[:-2]
    # a second difference of white noise has 6 times its variance; 1.4826 converts a median to a standard deviation
    return float(1.4826 * np.median(np.abs(bend_N)) / np.sqrt(6)) if len(bend_N) else 0.0


class Averaged(NamedTuple):
    """What the points of a curve are means of, if it had too many.

    Example (1,200 evaluations with a noise of 0.03 in 400 points): Averaged(evaluations=3.0, within_sd=0.0245)
    """

    evaluations: float = 1.0
    """How many a point is the mean of, on average."""
    within_sd: float = 0.0
    """Standard deviation of single evaluations around the points."""


SINGLE = Averaged()
"""Points that are evaluations."""


def averaged_in(curve: Curve, points: int) -> Averaged:
    """Return what a number of points are that `thinned` made of a curve.

    White noise of variance s^2 has s^2 / n in means of n values, and s^2 (1 - 1/n) around them.
    """
    count = len(curve) / points
    return Averaged(count, local_noise(curve.metric) * float(np.sqrt(1.0 - 1.0 / count)))


def least_noise(curve: Curve) -> float:
    """Return the smallest standard deviation of the noise, as a share of the range.

    Equal values show no noise, but the next value may differ. The result is then the standard error or UNSEEN_NOISE.
    """
    if np.ptp(curve.metric) > 0:
        return NOISE_FLOOR
    stderr = 0.0 if curve.stderr is None else float(np.nanmedian(curve.stderr)) / float(np.ptp(curve.bounds))
    return stderr if stderr > 0 else UNSEEN_NOISE


def binomial(level: Array, low: float, high: float) -> Array:
    """Return p(1 - p) plus `NOISE_AT_BOUND`, where p is the level as a share of the range."""
    p = np.clip((level - low) / (high - low), 0.0, 1.0)
    return np.asarray(p * (1.0 - p) + NOISE_AT_BOUND)


def relative_noise(curve: Curve) -> Array | None:
    """Return the standard deviation of each point relative to the others, shape (N,), or None if all are equal.

    The variance that the points report is 1 / answers, or the median of the squared standard errors of
    `NEIGHBOR_POINTS` points. A point's own standard error follows its own value, and a weight that depends on the
    noise of its point biases the fit: with errors of 0.04, ceilings of 0.8 came out as 0.5. A standard error of 0
    says that all answers were alike, not that there is no noise, so it counts as unknown. The scatter of the points
    beyond their standard errors, at least `OTHER_NOISE` of the variance, is the same for all points. The root mean
    square of the result is one.
    """
    if curve.stderr is None or not (curve.stderr > 0).any():
        return None
    positive_N = np.where(curve.stderr > 0, curve.stderr, np.nan) ** 2
    explained = float(np.nanmean(positive_N)) / max(local_noise(curve.metric) ** 2, 1e-12)
    other = min(max(1.0 - explained, OTHER_NOISE), 1.0)
    known_N = positive_N if curve.answers is None else 1.0 / curve.answers
    known_N = np.where(np.isfinite(known_N), known_N, np.nanmedian(known_N))
    if curve.answers is None:
        around_N = np.pad(known_N, NEIGHBOR_POINTS // 2, mode="reflect")
        known_N = np.median(np.lib.stride_tricks.sliding_window_view(around_N, NEIGHBOR_POINTS), axis=1)
    return np.sqrt((1.0 - other) * known_N / known_N.mean() + other) if np.ptp(known_N) > 0 else None


def evaluations(level_MD: Array, sd_MD: Array, low: float, high: float, rng: np.random.Generator) -> Array:
    """Draw one evaluation per level with the given standard deviation, shape (M, D), within the bounds.

    Each is the share of correct answers among the number of answers that gives this standard deviation. Far from the
    bounds this is close to a normal distribution. Next to a bound, a draw may lie exactly on it, as in real runs.
    """
    sd_MD = np.maximum(sd_MD / (high - low), LEAST_SD)
    # noise at a bound is one-sided, so the mean keeps this distance from the bound
    least_MD = np.minimum(LEAST_BOUND_DISTANCE * sd_MD, 0.5)
    p_MD = np.clip((level_MD - low) / (high - low), least_MD, 1.0 - least_MD)
    answers_MD = np.maximum(np.rint(p_MD * (1.0 - p_MD) / sd_MD**2), 1.0).astype(np.int64)
    return np.asarray(low + (high - low) * rng.binomial(answers_MD, p_MD) / answers_MD)
