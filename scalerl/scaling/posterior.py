"""The posterior of a rising curve with AR(1) noise, on a grid that zooms in on its mass.

The noise coefficient phi has a list of values; the shape parameters of the curve have a grid (`grid`). Given these,
the curve is linear in the other parameters, which are integrated in closed form together with sigma (`linear`). If a
quick test of the residuals suggests a departure from the law, the law and its departures (`curve_families`) are
weighted by their evidence.

Axes in names: N points, F values of phi, D draws, K parameters on the grid, L columns of the quick test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.scaling import linear
from scalerl.scaling.curve import Curve
from scalerl.scaling.curve_families import CREEP_REACH, DEPARTURES, FAST_END, LAW, CurveFamily
from scalerl.scaling.grid import Cells, pick, systematic, zoom
from scalerl.scaling.law import Array, Draws, climb, fast_climb, joined, log_compute, plain_draws, scaled
from scalerl.scaling.level import log_scale, steady_level
from scalerl.scaling.noise import least_noise, relative_noise
from scalerl.tables.errors import CurveError

DEPARTURE_PHI = slice(0, None, 2)
"""Values of phi for departures, and for the comparison of the law with them."""

DEPARTURE_POINTS = 12
"""Smallest number of points with which departures are tried."""

ADMITTED = 0.25
"""Total probability of the departures above which they are used.

Below it, they would harm the forecasts of runs that follow the law more than improve those of other runs.
"""

FEW_DRAWS = 300
"""Number of draws of a departure for an estimate of its mass within the limits, and for intervals if the departure is
not admitted."""

WIDENING_MASS = 0.05
"""Total probability of the departures above which they widen the intervals without moving the mean."""

IN_INTERVALS = {"law": 1.0, "late start": 1.0, "second rise": 3.0, "creep": 8.0, "fast end": 8.0}
"""Weight of each family in the intervals, in multiples of its weight in the mean.

The beginning of a second rise and a slow drift look like a run that has flattened, but at ten times the compute the
difference is large; nor do points so far tell a climb that ends exponentially from one that ends as a power. With
these weights the intervals contain 80% of simulated runs that creep or rise twice at every horizon, and over 85% of
those that end fast."""

LEAST_LAWFUL = 0.02
"""Share of a family's mass within the metric's limits and R0 <= A below which the family is dropped."""

SUSPICIOUS = 1.0
"""The t value of a departure's column above which the evidence of departures is computed."""


FAST_SUSPICIOUS = -1.0
"""The same for a fast end: its column is nearly a tangent of the law, so that its t value is small or negative."""


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


class Posterior(NamedTuple):
    """Draws, and the probability of each family of curves."""

    draws: Draws
    probability: dict[str, float]
    """Probability of each family in the draws, by name; {"law": 1.0} if departures are not used."""
    log_evidence: float
    """Log marginal likelihood of all families together, with a prior density of one for R0 and A as shares of the
    range, and 1/sigma for the noise."""
    level: tuple[Draws, float]
    """Draws of a run without a climb, which have A = R0, and the log marginal likelihood of such a run."""
    doubtful: Draws
    """Draws for intervals; they include departures by their probability, even if these are not admitted."""
    fast_end: float = 0.0
    """Probability, beside the other families, that the climb ends exponentially; 0 if that is improbable."""
    ceilings: Array | None = None
    """Ceilings for the interval of A, which include those of a fast end; None: those of `draws`."""


def posterior(curve: Curve, r0: float | None, prior: Prior, num_draws: int = 2000) -> Posterior:
    """Return the posterior of a curve; the same curve always gives the same draws.

    Args:
        curve: Curve with at least five points.
        r0: Value to fix R0 at, or None to fit it.
        prior: Prior of B, C_mid, phi and departures. A is uniform between R0 and the metric's bound.
        num_draws: Number of draws.
    """
    problem = standardized(curve, r0, prior)
    cells = explore(problem, LAW)
    draws, lawful = sample(problem, LAW, cells, num_draws)
    level = level_alone(problem, num_draws)
    evidence = cells.log_mass() + float(np.log(max(lawful, LEAST_LAWFUL))) - log_volume(problem)
    plain = Posterior(draws, {"law": 1.0}, evidence, level, draws)
    if len(curve) < DEPARTURE_POINTS or prior.departure == 0 or lawful < LEAST_LAWFUL:
        return plain
    log_mass = [log_share(cells.log_mass(DEPARTURE_PHI), lawful, 1 - len(DEPARTURES) * prior.departure)]
    if suspicion(problem, cells) >= SUSPICIOUS:
        plain = with_departures(problem, plain, log_mass)
    return with_fast_end(problem, plain, cells, float(np.logaddexp.reduce(log_mass)))


