"""Draws of one family of rising curves with AR(1) noise, on a grid that zooms in on its mass.

The noise coefficient phi has a list of values; the shape parameters of the curve have a grid (`grid`). Given these,
the curve is linear in the other parameters, which are integrated in closed form together with sigma (`linear`).

Axes in names: N points, F values of phi, D draws, K parameters on the grid, L columns of the quick test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.reading.curves import linear
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.families import CREEP_REACH, LAW, CurveFamily
from scalerl.reading.curves.grid import Cells, pick, systematic, zoom
from scalerl.reading.curves.law import Array, Draws, climb, fast_climb, log_compute, scaled
from scalerl.reading.curves.level import log_scale
from scalerl.reading.curves.noise import least_noise, relative_noise
from scalerl.reading.tables.errors import CurveError

MIN_POINTS = 5
"""Smallest number of points: one more than the parameters of the law."""

DEPARTURE_PHI = slice(0, None, 2)
"""Values of phi for departures, and for the comparison of the law with them."""

LEAST_LAWFUL = 0.02
"""Share of a family's mass within the metric's limits and R0 <= A below which the family is dropped."""


@dataclass(frozen=True)
class Prior:
    """The prior. The defaults were chosen on simulated curves."""

    efficiency: float = 1.7
    """Median of B; published fits are between 1.1 and 2.4."""

    efficiency_spread: float = 0.7
    """Standard deviation of ln B; 0.7 puts 90% of B between 0.54 and 5.4."""

    efficiency_range: tuple[float, float] = (0.4, 5.0)
    """Hard limits of B."""

    midpoint_reach: float = 30.0
    """Largest C_mid, in multiples of the last compute.

    ln C_mid is uniform up to the last compute; beyond it, the density falls as 1/C_mid, so the probability of a
    midpoint beyond k times the last compute falls as 1/k.
    """

    autocorrelations: tuple[float, ...] = (0.0, 0.4, 0.6, 0.75, 0.88, 0.95)
    """Values of phi, equally likely."""

    departure: float = 0.05
    """Probability of each departure (late start, second rise, creep, fast end), below 1/3; 0 excludes them."""

    def __post_init__(self) -> None:
        low, high = self.efficiency_range
        checks = {
            "efficiency_range must ascend from above 0": 0 < low < high,
            "efficiency and efficiency_spread must be positive": self.efficiency > 0 and self.efficiency_spread > 0,
            "midpoint_reach must be at least 1": self.midpoint_reach >= 1,
            "autocorrelations must lie in [0, 1), at least one": self.autocorrelations
            and all(0 <= phi < 1 for phi in self.autocorrelations),
            "departure must lie in [0, 1/3)": 0 <= self.departure < 1 / 3,
        }
        for rule, holds in checks.items():
            if not holds:
                raise CurveError(f"{rule}; got {self}")


class Problem(NamedTuple):
    """The curve as the sampler uses it: ln of compute over the last value, and the centered metric over its range."""

    log_c_N: Array
    y_N: Array
    last: float
    offset: float
    width: float
    least: float
    most: float
    bound: float
    """Largest possible value of the metric, in its unit."""
    initial: float | None
    """R0 if it is fixed."""
    floor: float
    prior: Prior
    limits: Array
    """Box of (ln C_mid, ln B), shape (2, 2)."""
    weight_N: Array | None = None
    """Inverse of the noise of each point relative to the others; None if it is the same."""
    asymptote: float | None = None
    """A if it is fixed; R0 is then fitted."""


def standardized(curve: Curve, r0: float | None, prior: Prior) -> Problem:
    """Return the problem with centered and scaled metric, so that tolerances do not depend on the metric."""
    low, high = curve.bounds
    width, offset, last = high - low, float(curve.metric.mean()), curve.last_compute
    noise_N = relative_noise(curve)
    return Problem(
        log_c_N=log_compute(curve.compute / last),
        y_N=(curve.metric - offset) / width,
        last=last,
        offset=offset,
        width=width,
        least=(low - offset) / width,
        most=(high - offset) / width,
        bound=high,
        initial=None if r0 is None else (r0 - offset) / width,
        floor=len(curve) * least_noise(curve) ** 2,
        prior=prior,
        limits=np.log(np.array([(least_midpoint(curve), prior.midpoint_reach), prior.efficiency_range])),
        weight_N=None if noise_N is None else 1.0 / noise_N,
    )


def least_midpoint(curve: Curve) -> float:
    """Return the smallest C_mid over the last compute: half the first point; 1/200 unless three points are below it."""
    early = curve.compute[curve.compute > 0][:3] / curve.last_compute
    return float(early[0] / 2 if early[-1] < 1 / 200 else max(early[0] / 2, 1 / 200))


def log_prior(log_midpoint: Array, log_efficiency: Array, prior: Prior) -> Array:
    """Log density over (ln C_mid, ln B), up to a constant; arguments broadcast."""
    spread = (log_efficiency - np.log(prior.efficiency)) / prior.efficiency_spread
    return np.asarray(-0.5 * spread**2 - np.maximum(log_midpoint, 0.0))


def log_volume(problem: Problem) -> float:
    """Log integral of the prior over (ln C_mid, ln B), and of R0 <= A, which takes half of the square of both."""
    from scipy.special import ndtr

    (least, most), efficiencies = problem.limits
    prior = problem.prior
    low, high = ndtr((efficiencies - np.log(prior.efficiency)) / prior.efficiency_spread)
    midpoints = -least + 1.0 - np.exp(-most)
    return float(np.log(midpoints * prior.efficiency_spread * np.sqrt(2 * np.pi) * (high - low) / 2))


def solve(
    problem: Problem, family: CurveFamily, place_K: list[Array], phi: Array
) -> tuple[linear.Solved, linear.LastCoefficient, Array]:
    """Solve the linear problem in R0 (unless fixed), A and the second rise at each place; return its log density."""
    first, second = family.columns(problem.log_c_N, place_K)
    least, most = problem.least, problem.most
    # columns and data as combinations of 1, the first rise and y
    complement, rise, data = [1.0, -1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    if problem.asymptote is not None:
        mix, most = [complement, [0.0, -problem.asymptote, 1.0]], problem.asymptote
    elif problem.initial is not None:
        # the coefficient is A - R0
        mix, least, most = [rise, [-problem.initial, 0.0, 1.0]], 0.0, most - problem.initial
    else:
        mix = [complement, rise, data]
    columns = [np.ones_like(problem.y_N), first, problem.y_N.copy()]
    if second is not None:
        columns, least, most = [*columns, second], 0.0, family.most_second
        mix = [[*row, 0.0] for row in mix]
        mix.insert(-1, [0.0, 0.0, 0.0, 1.0])
    if problem.weight_N is not None:
        # in place, so y above is a copy
        columns = [scaled(column, problem.weight_N) for column in columns]
    rows = linear.gram(columns, phi)
    solved = linear.eliminate(linear.combined(rows, mix), len(problem.y_N), problem.floor)
    coefficient = linear.last_coefficient(solved, least, most)
    density = linear.log_evidence(solved, phi, coefficient) + log_prior(place_K[0], place_K[1], problem.prior)
    # prior densities of the parameters that the law does not have, so that families can be compared
    volume = np.prod([high - low for low, high in family.limits_K2]) * (family.most_second or 1.0)
    # the density of the points, not of the weighted points
    density = density + log_scale(problem.weight_N)
    return solved, coefficient, np.asarray(density - np.log(volume))


def explore(problem: Problem, family: CurveFamily) -> Cells:
    """Return the grid that contains the mass of a family; its variants are the values of phi."""
    phis = np.array(problem.prior.autocorrelations)[phi_of(family)]
    phi_F = phis.reshape(-1, *[1] * len(family.cells_K))

    def log_density(centers_K: list[Array]) -> Array:
        density = solve(problem, family, list(np.ix_(*centers_K)), phi_F)[2]
        return np.broadcast_to(density, (len(phis), *family.cells_K))

    return zoom(log_density, np.concatenate([problem.limits, np.reshape(family.limits_K2, (-1, 2))]), family.cells_K)


def phi_of(family: CurveFamily) -> slice:
    """Return the slice of the values of phi that are used for a family."""
    return slice(None) if family is LAW else DEPARTURE_PHI


def sample_family(problem: Problem, family: CurveFamily, cells: Cells, num_draws: int) -> tuple[Draws, float]:
    """Return draws of one family, and the share of its mass within the limits that the grid ignores.

    These are least <= R0 <= A, no level above the metric's bound so far, and the prior of a second rise. If no draw
    obeys them, the curve only falls; the draws are then used unchanged, and `health` warns.
    """
    rng = np.random.default_rng(0)
    picks = pick(cells, num_draws, rng)
    phi_D = np.array(problem.prior.autocorrelations)[phi_of(family)][picks.variant_D]
    solved, coefficient, log_density_D = solve(problem, family, list(picks.place_KD), phi_D)
    betas, sigma_D = linear.draw_coefficients(solved, coefficient, rng)
    second_D = betas.pop() if family.most_second else np.zeros(num_draws)
    initial_D, plateau_D = end_levels(problem, betas)
    bends = family.bends(list(picks.place_KD), second_D)
    level_D = plateau_D + bends.second_gain * climb(0.0, np.log(bends.second_midpoint), bends.second_efficiency)
    lawful_D = (initial_D >= problem.least - 1e-12) & (initial_D <= plateau_D) & (level_D <= problem.most + 1e-12)
    moved_D = np.exp(np.minimum(log_density_D - picks.log_density_D, 10.0))
    weight_D = moved_D * lawful_D * family.weight_second(second_D)
    lawful = float(weight_D.sum() / moved_D.sum())
    metric, width = problem.offset, problem.width
    draws = Draws(
        asymptote=metric + width * np.minimum(plateau_D + bends.second_gain, problem.most),
        efficiency=np.exp(picks.place_KD[1]),
        midpoint=problem.last * (np.exp(picks.place_KD[0]) + bends.delay),
        initial=metric + width * initial_D,
        autocorrelation=phi_D,
        noise_sd=width * sigma_D / np.sqrt(1.0 - phi_D**2),
        plateau=metric + width * plateau_D,
        delay=problem.last * bends.delay,
        second_midpoint=problem.last * bends.second_midpoint,
        second_efficiency=bends.second_efficiency,
        second_gain=width * bends.second_gain,
        fast=bends.fast,
        most=problem.bound,
    )
    index_D = systematic(weight_D if lawful > 0 else moved_D, num_draws)
    return draws.select(index_D), lawful


def end_levels(problem: Problem, betas: list[Array]) -> tuple[Array, Array]:
    """Return R0 and A of each draw from the coefficients; one of them may be fixed."""
    if problem.asymptote is not None:
        return betas[0], np.full_like(betas[0], problem.asymptote)
    if problem.initial is not None:
        return np.full_like(betas[0], problem.initial), betas[0] + problem.initial
    return betas[0], betas[1]


def suspicion(problem: Problem, cells: Cells) -> float:
    """Return the largest t value of a departure's column added to the best fit of the law, for nearly white noise.

    The tangents of the law are included, so that C_mid and B can adapt. This tests a departure to first order and takes
    2% of the time of its evidence.
    """
    log_c_N, (log_midpoint, efficiency) = problem.log_c_N, best_place(cells)
    u_N = climb(log_c_N, log_midpoint, efficiency)
    steep_N = u_N * (1 - u_N)
    since_start_N = np.where(np.isfinite(log_c_N), -steep_N * np.exp(-np.maximum(log_c_N, log_c_N[1])), 0.0)
    second_LN = climb(log_c_N, np.log(TEST_MIDPOINTS)[:, None], TEST_EFFICIENCIES[:, None])
    return largest_t(problem, cells, np.vstack([second_LN, since_start_N]))


def fast_suspicion(problem: Problem, cells: Cells) -> float:
    """Return the t value, as in `suspicion`, of what a climb that ends exponentially differs by from the law."""
    fast_N = fast_climb(problem.log_c_N, *best_place(cells))
    return largest_t(problem, cells, fast_N[None])


def best_place(cells: Cells) -> tuple[float, float]:
    """Return ln C_mid and B of the best fit of the law, for nearly white noise."""
    i, j = np.unravel_index(int(cells.log_density[0].argmax()), cells.log_density[0].shape)
    return float(cells.centers_K[0][i]), float(np.exp(cells.centers_K[1][j]))


def largest_t(problem: Problem, cells: Cells, test_LN: Array) -> float:
    """Return the largest t value of any column added to the best fit of the law and its tangents."""
    phi, log_c_N, (log_midpoint, efficiency) = problem.prior.autocorrelations[0], problem.log_c_N, best_place(cells)
    u_N = climb(log_c_N, log_midpoint, efficiency)
    steep_N = u_N * (1 - u_N)
    distance_N = np.where(np.isfinite(log_c_N), log_c_N - log_midpoint, 0.0)
    weight_N = np.ones_like(u_N) if problem.weight_N is None else problem.weight_N
    law_PN = whitened(np.stack([1 - u_N, u_N, steep_N, steep_N * distance_N]) * weight_N, phi)
    test_LN = whitened(test_LN * weight_N, phi)
    basis_NP, _ = np.linalg.qr(law_PN.T)
    rest_N = whitened(problem.y_N * weight_N, phi)
    rest_N = rest_N - basis_NP @ (basis_NP.T @ rest_N)
    test_LN = test_LN - (test_LN @ basis_NP) @ basis_NP.T
    norm_L = np.maximum((test_LN**2).sum(axis=1), 1e-20)
    slope_L = test_LN @ rest_N / norm_L
    rss_L = np.maximum(rest_N @ rest_N - slope_L**2 * norm_L, 1e-20) + problem.floor
    return float((slope_L * np.sqrt(norm_L * (len(rest_N) - 5) / rss_L)).max())


def whitened(x_N: Array, phi: float) -> Array:
    """Apply AR(1) whitening along the last axis."""
    return np.concatenate([x_N[..., :1] * np.sqrt(1 - phi**2), x_N[..., 1:] - phi * x_N[..., :-1]], axis=-1)


TEST_MIDPOINTS = np.append(np.repeat([0.35, 0.6, 1.0, 1.7, 3.0], 3), CREEP_REACH)
"""Midpoints of the second rises in the quick test, in multiples of the last compute; the last is a creep."""

TEST_EFFICIENCIES = np.append(np.tile([1.0, 2.0, 4.0], 5), 1.0)
"""Efficiencies of these second rises."""


def held_at(curve: Curve, asymptote: float, num_draws: int = 400) -> tuple[float, Draws]:
    """Return draws of the law with A fixed, and the value of A, which is kept above the metric's lower bound."""
    low, high = curve.bounds
    held = float(np.clip(asymptote, low + 1e-3 * (high - low), high))
    problem = standardized(curve, None, Prior())
    problem = problem._replace(asymptote=(held - problem.offset) / problem.width)
    return held, sample_family(problem, LAW, explore(problem, LAW), num_draws)[0]
