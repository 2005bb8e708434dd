"""Closed-form integration of a linear model with AR(1) noise, for given columns.

y = sum_k beta_k x_k + noise, noise_t = phi noise_(t-1) + innovation of variance sigma^2. Prior: flat in beta, 1/sigma.
Arrays may have any leading axes, which broadcast, so many models are solved at once. Whitening (x_1 sqrt(1 - phi^2),
x_t - phi x_(t-1)) is not computed explicitly: the Gram matrix of whitened columns is a polynomial in phi,
total + phi^2 inner - phi lagged, so three sums are enough for all values of phi.

Axes in names: N points, K columns. The Gram matrix has K + 1 rows and columns, of which y is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.curves.law import Array

LEAST_MASS = 1e-300
"""Replaces a probability of zero before a logarithm."""


class Solved(NamedTuple):
    """Gram matrix after elimination: in row k, the columns before k are eliminated."""

    rows: list[list[Array]]
    """rows[k][j], j > k: product of columns k and j given the columns before k; index K is y."""

    pivots: list[Array]
    """Squared norm of column k given the columns before it; > 0."""

    rss: Array
    """Residual sum of squares at the optimum, in units of innovations, with the noise floor added."""

    dof: int
    """N - K."""


def gram(columns: Sequence[Array], phi: Array) -> list[list[Array]]:
    """Return the products of all pairs of columns, whitened with phi.

    Args:
        columns: Arrays of shape (N,) (plain) or (..., N); leading axes broadcast.
        phi: Autocorrelation of the noise, with the same leading axes.
    """
    rows: list[list[Array]] = [[np.zeros(())] * len(columns) for _ in columns]
    plain = [k for k, x_N in enumerate(columns) if x_N.ndim == 1]
    many = [k for k, x_N in enumerate(columns) if x_N.ndim > 1]
    # any column times a plain one: one matrix product for all plain columns is several times faster
    plain_NS = np.stack([columns[j] for j in plain], axis=1)
    plain_and_neighbors_N2S = np.concatenate([plain_NS, neighbors(plain_NS)], axis=1)
    for k, x_N in enumerate(columns):
        flat_N = x_N.reshape(-1, x_N.shape[-1])
        sums_2S = (flat_N @ plain_and_neighbors_N2S).reshape(*x_N.shape[:-1], 2 * len(plain))
        for s, j in enumerate(plain):
            total, lagged = sums_2S[..., s], sums_2S[..., len(plain) + s]
            rows[k][j] = rows[j][k] = whitened_product(x_N, columns[j], total, lagged, phi)
    # two columns with leading axes, pair by pair
    for k, j in combinations_with_replacement(many, 2):
        x_N, z_N = columns[j], columns[k]
        lagged = dot(x_N[..., 1:], z_N[..., :-1])
        lagged = 2 * lagged if j == k else lagged + dot(x_N[..., :-1], z_N[..., 1:])
        rows[k][j] = rows[j][k] = whitened_product(x_N, z_N, dot(x_N, z_N), lagged, phi)
    return rows


def neighbors(columns_NS: Array) -> Array:
    """Return the sum of the values before and after each value, shape (N, S)."""
    both_NS = np.zeros_like(columns_NS)
    both_NS[1:] = columns_NS[:-1]
    both_NS[:-1] += columns_NS[1:]
    return both_NS


def whitened_product(x_N: Array, z_N: Array, total: Array, lagged: Array, phi: Array) -> Array:
    """Return the product of two columns whitened with phi, from their product and that of neighboring values."""
    inner = total - x_N[..., 0] * z_N[..., 0] - x_N[..., -1] * z_N[..., -1]
    return np.asarray(total + phi * (phi * inner - lagged))


def dot(x_N: Array, z_N: Array) -> Array:
    """Return the scalar product along the last axis."""
    return np.asarray(np.einsum("...n,...n->...", x_N, z_N))


def combined(rows: list[list[Array]], mix: Sequence[Sequence[float]]) -> list[list[Array]]:
    """Return the products of linear combinations of columns; products of the combined columns would take more time.

    `rows` are the products of all pairs of columns; `mix` has the coefficients of each combination.
    """
    mixed = [[np.zeros(())] * len(mix) for _ in mix]
    for k, first in enumerate(mix):
        for j, second in enumerate(mix[k:], k):
            factors = [(a * b, rows[p][q]) for p, a in enumerate(first) for q, b in enumerate(second) if a * b != 0]
            start, *others = (product if factor == 1 else factor * product for factor, product in factors)
            mixed[k][j] = np.asarray(sum(others, start))
    return mixed


def eliminate(rows: list[list[Array]], num_points: int, floor: float) -> Solved:
    """Apply Gaussian elimination to the Gram matrix of (columns, y), in the given order.

    Args:
        rows: Products of all pairs of the K columns and y, from `gram` or `combined`.
        num_points: N.
        floor: Term added to the residual sum of squares, to avoid division by zero for data without noise.
    """
    last = len(rows) - 1
    rows = [list(row) for row in rows]
    pivots = []
    for k in range(last):
        # a column in the span of the earlier ones (a climb that has not begun) has norm zero
        pivot = np.maximum(rows[k][k], 1e-12)
        pivots.append(pivot)
        for i in range(k + 1, last + 1):
            share = rows[k][i] / pivot
            for j in range(i, last + 1):
                rows[i][j] = rows[i][j] - share * rows[k][j]
    return Solved(rows, pivots, np.maximum(rows[last][last], 0.0) + floor, num_points - last)


def normal_of_t(t: Array, dof: int) -> Array:
    """Return the normal deviate of the same probability as a t deviate (Wallace 1959; within 0.002 for dof >= 3)."""
    return np.asarray(np.sign(t) * ((8 * dof + 1) / (8 * dof + 3)) * np.sqrt(dof * np.log1p(t * t / dof)))


def t_of_normal(z: Array, dof: int) -> Array:
    """Return the inverse of `normal_of_t`."""
    scaled = z * ((8 * dof + 3) / (8 * dof + 1))
    return np.asarray(np.sign(z) * np.sqrt(dof * np.expm1(scaled * scaled / dof)))


class LastCoefficient(NamedTuple):
    """Posterior of the last coefficient: a Student t truncated to an interval."""

    center: Array
    scale: Array
    lower: Array
    """Probability of the t below the interval (above it, if mirrored)."""
    mass: Array
    """Probability of the t within the interval, at least LEAST_MASS."""
    mirrored: NDArray[np.bool_]
    """Whether the tails were swapped for numerical precision."""


def last_coefficient(solved: Solved, least: Array | float, most: Array | float) -> LastCoefficient:
    """Return the posterior of the last coefficient within [least, most]; the others and sigma are integrated out."""
    from scipy.special import ndtr

    last = len(solved.pivots) - 1
    center = solved.rows[last][last + 1] / solved.pivots[last]
    scale = np.sqrt(solved.rss / (solved.pivots[last] * solved.dof))
    low = normal_of_t((least - center) / scale, solved.dof)
    high = normal_of_t((most - center) / scale, solved.dof)
    # probabilities near one lose precision, so an interval in the upper tail is mirrored
    mirrored = low > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    lower = ndtr(low)
    return LastCoefficient(center, scale, lower, np.maximum(ndtr(high) - lower, LEAST_MASS), mirrored)


def log_evidence(solved: Solved, phi: Array, last: LastCoefficient) -> Array:
    """Log marginal likelihood, up to a constant of N; the last coefficient is integrated within its limits."""
    from scipy.special import gammaln

    half = 0.5 * solved.dof
    log_volume = sum(np.log(pivot) for pivot in solved.pivots)
    integral = gammaln(half) - half * np.log(np.pi * solved.rss)
    return np.asarray(integral - 0.5 * log_volume + 0.5 * np.log1p(-phi * phi) + np.log(last.mass))


def draw_coefficients(solved: Solved, last: LastCoefficient, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Draw all coefficients and sigma once from each of D models.

    Returns:
        The K coefficients in the order of the columns, each of shape (D,), and sigma of the innovations, shape (D,).
    """
    from scipy.special import ndtri

    (num_draws,) = solved.rss.shape
    K, dof = len(solved.pivots), solved.dof
    probability = np.clip(last.lower + last.mass * rng.random(num_draws), LEAST_MASS, 1 - 1e-16)
    deviate = np.where(last.mirrored, -1.0, 1.0) * ndtri(probability)
    value = last.center + last.scale * t_of_normal(deviate, dof)
    rss = solved.rss + solved.pivots[-1] * (value - last.center) ** 2
    betas = {K - 1: value}
    for k in range(K - 2, -1, -1):
        # given the later coefficients, only column k is left, with one more degree of freedom for each known one
        dof += 1
        center = (solved.rows[k][K] - sum(solved.rows[k][j] * betas[j] for j in range(k + 1, K))) / solved.pivots[k]
        betas[k] = center + np.sqrt(rss / (solved.pivots[k] * dof)) * rng.standard_t(dof, num_draws)
        rss = rss + solved.pivots[k] * (betas[k] - center) ** 2
    sigma = np.sqrt(rss / rng.chisquare(solved.dof + K, num_draws))
    return [betas[k] for k in range(K)], sigma
