"""The posterior of a run: draws of what it may do, with weights for means and weights for intervals.

A run follows the law or one of its departures (`sampling`), it stays where it is (`level`), its climb has not begun, or
it has fallen (`falls`). Each of these is a family of `families`, weighted by prior probability times evidence, the
marginal likelihood: how well the family would have predicted every point of this run from the points before it (the
prequential score).

Every number of a forecast is from the same draws. Their mean is by `mean_D`. Intervals are by `wide_D`, which give more
weight to what the points can hardly exclude, and half of it to a level if the run shows no climb. A later fall is in
neither: the best checkpoint remains, and the share of public runs that fell is stated beside the forecast.

A run that has fallen stays at its new level until it returns to its law. In intervals it returns as often as public
runs did, however clear the fall was.

Axes in names: N points, M amounts of compute, D draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scalerl.reading.curves.counts import LATER_FALL, NO_CLIMB, STAYED_DOWN, TAKE_OFF, Count
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import Estimate, estimate_of, weighted_mean
from scalerl.reading.curves.falls import Down, fall_of, has_fallen
from scalerl.reading.curves.families import (
    CREEP,
    DEPARTURES,
    FAST_END,
    LAW,
    LEVEL,
    NOT_BEGUN,
    RETURN,
    CurveFamily,
    Family,
)
from scalerl.reading.curves.grid import Index, Mask, systematic
from scalerl.reading.curves.law import Array, Draws, joined_draws, plain_draws
from scalerl.reading.curves.level import steady_level
from scalerl.reading.curves.noise import SINGLE, Averaged, binomial, evaluations, local_noise
from scalerl.reading.curves.sampling import (
    DEPARTURE_PHI,
    LEAST_LAWFUL,
    MIN_POINTS,
    Prior,
    Problem,
    explore,
    fast_suspicion,
    log_volume,
    sample_family,
    standardized,
    suspicion,
)

DEPARTURE_POINTS = 12
"""Smallest number of points with which departures are tried."""

SUSPICIOUS = {"departures": 1.0, "fast end": -1.0}
"""The t value of a quick test above which the evidence is computed. The column of a fast end is nearly a tangent of the
law, so that its t value is small or negative."""

ADMITTED = 0.25
"""Total probability of the departures above which they are in the mean.

Below it, they would harm the forecasts of runs that follow the law more than improve those of other runs.
"""

NEGLIGIBLE = 0.05
"""Weight below which a level, or all departures and a fast end together, are left out."""

CREEP_END = 10.0
"""Multiple of the run's compute up to which a creep is followed."""

UNSEEN = 0.005
"""Weight of a family in intervals below which it moves no end of them, and is left out."""

STAYS_AFTER_FALL = 0.77
"""Prior probability that a run stays where it is after a fall, from `counts.STAYED_DOWN`, and its probability in
intervals. It is also the largest prior probability for other runs."""

EVEN_NOISE = 0.07
"""Noise of one evaluation, as a share of the range, at which a run that has not fallen is as likely to stay as to rise.

The prior odds are the square of the noise divided by this value. A run counts as flat if the noise hides its climb, and
less noise hides fewer climbs: 9 of 19 public runs with noise above 0.03 were flat. Of the 4 with noise below 0.01 that
began without a climb, 3 climbed by 0.4 later and one by 0.05."""

EVEN_ODDS = (NO_CLIMB.all - NO_CLIMB.happened) / NO_CLIMB.happened
"""Smallest prior odds, in intervals, that a run stays: half of the public runs without a clear climb never rose."""

LEAST_NOISE = 0.001
"""Minimum noise for the odds, as a share of the range: equal values do not prove that there is no noise."""

NOISY = 0.03
"""Noise of one evaluation, as a share of the range, above which a run counts as noisy in LATER_FALL."""

STILL = 0.01
"""Noise, as a share of the range, below which a run without a climb probably has its climb still ahead."""

NOT_BEGUN_DOUBLINGS = 2.0
"""Doublings of compute within which a climb that has not begun begins at the rate of `TAKE_OFF`; longer runs were not
observed."""

NOT_BEGUN_STEEPNESS = 24.0
"""B of such a climb: nine tenths of it take a third of a doubling of compute."""

LAW_DRAWS = 2000
"""Draws of the law and of each departure in the mean, and of a sample with equal weights."""

FAMILY_DRAWS = 500
"""Draws of each other family that is only in intervals."""

LEVEL_DRAWS = 1000
"""Draws of a level."""


