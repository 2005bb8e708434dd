"""Fits the law by ordinary least squares, with standard errors that assume independent noise.

Variable projection finds starting points: at each cell of a grid over (ln C_mid, ln B), the best (A, R0) is a 2x2
linear problem. A trust-region search in all parameters starts from the best cells. For the autocorrelated noise of real
runs the standard errors are too small: in simulation, nominal 90% intervals contained the truth in 60% of the cases.
Use the posterior for decisions, and this method to compare with other software.

Standard errors assume that the law is nearly linear in its parameters within them. If the curve of the optimum is not
within the 90% band that follows from them, this does not hold, and the result has no uncertainty.

Axes in names: N points, G grid cells, D draws, P parameters in the order (A, ln C_mid, ln B, R0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import Draws, plain_draws
from scalerl.scaling.estimate import LEVEL, TAILS, Estimate
from scalerl.scaling.fit_result import FitResult, Parameters, lag_one, without_uncertainty
from scalerl.scaling.law import Array, climb, log_compute

STARTS = 4
"""Number of grid cells from which the search starts; one is enough if the noise is small."""


@dataclass(frozen=True)
class Search:
    """Search region of the optimum; an optimum at its edge is reported."""

    efficiency_range: tuple[float, float] = (0.1, 20.0)
    """Limits of B."""

    midpoint_range: tuple[float, float] = (0.05, 300.0)
    """Limits of C_mid: the lower in multiples of the first positive compute, the upper in multiples of the last."""

    cells: tuple[int, int] = (80, 40)
    """Grid cells along ln C_mid and ln B."""


def least_squares_result(curve: Curve, r0: float | None, search: Search) -> FitResult:
    """Fit by least squares; return the optimum, standard errors and covariance.

    Args:
        curve: Curve with at least five points.
        r0: Value at which R0 is fixed; None: R0 is fitted.
        search: Region to search.
    """
    from scipy.optimize import least_squares

    log_c_N, y_N = log_compute(curve.compute), curve.metric
    low, high = curve.bounds
    limits = log_limits(curve, search)
    free = [0, 1, 2, 3] if r0 is None else [0, 1, 2]
    lower = np.array([low, limits[0][0], limits[1][0], low])[free]
    upper = np.array([high, limits[0][1], limits[1][1], high])[free]

    def whole(theta: Array) -> Array:
        return np.append(theta, [] if r0 is None else r0)

    best = None
    for start in starts(log_c_N, y_N, r0, limits, search, (low, high)):
        # scipy warns of zero divided by zero if the gradient vanishes at a start, without harm
        with np.errstate(invalid="ignore", divide="ignore"):
            found = least_squares(
                lambda theta: law_at(log_c_N, whole(theta)) - y_N,
                np.clip(start[free], lower + 1e-9, upper - 1e-9),
                jac=lambda theta: jacobian(log_c_N, whole(theta))[:, free],
                bounds=(lower, upper), x_scale="jac", ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=500,
            )  # fmt: skip
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    theta_P = whole(best.x)
    edge = 1e-6 * (upper - lower)
    names = np.array(["asymptote", "midpoint", "efficiency", "initial"])[free]
    at_bound = tuple(names[(best.x - lower < edge) | (upper - best.x < edge)])
    return result_at(curve, theta_P, free, jacobian(log_c_N, theta_P), 2.0 * float(best.cost), at_bound)


def law_at(log_c_N: Array, theta_P: Array) -> Array:
    """Return the law at ln C, shape (N,)."""
    asymptote, log_midpoint, log_efficiency, initial = theta_P
    return np.asarray(initial + (asymptote - initial) * climb(log_c_N, log_midpoint, np.exp(log_efficiency)))


def jacobian(log_c_N: Array, theta_P: Array) -> Array:
    """Return the derivatives of the law by (A, ln C_mid, ln B, R0), shape (N, P)."""
    asymptote, log_midpoint, log_efficiency, initial = theta_P
    efficiency = np.exp(log_efficiency)
    u_N = climb(log_c_N, log_midpoint, efficiency)
    steep_N = (asymptote - initial) * efficiency * u_N * (1 - u_N)
    # at compute 0 the distance is infinite and the slope zero; their product is zero
    distance_N = np.where(np.isfinite(log_c_N), log_c_N - log_midpoint, 0.0)
    return np.stack([u_N, -steep_N, steep_N * distance_N, 1 - u_N], axis=1)


def log_limits(curve: Curve, search: Search) -> Array:
    """Return the limits of (ln C_mid, ln B), shape (2, 2)."""
    first = float(curve.compute[curve.compute > 0][0])
    shortest, longest = search.midpoint_range
    return np.asarray(np.log(np.array([[shortest * first, longest * curve.last_compute], search.efficiency_range])))


def starts(
    log_c_N: Array, y_N: Array, r0: float | None, limits: Array, search: Search, bounds: tuple[float, float]
) -> list[Array]:
    """Return the best cells of the projected problem, as full parameter vectors of shape (P,)."""
    axes = [np.linspace(limit[0], limit[1], cells) for limit, cells in zip(limits, search.cells, strict=True)]
    log_midpoint_G, log_efficiency_G = (a.ravel() for a in np.meshgrid(*axes, indexing="ij"))
    u_GN = climb(log_c_N, log_midpoint_G[:, None], np.exp(log_efficiency_G)[:, None])
    # regress y on u: slope A - R0, and level R0 unless it is fixed
    mean_u_G = u_GN.mean(axis=1) if r0 is None else np.zeros(len(u_GN))
    level = y_N.mean() if r0 is None else r0
    centered_GN = u_GN - mean_u_G[:, None]
    gain_G = centered_GN @ (y_N - level) / np.maximum((centered_GN**2).sum(axis=1), 1e-12)
    initial_G = np.clip(level - gain_G * mean_u_G if r0 is None else np.full(len(u_GN), r0), *bounds)
    asymptote_G = np.clip(initial_G + gain_G, *bounds)
    rss_G = ((initial_G[:, None] + (asymptote_G - initial_G)[:, None] * u_GN - y_N) ** 2).sum(axis=1)
    chosen = np.argsort(rss_G)[: STARTS * 8 : 8]
    return [np.array([asymptote_G[g], log_midpoint_G[g], log_efficiency_G[g], initial_G[g]]) for g in chosen]


def result_at(
    curve: Curve, theta_P: Array, free: list[int], jacobian_NP: Array, rss: float, at_bound: tuple[str, ...]
) -> FitResult:
    """Return the result at the optimum: standard errors from the curvature, t intervals, and multivariate t draws."""
    from scipy.special import stdtrit

    dof = max(len(curve) - len(free), 1)
    covariance_PP = np.zeros((4, 4))
    scatter = np.linalg.pinv(jacobian_NP[:, free].T @ jacobian_NP[:, free], hermitian=True)
    covariance_PP[np.ix_(free, free)] = scatter * (rss / dof)
    sd_P = np.sqrt(np.diag(covariance_PP))
    reach = float(stdtrit(dof, (1 + LEVEL) / 2))
    asymptote, log_midpoint, log_efficiency, initial = (float(value) for value in theta_P)

    def plain(value: float, sd: float) -> Estimate:
        low, high = np.clip([value - reach * sd, value + reach * sd], *curve.bounds)
        return Estimate(value, sd, float(low), float(high))

    def positive(log_value: float, log_sd: float) -> Estimate:
        # the interval is computed in the logarithm, so that it stays positive; sd is from the delta method
        value, factor = np.exp(log_value), np.exp(min(reach * log_sd, 300.0))
        return Estimate(float(value), float(value * log_sd), float(value / factor), float(value * factor))

    autocorrelation = lag_one(law_at(log_compute(curve.compute), theta_P) - curve.metric)
    noise_sd = float(np.sqrt(rss / dof))
    center = Parameters(asymptote, float(np.exp(log_efficiency)), float(np.exp(log_midpoint)), initial)
    draws = draws_around(curve, theta_P, covariance_PP, dof)
    result = without_uncertainty(center, at_bound, noise_sd, autocorrelation)
    if not band_holds(curve, theta_P, draws):
        return result
    return result._replace(
        asymptote=plain(asymptote, float(sd_P[0])),
        midpoint=positive(log_midpoint, float(sd_P[1])),
        efficiency=positive(log_efficiency, float(sd_P[2])),
        initial=plain(initial, float(sd_P[3])),
        covariance=covariance_PP,
        draws=draws,
    )


def band_holds(curve: Curve, theta_P: Array, draws: Draws) -> bool:
    """Return whether the curve of the optimum lies within the 90% band of the draws."""
    first, last = curve.compute[curve.compute > 0][[0, -1]]
    compute_M = np.geomspace(first / 100, last * 1000, 100)
    level_M = law_at(log_compute(compute_M), theta_P)
    low_M, high_M = np.quantile(draws.levels(compute_M, curve.bounds[1]), TAILS, axis=1)
    rounding = 1e-9 * np.ptp(curve.bounds)
    return bool(((low_M - rounding <= level_M) & (level_M <= high_M + rounding)).all())


def draws_around(curve: Curve, theta_P: Array, covariance_PP: Array, dof: int, num_draws: int = 4000) -> Draws:
    """Return multivariate t draws around the optimum, clipped to the metric's bounds."""
    rng = np.random.default_rng(0)
    # decomposed as correlations, because the parameters have very different scales
    scale_P = np.maximum(np.sqrt(np.diag(covariance_PP)), 1e-300)
    spread, axes = np.linalg.eigh(covariance_PP / scale_P / scale_P[:, None])
    normal_DP = rng.standard_normal((num_draws, 4)) @ (axes * np.sqrt(np.maximum(spread, 0.0))).T * scale_P
    chi_D = rng.chisquare(dof, num_draws)
    theta_DP = theta_P + normal_DP * np.sqrt(dof / chi_D)[:, None]
    rss = ((law_at(log_compute(curve.compute), theta_P) - curve.metric) ** 2).sum()
    log_midpoint_D, log_efficiency_D = np.clip(theta_DP[:, 1], -700, 700), np.clip(theta_DP[:, 2], -20, 20)
    return plain_draws(
        asymptote=np.clip(theta_DP[:, 0], *curve.bounds),
        efficiency=np.exp(log_efficiency_D),
        midpoint=np.exp(log_midpoint_D),
        initial=np.clip(theta_DP[:, 3], *curve.bounds),
        autocorrelation=np.zeros(num_draws),
        noise_sd=np.sqrt(rss / chi_D),
    )
