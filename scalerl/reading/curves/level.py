"""The two models of a run that stays where it is, solved in closed form: a steady level, and a level that wanders.

A steady level has the AR(1) noise of the law, so that it is the law without a climb: the evidence of both differs only
by the climb. It describes runs that have not fallen.

A level that wanders is y_t = m_t + white noise of variance s^2, m_t = m_(t-1) + a step of variance q s^2. With q = 0 it
is noise around one level; with a large q only the last values count, so a run that has fallen stays down. Steps are
evaluations. The covariance I + q K, K_ij = min(i, j), has the known eigenvectors of K for every q, so that one matrix
product solves the model for all values of q.

A run that has fallen may have done so between two evaluations. The step says nothing about the noise or the drift at
the new level, but a walk would need a large q for it. `level_after_change` therefore also tries a change to any other
level, at any evaluation after the best one, with separate values of q before and after it.

Axes in names: N points, F values of phi, Q values of q, T evaluations at which the level may have changed, X models,
D draws.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.grid import systematic
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.linear import (
    LastCoefficient,
    Solved,
    draw_coefficients,
    eliminate,
    gram,
    last_coefficient,
    log_evidence,
)

STEP_RATIOS = np.array([0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
"""Values of q, with equal prior probability."""


class SteadyLevel(NamedTuple):
    """Draws of a steady level, each of shape (D,), and its evidence, in the unit of the data."""

    level_D: Array
    phi_D: Array
    """Correlation of the noise of neighboring points."""
    noise_D: Array
    """Standard deviation of one evaluation around the level."""
    log_evidence: float
    """Log marginal likelihood; prior density one for the level and 1/sigma for the noise, as in `linear`."""


class LevelDraws(NamedTuple):
    """Draws of a level that wanders and its noise, each of shape (D,), in the metric's unit."""

    level: Array
    """The level at the last point."""
    step_sd: Array
    """Standard deviation of the level's change from one evaluation to the next."""
    noise_sd: Array
    """Standard deviation of one evaluation around the level."""


class LevelPosterior(NamedTuple):
    """The posterior of a level that wanders, in the unit of the data. X models differ in q, or in more."""

    log_evidence: float
    """Log marginal likelihood, with a prior density of one for the level and 1/s for the noise, as in `linear`."""
    path_N: Array
    """Mean level at each point, given all points."""
    weight_X: Array
    """Probability of each model."""
    level_X: Array
    """Mean of the last level."""
    spread_X: Array
    """Variance of the last level, in units of s^2."""
    rss_X: Array
    """Residual sum of squares, in units where s = 1."""
    ratio_X: Array
    """q at the last point."""
    dof_X: Array
    """Number of points less that of levels."""

    def draws(self, count: int, rng: np.random.Generator) -> LevelDraws:
        """Return draws of the level at the last point and of the noise, shape (count,)."""
        chosen_D = systematic(self.weight_X, count)
        sd_D = np.sqrt(self.rss_X[chosen_D] / rng.chisquare(self.dof_X[chosen_D], count))
        level_D = self.level_X[chosen_D] + sd_D * np.sqrt(self.spread_X[chosen_D]) * rng.standard_normal(count)
        return LevelDraws(level_D, np.sqrt(self.ratio_X[chosen_D]) * sd_D, sd_D)


def steady_level(
    y_N: Array, floor: float, phi_F: Array, least: float, most: float, count: int, weight_N: Array | None = None
) -> SteadyLevel:
    """Return the posterior of one level with AR(1) noise.

    Args:
        y_N: Data, at least 3 points.
        floor: Added to the residual sum of squares, as in `linear.eliminate`.
        phi_F: Values of phi, equally likely.
        least: Lower limit of the level.
        most: Upper limit of the level.
        count: Number of draws.
        weight_N: Inverse of the noise of each point relative to the others; None if it is the same.
    """
    column_N = np.ones_like(y_N) if weight_N is None else weight_N

    def solved(phi: Array) -> tuple[Solved, LastCoefficient]:
        model = eliminate(gram([column_N, y_N * column_N], phi), len(y_N), floor)
        return model, last_coefficient(model, least, most)

    model, coefficient = solved(phi_F)
    log_density_F = log_evidence(model, phi_F, coefficient) + log_scale(weight_N)
    peak = float(log_density_F.max())
    mass_F = np.exp(log_density_F - peak)
    phi_D = phi_F[systematic(mass_F, count)]
    (level_D,), sigma_D = draw_coefficients(*solved(phi_D), np.random.default_rng(0))
    return SteadyLevel(level_D, phi_D, sigma_D / np.sqrt(1.0 - phi_D**2), peak + float(np.log(mass_F.mean())))


