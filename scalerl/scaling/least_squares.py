"""Fits the law without a prior: by ordinary least squares, and by the procedure of the paper.

Least squares: variable projection finds starting points: at each cell of a grid over (ln C_mid, ln B), the best (A, R0)
is a 2x2 linear problem. A trust-region search in all parameters starts from the best cells. For the autocorrelated
noise of real runs the standard errors are too small: in simulation, nominal 90% intervals contained the truth in 60% of
the cases. Use the posterior for decisions, and this method to compare with other software. Standard errors assume that
the law is nearly linear in its parameters within them. If the curve of the optimum is not within the 90% band that
follows from them, this does not hold, and the result has no uncertainty.

The paper's procedure (arXiv 2510.13786, appendix A.5) reproduces its numbers and gives no uncertainty. A and C_mid lie
on a grid, and B is fitted for each pair. R0 is fixed at the score before training. The result is the pair with the
smallest sum of squares.

Axes in names: N points, G grid cells, D draws, P parameters in the order (A, ln C_mid, ln B, R0); in the paper's
procedure A asymptotes, M midpoints, B trial efficiencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.estimate import LEVEL, TAILS, Estimate
from scalerl.scaling.forecast import FitResult, without_uncertainty
from scalerl.scaling.law import Array, Draws, climb, derivatives, log_compute, plain_draws
from scalerl.scaling.readers import CurveError


def lag_one(residual_N: Array) -> float:
    """Return the autocorrelation of residuals between neighboring points, in [-1, 1]; 0 if all residuals are zero."""
    total = float(residual_N @ residual_N)
    return float(residual_N[1:] @ residual_N[:-1]) / total if total > 0 else 0.0


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
            optimum = least_squares(
                lambda theta: law_at(log_c_N, whole(theta)) - y_N,
                np.clip(start[free], lower + 1e-9, upper - 1e-9),
                jac=lambda theta: jacobian(log_c_N, whole(theta))[:, free],
                bounds=(lower, upper), x_scale="jac", ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=500,
            )  # fmt: skip
        if best is None or optimum.cost < best.cost:
            best = optimum
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
    return derivatives(log_c_N, asymptote, log_midpoint, np.exp(log_efficiency), initial)


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
    center = (asymptote, float(np.exp(log_efficiency)), float(np.exp(log_midpoint)), initial)
    draws = draws_around(curve, theta_P, covariance_PP, dof)
    result = without_uncertainty(center, at_bound, noise_sd, autocorrelation)
    if not band_holds(curve, theta_P, draws):
        return result
    return replace(
        result,
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


SCAN = 0.1
"""Step of the scan in ln B."""

TRIAL_EFFICIENCIES = np.exp(np.arange(np.log(0.05), np.log(20.0), SCAN))
"""Values of B that are tried before the refinement."""


@dataclass(frozen=True)
class PaperGrid:
    """Grid of A and C_mid. The published table uses different ranges for different runs."""

    asymptotes: Sequence[float] | None = None
    """Values of A; None: 200 steps over the metric's range (0.005 for a pass rate, the paper's step)."""

    midpoints: Sequence[float] | None = None
    """Values of C_mid, in the curve's compute unit; None: steps of a hundredth of the last compute, up to 2.5 times it.

    This is the paper's range (40,000 for runs of 16,000). The range acts as a prior.
    """


PUBLISHED_GRID = PaperGrid(
    asymptotes=tuple(np.round(np.arange(0.450, 0.8001, 0.005), 3)), midpoints=tuple(np.linspace(100, 40_000, 100))
)
"""The ranges printed in the paper, in GPU-hours. Its small runs use linspace(100, 4000, 100)."""


def paper_result(curve: Curve, r0: float | None, grid: PaperGrid) -> FitResult:
    """Fit by the paper's procedure; return the best grid point and its B.

    Args:
        curve: Curve with at least five points.
        r0: Value at which R0 is fixed; None: the first point of the curve.
        grid: Values of A and C_mid to try.

    Raises:
        CurveError: No asymptote of the grid lies above R0.
    """
    initial = float(curve.metric[0]) if r0 is None else r0
    low, high = curve.bounds
    asymptote_A = (
        low + (high - low) * np.arange(1, 201) / 200 if grid.asymptotes is None else np.asarray(grid.asymptotes, float)
    )
    last = curve.last_compute
    midpoint_M = last * np.arange(1, 251) / 100 if grid.midpoints is None else np.asarray(grid.midpoints, float)
    asymptote_A = asymptote_A[asymptote_A > initial]
    if not len(asymptote_A):
        raise CurveError(
            f"no asymptote of the grid lies above R0 = {initial:.4g}; give larger values in PaperGrid(asymptotes=...)"
        )
    after_N = curve.compute > 0
    log_c_N, rise_N = log_compute(curve.compute[after_N]), curve.metric[after_N] - initial
    index_A, index_M, efficiency = best_point(log_c_N, rise_N, asymptote_A - initial, np.log(midpoint_M))
    asymptote, midpoint = float(asymptote_A[index_A]), float(midpoint_M[index_M])
    edges = {"asymptote": index_A in (0, len(asymptote_A) - 1), "midpoint": index_M in (0, len(midpoint_M) - 1)}
    residual_N = rise_N - (asymptote - initial) * climb(log_c_N, np.log(midpoint), efficiency)
    noise_sd = float(np.sqrt((residual_N**2).mean()))
    at_bound = tuple(name for name, at_edge in edges.items() if at_edge)
    return without_uncertainty((asymptote, efficiency, midpoint, initial), at_bound, noise_sd, lag_one(residual_N))


def best_point(log_c_N: Array, rise_N: Array, gain_A: Array, log_midpoint_M: Array) -> tuple[int, int, float]:
    """Return the indices of A and C_mid, and the value of B, with the smallest sum of squares.

    With g = A - R0 the sum is |rise|^2 - 2 g (u . rise) + g^2 (u . u): two sums over the points are enough for every A.
    """
    u_MBN = climb(log_c_N, log_midpoint_M[:, None, None], TRIAL_EFFICIENCIES[:, None])
    cross_MB, square_MB = u_MBN @ rise_N, (u_MBN**2).sum(axis=2)
    cost_AMB = gain_A[:, None, None] ** 2 * square_MB - 2 * gain_A[:, None, None] * cross_MB
    # the scan of B is coarse, so the best pairs are refined before one is chosen
    cost_AM = cost_AMB.min(axis=2)
    pairs = np.argsort(cost_AM, axis=None)[:400]
    index_A, index_M = np.unravel_index(pairs, cost_AM.shape)
    log_b = np.log(TRIAL_EFFICIENCIES)[cost_AMB[index_A, index_M].argmin(axis=1)]
    log_b, cost = refine(log_c_N, rise_N, gain_A[index_A], log_midpoint_M[index_M], log_b)
    best = int(cost.argmin())
    return int(index_A[best]), int(index_M[best]), float(np.exp(log_b[best]))


def refine(log_c_N: Array, rise_N: Array, gain_A: Array, log_midpoint_M: Array, log_b: Array) -> tuple[Array, Array]:
    """Return ln B of each pair by Gauss-Newton, with steps limited to the step of the scan, and the sum of squares."""
    distance_N = log_c_N - log_midpoint_M[:, None]
    for _ in range(25):
        u_N = climb(log_c_N, log_midpoint_M[:, None], np.exp(log_b)[:, None])
        slope_N = gain_A[:, None] * u_N * (1 - u_N) * distance_N * np.exp(log_b)[:, None]
        residual_N = rise_N - gain_A[:, None] * u_N
        step = (slope_N * residual_N).sum(axis=1) / np.maximum((slope_N**2).sum(axis=1), 1e-300)
        log_b = np.clip(log_b + np.clip(step, -SCAN, SCAN), -4.0, 4.0)
    u_N = climb(log_c_N, log_midpoint_M[:, None], np.exp(log_b)[:, None])
    return log_b, ((rise_N - gain_A[:, None] * u_N) ** 2).sum(axis=1)