class FamilyDraws(NamedTuple):
    """One family with its draws and the sums of their weights."""

    family: Family
    draws: Draws
    mean: float
    wide: float


class Climbs(NamedTuple):
    """The families with a climb that the points show; each column of weights sums to one."""

    parts: list[FamilyDraws]
    departures: dict[str, float]
    """Probability of each family in the mean."""
    fast_end: float
    """Probability, beside these, of a climb that ends exponentially."""
    log_evidence: float
    """Log marginal likelihood of all together, with a prior density of one for R0 and A as shares of the range, and
    1/sigma for the noise."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Draws of what a run may do, of several families, with two sets of weights.

    Example: a run at 0.62 that rises with probability 0.9 has 2,000 draws of the law with a total `mean_D` of 0.9, and
    500 of a level with 0.1; in `wide_D` they have 0.8 and 0.2.
    """

    curve: Curve
    """The points; means of neighboring evaluations if there were many."""

    averaged: Averaged
    """What the points are means of."""

    draws: Draws
    """Draws of all families, one after another; those of a level have A = R0."""

    families: tuple[str, ...]
    """Names of the families."""

    family_D: Index
    """Index of each draw's family, shape (D,)."""

    mean_D: Array
    """Weight of each draw in means and standard deviations, summing to one."""

    wide_D: Array
    """Weight of each draw in intervals, summing to one."""

    departures: dict[str, float]
    """Probability of the law and of each departure if the run climbs; {"law": 1.0} without departures in the mean."""

    fast_end: float
    """Probability, beside these, that the climb ends exponentially; 0 if it is negligible. It is not in the mean."""

    climb: float
    """Log evidence ratio of a climb to a level, without the prior odds."""

    down: Down | None
    """The state of a run that has fallen; None for others."""

    # ------------------------------------------------------------------------------------------------ the families

    def of(self, name: str) -> Mask:
        """Return whether each draw is of a family, shape (D,)."""
        return np.asarray(self.family_D == (self.families.index(name) if name in self.families else -1))

    @cached_property
    def stay_probability(self) -> float:
        """Probability that the run stays where it is."""
        return float(self.mean_D[self.of(LEVEL.name)].sum())

    def selected(self, index_D: Index) -> Posterior:
        """Return the draws at these indices, with equal weights."""
        equal_D = np.full(len(index_D), 1.0 / len(index_D))
        down = None if self.down is None else self.down.select(index_D)
        return replace(
            self, draws=self.draws.select(index_D), family_D=self.family_D[index_D], mean_D=equal_D, wide_D=equal_D,
            down=down,
        )  # fmt: skip

    @cached_property
    def mean_sample(self) -> Posterior:
        """Draws with equal weights that have the means of this posterior: to combine runs draw by draw."""
        return self.selected(systematic(self.mean_D, LAW_DRAWS))

    @cached_property
    def wide_sample(self) -> Posterior:
        """Draws with equal weights that have the intervals of this posterior."""
        return self.selected(systematic(self.wide_D, LAW_DRAWS))

    @cached_property
    def law_sample(self) -> Draws:
        """Draws with equal weights of the law and of departures in the mean: the parameters of a run that climbs."""
        return self.draws.select(systematic(np.where(self.of(LEVEL.name), 0.0, self.mean_D), LAW_DRAWS))

    # ------------------------------------------------------------------------------------------------ the levels

    @property
    def last(self) -> float:
        """Compute of the last point."""
        return self.curve.last_compute

    def levels(self, compute_M: Array) -> Array:
        """Return the level of every draw at each compute, shape (M, D), within the metric's bounds."""
        return np.asarray(np.clip(self.unbounded(compute_M), *self.curve.bounds))

    def mean(self, compute_M: Array) -> Array:
        """Return the mean level at each compute, shape (M,). A walk goes up as often as down, also next to a bound."""
        return np.asarray(np.clip(weighted_mean(self.unbounded(compute_M), self.mean_D), *self.curve.bounds))

    def unbounded(self, compute_M: Array) -> Array:
        """Return the levels before they are clipped to the metric's bounds, shape (M, D)."""
        ahead_M1 = self.steps_ahead(compute_M)[:, None]
        level_MD = self.draws.levels(compute_M)
        if self.down is not None:
            past_M1 = np.interp(compute_M, self.curve.compute, self.down.path_N)[:, None]
            down_MD = self.down.level_D + np.sqrt(ahead_M1) * self.down.walk_D + past_M1
            return np.where(compute_M[:, None] < self.down.return_D, down_MD, level_MD)
        # an excursion dies out as phi^steps; it belongs to the future, not to the fitted curve before the last point
        future_M = compute_M >= self.last
        level_MD[future_M] += self.draws.autocorrelation ** ahead_M1[future_M] * self.excursion_D
        return level_MD

    @cached_property
    def excursion_D(self) -> Array:
        """Expected distance of the run above each drawn curve one evaluation after its last point."""
        above_D = self.curve.metric[-1] - self.draws.levels(self.curve.compute[-1:])[0]
        return np.asarray(self.draws.autocorrelation * above_D)

    def steps_ahead(self, compute_M: Array) -> Array:
        """Return the number of evaluations from the last point to each compute at the present spacing, shape (M,)."""
        spacing = float(np.median(np.diff(self.curve.compute[-max(3, len(self.curve) // 2) :])))
        return np.maximum(compute_M - self.last, 0.0) / spacing

    def evaluations(self, compute_M: Array, mean_of: int = 1) -> Array:
        """Return one evaluation of every draw at each compute, shape (M, D), within the metric's bounds.

        The noise at the present level is that of the run; at other levels its variance changes with p(1 - p).

        Args:
            compute_M: Amounts of compute.
            mean_of: Number of successive evaluations around each compute whose mean is meant; 1: a single one.
        """
        levels_MD, (low, high) = self.levels(compute_M), self.curve.bounds
        phi_D, noise_D = self.draws.autocorrelation, self.draws.noise_sd
        if self.down is not None:
            phi_D, noise_D = np.zeros_like(phi_D), self.down.noise_D
        # the part of the excursion that persists is known, so only the remaining noise is uncertain
        ahead_M1 = self.steps_ahead(compute_M)[:, None]
        new_MD = np.sqrt(1.0 - np.where(compute_M[:, None] >= self.last, phi_D ** (2 * ahead_M1 + 2), 0.0))
        present_variance = binomial(np.array(self.curve.metric.mean()), low, high)
        relative_MD = np.sqrt(binomial(levels_MD, low, high) / present_variance)
        sd_MD = noise_D * new_MD * relative_MD
        sd_MD = sd_MD * np.sqrt(share_of_mean(phi_D, max(1, round(mean_of / self.averaged.evaluations))))
        sd_MD = np.hypot(sd_MD, self.averaged.within_sd / np.sqrt(mean_of) * relative_MD)
        # each row with the same random numbers, so that the band at a compute does not depend on the others
        rows = [
            evaluations(level_D, sd_D, low, high, np.random.default_rng(1))
            for level_D, sd_D in zip(levels_MD, sd_MD, strict=True)
        ]
        return np.stack(rows)

    def gain(self, compute: float) -> Array:
        """Return the level of every draw at a compute minus its level at the last point, shape (D,)."""
        now_D, then_D = self.levels(np.array([self.last, compute]))
        return np.asarray(then_D - now_D)

    def compute_for(self, target: float) -> Array:
        """Return the compute at which every draw reaches a level, shape (D,); infinite if never, 0 at the start."""
        needed_D = self.draws.compute_for(np.full(len(self.draws), float(target)))
        # a run that has fallen follows its law only after it has returned
        return needed_D if self.down is None else np.where(needed_D > 0, np.maximum(needed_D, self.down.return_D), 0.0)

    @cached_property
    def ends_D(self) -> Array:
        """Level at which every draw ends, shape (D,), within the metric's bounds.

        A creep has no end; its level at `CREEP_END` times the run's compute counts.
        """
        ends_D = np.clip(self.draws.asymptote, *self.curve.bounds)
        return np.where(self.of(CREEP.name), self.levels(np.array([CREEP_END * self.last]))[0], ends_D)

    def ceiling(self) -> Estimate:
        """Return A of a run that climbs.

        The interval includes ceilings of climbs that have not begun. The standard deviation includes those of climbs
        that end exponentially, with their weight in the intervals: the points cannot tell them from the law.
        """
        climbs_D = ~self.of(LEVEL.name)
        draws = self.ends_D[climbs_D]
        mean_D, wide_D, fast_D = self.mean_D[climbs_D], self.wide_D[climbs_D], self.of(FAST_END.name)[climbs_D]
        estimate = estimate_of(draws, mean_D, wide_D)
        seen_D = wide_D * fast_D / wide_D.sum()
        spread_D = seen_D + (1.0 - seen_D.sum()) * mean_D / mean_D.sum()
        return replace(estimate, sd=estimate_of(draws, spread_D, spread_D).sd)

    # ------------------------------------------------------------------------------------------------ in words

    @property
    def fallen(self) -> bool:
        """Whether the run is far below its best."""
        return self.down is not None

    @property
    def later_fall(self) -> Count:
        """How many similar public runs fell later."""
        return LATER_FALL["noisy" if measured_noise(self.curve) > NOISY else "smooth"]

    def to_dict(self) -> dict[str, Any]:
        """Return the probabilities of both futures and of a fall as a dict of JSON values."""
        fall = self.later_fall
        return {
            "rises": 1.0 - self.stay_probability, "stays": self.stay_probability, "fallen": self.fallen,
            "later_fall": {"probability": fall.share, "fell": fall.happened, "of": fall.all},
        }  # fmt: skip

    def sentences(self) -> tuple[str, ...]:
        """Return the same as sentences."""
        sentences = []
        if self.stay_probability:
            outcome = "has fallen and stays down" if self.fallen else "stays where it is"
            stay, rise = self.stay_probability, 1 - self.stay_probability
            sentences.append(f"with probability {stay:.2f} the run {outcome}, with {rise:.2f} it rises")
        if self.fallen:
            returned = STAYED_DOWN.all - STAYED_DOWN.happened
            sentences.append(
                f"{returned} of {STAYED_DOWN.all} public runs that had fallen recovered half of it or more; the band "
                "includes this"
            )
        else:
            sentences.append(
                f"{self.later_fall} public runs that looked like this fell later; the band leaves this out, because "
                "the best checkpoint remains"
            )
        return tuple(sentences)


def posterior(
    curve: Curve,
    r0: float | None = None,
    prior: Prior | None = None,
    averaged: Averaged = SINGLE,
    num_draws: int = LAW_DRAWS,
) -> Posterior:
    """Return the posterior of a curve; the same curve always gives the same draws.

    Args:
        curve: Curve with at least five points.
        r0: Value to fix R0 at, or None to fit it.
        prior: Prior of B, C_mid, phi and departures; None: its defaults. A is uniform between R0 and the metric's
            bound.
        averaged: What the points are means of.
        num_draws: Number of draws of the law.
    """
    prior = prior or Prior()
    problem = standardized(curve, r0, prior)
    climbs = climbs_of(problem, len(curve), num_draws)
    level, log_evidence = level_of(problem, LEVEL_DRAWS)
    climb = climbs.log_evidence - log_evidence
    odds, fall = prior_odds(curve), fall_of(curve) if has_fallen(curve) else None
    # a climb that followed the law gives no evidence about the time after a fall
    evidence = climb if fall is None else min(climbs.log_evidence - fall.level.log_evidence, 0.0)
    stays = staying(odds, evidence)
    # no fall, however clear, shows that the run cannot return
    stays_wide = staying(max(odds, EVEN_ODDS), evidence if fall is None else 0.0)
    returns, before = max(stays - stays_wide, 0.0), []
    if fall is not None and returns > 0 and fall.num_before >= MIN_POINTS:
        # as many as in the mean follow the law of all points, with noise in place of the fall; the others were down,
        # and the points since then say nothing about the law to which they return
        of_points_before = standardized(curve.first(fall.num_before), r0, prior)
        earlier = climbs_of(of_points_before, fall.num_before, num_draws).parts
        before = [FamilyDraws(RETURN, part.draws.evenly(FAMILY_DRAWS), 0.0, returns * part.wide) for part in earlier]
    rises_wide = 1.0 - stays_wide - sum(part.wide for part in before)
    parts = [
        *(part._replace(mean=(1.0 - stays) * part.mean, wide=rises_wide * part.wide) for part in climbs.parts),
        *before,
        FamilyDraws(LEVEL, level, stays, stays_wide),
    ]
    result = posterior_of_parts(curve, averaged, [part for part in parts if part.mean + part.wide > 0], climbs, climb)
    if fall is None:
        return with_climbs_not_begun(result)
    stays_D = result.of(LEVEL.name)
    down = fall.down(curve, ~stays_D)
    staying_draws = flat_draws(problem, down.level_D, np.zeros_like(down.level_D), down.noise_D)
    draws = joined_draws([result.draws.select(~stays_D), staying_draws.select(stays_D)])
    return replace(result, draws=draws, down=down)


def posterior_of_parts(
    curve: Curve, averaged: Averaged, parts: list[FamilyDraws], climbs: Climbs, climb: float
) -> Posterior:
    """Return the posterior of families with a total weight each, before anything that depends on single draws."""
    names = tuple(dict.fromkeys(part.family.name for part in parts))
    size = [len(part.draws) for part in parts]
    return Posterior(
        curve=curve,
        averaged=averaged,
        draws=joined_draws([part.draws for part in parts]),
        families=names,
        family_D=np.repeat([names.index(part.family.name) for part in parts], size),
        mean_D=np.repeat([part.mean / len(part.draws) for part in parts], size),
        wide_D=np.repeat([part.wide / len(part.draws) for part in parts], size),
        departures=climbs.departures,
        fast_end=climbs.fast_end,
        climb=climb,
        down=None,
    )


def climbs_of(problem: Problem, num_points: int, num_draws: int) -> Climbs:
    """Return the law with its departures, weighted by prior probability times evidence."""
    cells, prior = explore(problem, LAW), problem.prior
    draws, lawful = sample_family(problem, LAW, cells, num_draws)
    evidence = cells.log_mass() + float(np.log(max(lawful, LEAST_LAWFUL))) - log_volume(problem)
    only_law = Climbs([FamilyDraws(LAW, draws, 1.0, 1.0)], {LAW.name: 1.0}, 0.0, evidence)
    if num_points < DEPARTURE_POINTS or prior.departure == 0 or lawful < LEAST_LAWFUL:
        return only_law
    tried: list[CurveFamily] = []
    if suspicion(problem, cells) >= SUSPICIOUS["departures"]:
        tried += DEPARTURES
    if fast_suspicion(problem, cells) >= SUSPICIOUS[FAST_END.name]:
        tried.append(FAST_END)
    log_masses = [log_share(cells.log_mass(DEPARTURE_PHI), lawful, 1 - len(DEPARTURES) * prior.departure)]
    families, of_families = [LAW, *tried], [draws]
    for family in tried:
        its_cells = explore(problem, family)
        its_draws, obeying = sample_family(problem, family, its_cells, LAW_DRAWS)
        of_families.append(its_draws)
        log_masses.append(log_share(its_cells.log_mass(), obeying, prior.departure))
    log_mass, log_factor = np.array(log_masses), np.log([family.wide for family in families])
    wide = normalized(log_mass + log_factor)
    if wide[0] > 1 - NEGLIGIBLE:
        return only_law
    in_mean = np.array([family is not FAST_END for family in families])
    mean = normalized(np.where(in_mean, log_mass, -np.inf))
    fast_end = float(normalized(log_mass) @ ~in_mean)
    departures = {family.name: float(share) for family, share in zip(families, mean, strict=True) if share > 0}
    if mean[0] > 1 - ADMITTED:
        mean, departures = np.eye(len(families))[0], {LAW.name: 1.0}
    wide = np.where((mean > 0) | (wide > UNSEEN), wide, 0.0) / wide[(mean > 0) | (wide > UNSEEN)].sum()
    parts = [
        FamilyDraws(
            family, its_draws if family is LAW or in_means > 0 else its_draws.evenly(FAMILY_DRAWS), in_means, in_wide
        )
        for family, its_draws, in_means, in_wide in zip(
            families, of_families, mean.tolist(), wide.tolist(), strict=True
        )
    ]
    return Climbs(parts, departures, fast_end, evidence - float(np.log(max(mean[0], 1e-9))))


def log_share(log_mass: float, lawful: float, probability: float) -> float:
    """Log of evidence times prior probability; minus infinity if draws of the family hardly ever obey the limits."""
    return log_mass + float(np.log(lawful * probability)) if lawful >= LEAST_LAWFUL else -np.inf


def normalized(log_mass: Array) -> Array:
    """Return weights that sum to one."""
    weight = np.exp(log_mass - log_mass.max())
    return np.asarray(weight / weight.sum())


def level_of(problem: Problem, num_draws: int) -> tuple[Draws, float]:
    """Return draws of a run without a climb, which have A = R0, and the log evidence of such a run."""
    phi_F = np.array(problem.prior.autocorrelations)
    level = steady_level(problem.y_N, problem.floor, phi_F, problem.least, problem.most, num_draws, problem.weight_N)
    level_D, noise_D = problem.offset + problem.width * level.level_D, problem.width * level.noise_D
    return flat_draws(problem, level_D, level.phi_D, noise_D), level.log_evidence


def flat_draws(problem: Problem, level_D: Array, phi_D: Array, noise_D: Array) -> Draws:
    """Return draws that stay at a level, in the metric's unit."""
    one_D = np.ones_like(level_D)
    return plain_draws(
        asymptote=level_D, efficiency=one_D, midpoint=problem.last * one_D, initial=level_D,
        autocorrelation=phi_D, noise_sd=noise_D, most=problem.bound,
    )  # fmt: skip


def with_climbs_not_begun(of_points: Posterior) -> Posterior:
    """Return the posterior with climbs that begin after the last point, at the rate of public runs, in intervals.

    Draws that show no climb have one to any level up to the metric's bound, as in the prior of A.
    """
    # a run that did not take off in one doubling of compute may do so in the next
    begins_D = 1.0 - (1.0 - take_off_rate(of_points)) ** NOT_BEGUN_DOUBLINGS
    weight = float(of_points.wide_D @ begins_D)
    if weight < UNSEEN:
        return of_points
    index_D, rng = systematic(of_points.wide_D * begins_D, FAMILY_DRAWS), np.random.default_rng(2)
    # evenly spaced numbers in random order, with less random error than independent ones
    doublings_D, height_D = ((rng.permutation(FAMILY_DRAWS) + 0.5) / FAMILY_DRAWS for _ in range(2))
    # half of the climb is complete a quarter of a doubling after its start
    midpoint_D = of_points.last * 2.0 ** (0.25 + NOT_BEGUN_DOUBLINGS * doublings_D)
    base, high = of_points.draws.select(index_D), of_points.curve.bounds[1]
    gain_D = height_D * (high - of_points.levels(np.array([of_points.last]))[0, index_D])
    climbing = replace(
        base, second_midpoint=midpoint_D, second_efficiency=np.full(FAMILY_DRAWS, NOT_BEGUN_STEEPNESS),
        second_gain=gain_D, asymptote=np.minimum(base.plateau + gain_D, high),
    )  # fmt: skip
    return replace(
        of_points,
        draws=joined_draws([of_points.draws, climbing]),
        families=(*of_points.families, NOT_BEGUN.name),
        family_D=np.append(of_points.family_D, np.full(FAMILY_DRAWS, len(of_points.families))),
        mean_D=np.append(of_points.mean_D, np.zeros(FAMILY_DRAWS)),
        wide_D=np.append(of_points.wide_D * (1.0 - begins_D), np.full(FAMILY_DRAWS, weight / FAMILY_DRAWS)),
    )


def take_off_rate(of_points: Posterior) -> Array:
    """Return the probability that each draw begins a climb within a doubling of compute, shape (D,).

    It is positive for draws that have not climbed beyond the noise. A run that took off late may do so again.
    """
    draws, curve = of_points.draws, of_points.curve
    waiting = TAKE_OFF["still" if measured_noise(curve) < STILL else "other"].share
    climbed_D = draws.levels(curve.compute[-1:])[0] - draws.initial
    return np.where(draws.delay > 0, TAKE_OFF["other"].share, np.where(climbed_D < draws.noise_sd, waiting, 0.0))


def staying(odds: float, evidence: float) -> float:
    """Return the probability that a run stays, from its prior odds and the log evidence for a climb; 0 if small."""
    probability = float(1.0 / (1.0 + np.exp(-np.clip(np.log(odds) - evidence, -30.0, 30.0))))
    return probability if probability > NEGLIGIBLE else 0.0


def prior_odds(curve: Curve) -> float:
    """Return the prior odds that a run stays where it is."""
    most = STAYS_AFTER_FALL / (1.0 - STAYS_AFTER_FALL)
    return most if has_fallen(curve) else min((max(measured_noise(curve), LEAST_NOISE) / EVEN_NOISE) ** 2, most)


def measured_noise(curve: Curve) -> float:
    """Return the measured noise of one evaluation, as a share of the metric's range."""
    return local_noise(curve.metric) / float(np.ptp(curve.bounds))


def share_of_mean(phi_D: Array, count: int) -> Array:
    """Return the variance of the mean of successive AR(1) values, as a share of that of one, shape (D,).

    (1 + 2 sum_j (1 - j/n) phi^j) / n for n values.
    """
    lag_J1 = np.arange(1, count)[:, None]
    return np.asarray((1.0 + 2.0 * ((1.0 - lag_J1 / count) * phi_D**lag_J1).sum(axis=0)) / count)