@lru_cache(maxsize=64)
def walk_modes(count: int) -> tuple[Array, Array]:
    """Return the eigenvalues, shape (N,), and eigenvectors, shape (N, N), of K_ij = min(i, j), i = 0 to N - 1.

    K without its first row and column is the inverse of a second-difference matrix, whose modes are sines.
    """
    m = count - 1
    index, mode = np.arange(1, m + 1), np.arange(1, m + 1)
    angle = (2 * mode - 1) * np.pi / (2 * m + 1)
    vectors_NN = np.zeros((count, count))
    vectors_NN[0, 0] = 1.0
    vectors_NN[1:, 1:] = np.sin(np.outer(index, angle)) * (2.0 / np.sqrt(2 * m + 1))
    values_N = np.append(0.0, 1.0 / (2.0 - 2.0 * np.cos(angle)))
    return values_N, vectors_NN


def weighted_modes(weight_N: Array) -> tuple[Array, Array]:
    """Return the eigenvalues and eigenvectors of the covariance of a walk whose values are multiplied by weights."""
    step_N = np.arange(len(weight_N), dtype=np.float64)
    values_N, vectors_NN = np.linalg.eigh(np.minimum.outer(step_N, step_N) * np.outer(weight_N, weight_N))
    return np.maximum(values_N, 0.0), vectors_NN


def log_scale(weight_N: Array | None) -> float:
    """Log ratio of the density of points to the density of weighted points."""
    return 0.0 if weight_N is None else float(np.log(weight_N).sum())


def level_posterior(y_N: Array, floor: float, weight_N: Array | None = None) -> LevelPosterior:
    """Return the posterior of a level that wanders.

    Args:
        y_N: Data, at least 3 points.
        floor: Term added to the residual sum of squares, as in `linear.eliminate`.
        weight_N: Inverse of the noise of each point relative to the others; None if the noise is the same.
    """
    from scipy.special import gammaln

    values_N, vectors_NN = walk_modes(len(y_N)) if weight_N is None else weighted_modes(weight_N)
    scale_N = np.ones(len(y_N)) if weight_N is None else weight_N
    offset = float(y_N.mean())
    precision_QN = 1.0 / (1.0 + STEP_RATIOS[:, None] * values_N)
    one_N, data_N = scale_N @ vectors_NN, (scale_N * (y_N - offset)) @ vectors_NN
    information_Q = precision_QN @ one_N**2
    mean_Q = (precision_QN @ (one_N * data_N)) / information_Q
    rss_Q = np.maximum(precision_QN @ data_N**2 - mean_Q**2 * information_Q, 0.0) + floor
    half = 0.5 * (len(y_N) - 1)
    log_density_Q = gammaln(half) - half * np.log(np.pi * rss_Q)
    log_density_Q += 0.5 * np.log(precision_QN).sum(axis=1) - 0.5 * np.log(information_Q)
    peak = float(log_density_Q.max())
    weight_Q = np.exp(log_density_Q - peak)
    # the level at each point: the mean, and q K times the whitened residuals
    share_QN = STEP_RATIOS[:, None] * values_N * precision_QN
    path_QN = mean_Q[:, None] + (share_QN * (data_N - mean_Q[:, None] * one_N)) @ vectors_NN.T / scale_N
    last_N = vectors_NN[-1] / scale_N[-1]
    # variance at the last point: of the walk given the data, plus that of the mean
    walk_Q = share_QN @ last_N**2
    kept_Q = 1.0 - share_QN @ (last_N * one_N)
    probability_Q = weight_Q / weight_Q.sum()
    return LevelPosterior(
        log_evidence=peak + float(np.log(weight_Q.mean())) + log_scale(weight_N),
        path_N=offset + probability_Q @ path_QN,
        weight_X=probability_Q,
        level_X=offset + path_QN[:, -1],
        spread_X=walk_Q + kept_Q**2 / information_Q,
        rss_X=rss_Q,
        ratio_X=STEP_RATIOS,
        dof_X=np.full(len(STEP_RATIOS), len(y_N) - 1),
    )


class Tails(NamedTuple):
    """A level that wanders, solved for every last part of the points and every q; each field has the shape (N, Q).

    Entry n is that of the points from n on.
    """

    rss_NQ: Array
    log_volume_NQ: Array
    """Log of the determinant of the covariance times the information about the level, in units where s = 1."""
    level_NQ: Array
    """Mean of the level at the last point."""
    spread_NQ: Array
    """Its variance, in units of s^2."""