def with_departures(problem: Problem, plain: Posterior, log_mass: list[float]) -> Posterior:
    """Return the posterior of the law and the departures that may move the mean.

    Args:
        problem: The curve.
        plain: The posterior of the law alone.
        log_mass: Log mass of the law, to which those of the departures are appended.
    """
    draws, num_draws, prior = plain.draws, len(plain.draws), problem.prior
    explored = [explore(problem, family) for family in DEPARTURES]
    few = []
    for family, cells_of in zip(DEPARTURES, explored, strict=True):
        # a few draws estimate the share of the mass within the limits, which the grid ignores
        few_draws, obeying = sample(problem, family, cells_of, FEW_DRAWS)
        few.append(few_draws)
        log_mass.append(log_share(cells_of.log_mass(), obeying, prior.departure))
    # weights of the law and each departure, for the mean and for the intervals
    names = ["law", *(family.name for family in DEPARTURES)]
    mean_weight = shares(log_mass)
    wide_weight = shares([mass + np.log(IN_INTERVALS[name]) for mass, name in zip(log_mass, names, strict=True)])
    if wide_weight[0] > 1 - WIDENING_MASS:
        return plain
    if mean_weight[0] > 1 - ADMITTED:
        return plain._replace(doubtful=mixture([draws, *few], wide_weight, num_draws))
    many = [
        sample(problem, family, cells_of, num_draws)[0] if max(mean, wide) > LEAST_LAWFUL else few_draws
        for family, cells_of, few_draws, mean, wide in zip(
            DEPARTURES, explored, few, mean_weight[1:], wide_weight[1:], strict=True
        )
    ]
    return plain._replace(
        draws=mixture([draws, *many], mean_weight, num_draws),
        probability=dict(zip(names, mean_weight.tolist(), strict=True)),
        log_evidence=plain.log_evidence - float(np.log(max(mean_weight[0], 1e-9))),
        doubtful=mixture([draws, *many], wide_weight, num_draws),
    )


def with_fast_end(problem: Problem, others: Posterior, law_cells: Cells, log_mass: float) -> Posterior:
    """Return the posterior with a climb that ends exponentially in its intervals; its mean stays as it is.

    Args:
        problem: The curve.
        others: The posterior of the other families.
        law_cells: The grid of the law.
        log_mass: Log mass of the other families.
    """
    if fast_suspicion(problem, law_cells) < FAST_SUSPICIOUS:
        return others
    cells = explore(problem, FAST_END)
    fast, obeying = sample(problem, FAST_END, cells, FEW_DRAWS)
    mass = log_share(cells.log_mass(), obeying, problem.prior.departure)
    probability, wide = (
        float(shares([log_mass, mass + np.log(factor)])[1]) for factor in (1.0, IN_INTERVALS[FAST_END.name])
    )
    if wide < WIDENING_MASS:
        return others
    num_draws, weight = len(others.draws), np.array([1.0 - wide, wide])
    fast, _ = sample(problem, FAST_END, cells, num_draws)
    return others._replace(
        doubtful=mixture([others.doubtful, fast], weight, num_draws),
        fast_end=probability,
        ceilings=mixture([others.draws, fast], weight, num_draws).asymptote,
    )


def level_alone(problem: Problem, num_draws: int) -> tuple[Draws, float]:
    """Return draws with A = R0, and their log evidence."""
    phi_F = np.array(problem.prior.autocorrelations)
    level = steady_level(problem.y_N, problem.floor, phi_F, problem.least, problem.most, num_draws, problem.weight_N)
    level_D, one_D = problem.offset + problem.width * level.level_D, np.ones(num_draws)
    noise_D = problem.width * level.noise_D
    draws = plain_draws(
        asymptote=level_D, efficiency=one_D, midpoint=problem.last * one_D, initial=level_D,
        autocorrelation=level.phi_D, noise_sd=noise_D, most=problem.bound,
    )  # fmt: skip
    return draws, level.log_evidence


def shares(log_mass: list[float]) -> Array:
    """Return weights that sum to one."""
    weight = np.exp(np.array(log_mass) - max(log_mass))
    return np.asarray(weight / weight.sum())


def mixture(parts: list[Draws], weight: Array, num_draws: int) -> Draws:
    """Return draws of several families in proportion to their weights."""
    # rounding the cumulative sum, so that the counts add up
    count = np.diff(np.round(np.cumsum([0.0, *weight]) * num_draws).astype(int))
    return joined([part.evenly(int(n)) for part, n in zip(parts, count, strict=True) if n])


def held_at(curve: Curve, asymptote: float, num_draws: int = 400) -> tuple[float, Draws]:
    """Return draws of the law with A fixed, and the value of A, which is kept above the metric's lower bound."""
    low, high = curve.bounds
    held = float(np.clip(asymptote, low + 1e-3 * (high - low), high))
    problem = standardized(curve, None, Prior())
    problem = problem._replace(asymptote=(held - problem.offset) / problem.width)
    return held, sample(problem, LAW, explore(problem, LAW), num_draws)[0]


def log_share(log_mass: float, lawful: float, probability: float) -> float:
    """Log of evidence times prior probability; minus infinity if draws of the family hardly ever obey the limits."""
    return log_mass + float(np.log(lawful * probability)) if lawful >= LEAST_LAWFUL else -np.inf


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


def sample(problem: Problem, family: CurveFamily, cells: Cells, num_draws: int) -> tuple[Draws, float]:
    """Return draws of one family, and the share of its mass within the limits that the grid ignores.

    These are least <= R0 <= A, no level above the metric's bound so far, and the prior of a second rise. If no draw
    obeys them, the curve only falls; the draws are then used unchanged, and `health` warns.
    """
    rng = np.random.default_rng(0)
    picks = pick(cells, num_draws, rng)
    phi_D = np.array(problem.prior.autocorrelations)[phi_of(family)][picks.variant_D]
    solved, coefficient, log_density_D = solve(problem, family, list(picks.place_KD), phi_D)
    betas, sigma_D = linear.draw(solved, coefficient, rng)
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
