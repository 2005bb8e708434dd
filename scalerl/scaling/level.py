"""The two models of a run that stays where it is, solved in closed form: a steady level, and a level that wanders.

A steady level has the AR(1) noise of the law, so that it is the law without a climb: the evidence of both differs only
by the climb. It describes runs that have not fallen.

A level that wanders is y_t = m_t + white noise of variance s^2, m_t = m_(t-1) + a step of variance q s^2. With q = 0 it
is noise around one level; with a large q only the last values count, so a run that has fallen stays down. Steps are
evaluations. The covariance I + q K, K_ij = min(i, j), has the known eigenvectors of K for every q, so that one matrix
product solves the model for all values of q.

Axes in names: N points, F values of phi, Q values of q, D draws.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from scalerl.scaling.grid import systematic
from scalerl.scaling.law import Array
from scalerl.scaling.linear import LastCoefficient, Solved, draw, eliminate, gram, last_coefficient, log_evidence

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
    """The posterior of a level that wanders, in the unit of the data."""

    log_evidence: float
    """Log marginal likelihood, with a prior density of one for the level and 1/s for the noise, as in `linear`."""
    path_N: Array
    """Mean level at each point, given all points."""
    weight_Q: Array
    """Probability of each q."""
    level_Q: Array
    """Mean of the last level for each q."""
    spread_Q: Array
    """Variance of the last level for each q, in units of s^2."""
    rss_Q: Array
    """Residual sum of squares for each q, in units where s = 1."""

    def draws(self, count: int, rng: np.random.Generator) -> LevelDraws:
        """Return draws of the level at the last point and of the noise, shape (count,)."""
        chosen_D = systematic(self.weight_Q, count)
        dof = len(self.path_N) - 1
        sd_D = np.sqrt(self.rss_Q[chosen_D] / rng.chisquare(dof, count))
        level_D = self.level_Q[chosen_D] + sd_D * np.sqrt(self.spread_Q[chosen_D]) * rng.standard_normal(count)
        return LevelDraws(level_D, np.sqrt(STEP_RATIOS[chosen_D]) * sd_D, sd_D)


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
    (level_D,), sigma_D = draw(*solved(phi_D), np.random.default_rng(0))
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
        weight_Q=probability_Q,
        level_Q=offset + path_QN[:, -1],
        spread_Q=walk_Q + kept_Q**2 / information_Q,
        rss_Q=rss_Q,
    )