def tails(y_N: Array, variance_N: Array) -> Tails:
    """Return the solutions of every last part of the points, from a Kalman filter that runs back in time.

    Its state is the level at the present point and at the last one (a fixed-point smoother). A flat prior of the level
    at the last point is one at any point.

    Args:
        y_N: Data.
        variance_N: Variance of the noise of each point, in units of s^2.
    """
    # only the recursions are in the loop; the sums over points follow it
    off_NQ, shared_NQ, total_NQ = np.zeros((3, len(y_N), len(STEP_RATIOS)))
    here_Q = np.full(len(STEP_RATIOS), y_N[-1])
    var_Q = shared_Q = np.full(len(STEP_RATIOS), variance_N[-1])
    for n in range(len(y_N) - 2, -1, -1):
        var_Q = var_Q + STEP_RATIOS
        total_Q, off_Q = var_Q + variance_N[n], y_N[n] - here_Q
        off_NQ[n], shared_NQ[n], total_NQ[n] = off_Q, shared_Q, total_Q
        here_Q = here_Q + var_Q / total_Q * off_Q
        shared_Q = shared_Q * variance_N[n] / total_Q
        var_Q = var_Q * variance_N[n] / total_Q
    total_NQ[-1] = 1.0
    level_NQ, spread_NQ = shared_NQ / total_NQ * off_NQ, -(shared_NQ**2) / total_NQ
    level_NQ[-1], spread_NQ[-1] = y_N[-1], variance_N[-1]
    steps = (off_NQ**2 / total_NQ, np.log(total_NQ), level_NQ, spread_NQ)
    return Tails(*(np.cumsum(step_NQ[::-1], axis=0)[::-1] for step_NQ in steps))


def level_after_change(y_N: Array, floor: float, first: int, weight_N: Array | None = None) -> LevelPosterior:
    """Return the posterior of a level that wanders, and that may have changed to any other between two evaluations.

    A change and none are equally likely before the data, and so are all evaluations from `first` on. The noise s is the
    same before and after it, q is not.

    Args:
        y_N: Data, at least 3 points.
        floor: Term added to the residual sum of squares, as in `linear.eliminate`.
        first: Index of the first point that may have the new level, at least 1.
        weight_N: Inverse of the noise of each point relative to the others; None if the noise is the same.
    """
    from scipy.special import gammaln

    whole, count = level_posterior(y_N, floor, weight_N), len(y_N)
    variance_N = np.ones(count) if weight_N is None else weight_N**-2.0
    after, before = tails(y_N, variance_N), tails(y_N[::-1], variance_N[::-1])
    # of the points before t, counted from the end of the reversed ones; axes T, q before, q after
    rss_TQQ = before.rss_NQ[::-1][first - 1 : -1, :, None] + after.rss_NQ[first:, None, :] + floor
    volume_TQQ = before.log_volume_NQ[::-1][first - 1 : -1, :, None] + after.log_volume_NQ[first:, None, :]
    half = 0.5 * (count - 2)
    log_density_TQQ = gammaln(half) - half * np.log(np.pi * rss_TQQ) - 0.5 * volume_TQQ
    peak = float(log_density_TQQ.max())
    mass_TQQ = np.exp(log_density_TQQ - peak)
    changed = peak + float(np.log(mass_TQQ.mean()))
    log_evidence = float(np.logaddexp(whole.log_evidence, changed)) - np.log(2.0)
    share = np.exp(changed - log_evidence) / 2.0

    def of_change(each_TQ: Array) -> Array:
        return np.broadcast_to(each_TQ[:, None, :], mass_TQQ.shape).ravel()

    at = first + int(mass_TQQ.sum(axis=(1, 2)).argmax())
    parts = [y_N[part] if len(y_N[part]) < 3 else level_posterior(y_N[part], floor).path_N
             for part in (slice(at), slice(at, None))]  # fmt: skip
    ratio_TQ = np.broadcast_to(STEP_RATIOS, after.rss_NQ[first:].shape)
    joined = np.concatenate
    return LevelPosterior(
        log_evidence=log_evidence,
        path_N=(1.0 - share) * whole.path_N + share * joined(parts),
        weight_X=joined([(1.0 - share) * whole.weight_X, share * (mass_TQQ / mass_TQQ.sum()).ravel()]),
        level_X=joined([whole.level_X, of_change(after.level_NQ[first:])]),
        spread_X=joined([whole.spread_X, of_change(after.spread_NQ[first:])]),
        rss_X=joined([whole.rss_X, rss_TQQ.ravel()]),
        ratio_X=joined([whole.ratio_X, of_change(ratio_TQ)]),
        dof_X=joined([whole.dof_X, np.full(mass_TQQ.size, count - 2)]),
    )
