"""The possible futures of a run: it rises by the law, or it stays where it is; later it may fall or take off.

The two futures are weighted by their evidence, the marginal likelihood. It measures how well each would have predicted
every point of this run from the points before it (the prequential score). A take-off, which a run without a climb
cannot show, widens the interval at the rate seen in public runs; it does not move the mean. A later fall is in neither:
the best checkpoint remains, and the share of public runs that fell is stated beside the forecast.

A run that has fallen stays at its new level until it returns to its law. The law has no falls, so a fall far outside
the noise is evidence for a level that changed, and the mean stays there. The interval includes returns at the rate of
public runs, however clear the fall was.

Axes in names: N points, M amounts of compute, D draws, R draws that rise, S draws that stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scalerl.scaling.counts import LATER_FALL, NO_CLIMB, STAYED_DOWN, TAKE_OFF, Count
from scalerl.scaling.curve import Curve
from scalerl.scaling.health import fallen_by, rolling_mean
from scalerl.scaling.law import Array, Draws, joined, plain_draws
from scalerl.scaling.level import LevelDraws, LevelPosterior, level_after_change
from scalerl.scaling.noise import SINGLE, Averaged, binomial, evaluations, least_noise, local_noise, relative_noise
from scalerl.scaling.posterior import Posterior

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

FALLEN = 0.1
"""A run has fallen if it is this share of the metric's range below its best, and `SURE_FALL` times the noise."""

SURE_FALL = 3.0
"""Minimum fall in multiples of the noise: noise alone seldom puts the best mean of three this far above the last."""

NEGLIGIBLE = 0.05
"""Probability below which the second future is left out."""

NOISY = 0.03
"""Noise of one evaluation, as a share of the range, above which a run counts as noisy in LATER_FALL."""

STILL = 0.01
"""Noise, as a share of the range, below which a run without a climb probably has its climb still ahead."""

TAKE_OFF_DOUBLINGS = 2.0
"""Doublings of compute within which a take-off begins at this rate; longer runs were not observed."""

TAKE_OFF_SPEED = 2.0
"""Inverse of the doublings of compute that a take-off takes."""

CREEP_SATURATES = 3.0
"""Compute after which half of a creep's remaining rise is complete, in multiples of the run's, in intervals.

A creep that grows in proportion to compute would open the band of a finished run to the metric's bound. With this
value it rises by 0.8 of its rise so far until twice the compute, by 1.7 until four times, and by 4 in all."""


class Down(NamedTuple):
    """The state of a run that has fallen, for the D draws of its futures."""

    draws: Draws
    """Levels at the last point, and the noise around them, of shape (D,)."""

    walk_D: Array
    """How far each level wanders in one step; after k steps, sqrt(k) times as far."""

    path_N: Array
    """Mean level at each point minus the last one."""

    return_D: Array
    """Compute at which each draw returns to its law; infinite for draws that stay.

    Nothing but the time since the fall tells how long a return takes, so the probability that a run that returns has
    done so after a further time h is h / (time since the fall + h): one half when the time has doubled."""

    num_before: int
    """Number of points before the fall."""

    log_evidence: float
    """Log marginal likelihood of a level that changed."""

    def until_return(self, num_staying: int) -> Down:
        """Return the same if the last of the draws never return."""
        num_returning = len(self.return_D) - num_staying
        return self._replace(return_D=np.append(self.return_D[:num_returning], np.full(num_staying, np.inf)))


@dataclass(frozen=True, eq=False)
class Futures:
    """Draws of both futures in proportion to their probability, D = R + S, and the rates of rare events.

    Example: a run at 0.62 that rises with probability 0.97 has R = 1940 draws of the law and S = 60 of a level.
    """

    draws: Draws
    """R draws of the law and its departures, then S draws of a level, which have A = R0; each column of shape (D,)."""

    stay_probability: float
    """Probability S / D that the run stays where it is."""

    excursion_D: Array
    """Expected distance of the run above each drawn curve one evaluation after its last point."""

    down: Down | None
    """The state of a run that has fallen; None for others."""

    curve: Curve
    """The points of the run; means of neighboring evaluations if there were many."""

    fall: Count
    """How many similar public runs fell later."""

    climb: float
    """Log evidence ratio of a climb to a level, without the prior odds."""

    doubtful: Futures | None = None
    """Futures for intervals, which include departures that are too improbable to move the mean, and give a run that
    shows no climb at least even odds to stay; None for such futures themselves."""

    saturates: bool = False
    """Whether creeps end beyond the last point: those that are only possible, in futures for intervals."""

    averaged: Averaged = SINGLE
    """What the points of `curve` are means of."""

    @property
    def last(self) -> float:
        """Compute of the last point."""
        return self.curve.last_compute

    @property
    def for_intervals(self) -> Futures:
        """Futures whose quantiles are the intervals."""
        return self if self.doubtful is None else self.doubtful

    @property
    def fallen(self) -> bool:
        """Whether the run is far below its best."""
        return has_fallen(self.curve)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        return {
            "rises": 1.0 - self.stay_probability, "stays": self.stay_probability, "fallen": self.fallen,
            "later_fall": {"probability": self.fall.share, "fell": self.fall.happened, "of": self.fall.all},
        }  # fmt: skip

    def sentences(self) -> tuple[str, ...]:
        """Return the probabilities as sentences."""
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
                f"{self.fall} public runs that looked like this fell later; the band leaves this out, because the best "
                "checkpoint remains"
            )
        return tuple(sentences)

    def levels(self, compute_M: Array) -> Array:
        """Return the level of every draw at each compute without take-offs, shape (M, D), within the bounds."""
        return np.asarray(np.clip(self.unbounded(compute_M), *self.curve.bounds))

    def possible_levels(self, compute_M: Array) -> Array:
        """Return the level of every draw at each compute with take-offs, shape (M, D), within the bounds."""
        return self.with_take_offs(self.levels(compute_M), compute_M)

    def mean(self, compute_M: Array) -> Array:
        """Return the mean level at each compute, shape (M,). A walk goes up as often as down, also next to a bound."""
        return np.asarray(np.clip(self.unbounded(compute_M).mean(axis=1), *self.curve.bounds))

    def unbounded(self, compute_M: Array) -> Array:
        """Return the levels before they are clipped to the metric's bounds, shape (M, D)."""
        ahead_M1 = self.steps_ahead(compute_M)[:, None]
        level_MD = self.draws.levels(compute_M)
        if self.saturates:
            level_MD -= self.beyond_creep(compute_M)
        if self.down is not None:
            past_M1 = np.interp(compute_M, self.curve.compute, self.down.path_N)[:, None]
            down_MD = self.down.draws.initial + np.sqrt(ahead_M1) * self.down.walk_D + past_M1
            return np.where(compute_M[:, None] < self.down.return_D, down_MD, level_MD)
        # an excursion dies out as phi^steps; it belongs to the future, not to the fitted curve before the last point
        future_M = compute_M >= self.last
        level_MD[future_M] += self.draws.autocorrelation ** ahead_M1[future_M] * self.excursion_D
        return np.asarray(level_MD)

    def beyond_creep(self, compute_M: Array) -> Array:
        """Return how far a creep that never ends is above one that saturates, shape (M, D); 0 up to the last point."""
        draws = self.draws
        creeps_D = (draws.second_midpoint > 10.0 * self.last) & (draws.second_gain > 0)
        ratio_M1 = np.maximum(compute_M / self.last, 1.0)[:, None]
        reach_D = draws.second_midpoint / self.last
        endless_MD = draws.second_gain * (ratio_M1 / (ratio_M1 + reach_D) - 1.0 / (1.0 + reach_D))
        slope_D = draws.second_gain * reach_D / (1.0 + reach_D) ** 2
        ending_M1 = (1.0 + CREEP_SATURATES) * (ratio_M1 - 1.0) / (ratio_M1 + CREEP_SATURATES)
        return np.where(creeps_D, endless_MD - slope_D * ending_M1, 0.0)

    def gain(self, compute: float) -> Array:
        """Return draws of the level at a compute minus the level at the last point, with take-offs, shape (D,).

        The interval of the gain and its probabilities are from the same draws as the bands of the forecast.
        """
        possible = self.for_intervals
        now_D, then_D = possible.possible_levels(np.array([self.last, compute]))
        return np.asarray(then_D - now_D)

    def steps_ahead(self, compute_M: Array) -> Array:
        """Return the number of evaluations from the last point to each compute at the present spacing, shape (M,)."""
        return np.maximum(compute_M - self.last, 0.0) / self.spacing

    @cached_property
    def spacing(self) -> float:
        """Median compute from one evaluation to the next, in the second half of the run."""
        return float(np.median(np.diff(self.curve.compute[-max(3, len(self.curve) // 2) :])))

    def with_take_offs(self, levels_MD: Array, compute_M: Array) -> Array:
        """Return the levels if a share of the draws takes off within `TAKE_OFF_DOUBLINGS` of compute, shape (M, D).

        The size of a take-off depends on the present level of a draw, so that the band at a compute does not depend on
        the others that are asked for.
        """
        low, high = self.curve.bounds
        rng, num_draws = np.random.default_rng(2), levels_MD.shape[1]

        def even_D() -> Array:
            """Return evenly spaced numbers in (0, 1) in random order, with less random error than independent ones."""
            return np.asarray((rng.permutation(num_draws) + 0.5) / num_draws)

        if self.fallen:
            return np.asarray(np.clip(levels_MD, low, high))
        present_D = self.levels(np.array([self.last]))[0]
        doublings_M1 = np.log2(np.maximum(compute_M / self.last, 1.0))[:, None]
        # a run that did not take off in one doubling of compute may do so in the next
        rising_D = even_D() < 1.0 - (1.0 - self.take_off_rate()) ** TAKE_OFF_DOUBLINGS
        start_D, height_D = TAKE_OFF_DOUBLINGS * even_D(), even_D()
        progress_MD = np.clip(TAKE_OFF_SPEED * (doublings_M1 - start_D), 0.0, 1.0)
        # to any level up to the metric's bound, as in the prior of A
        changed_MD = levels_MD + progress_MD * rising_D * height_D * (high - present_D)
        return np.asarray(np.clip(changed_MD, low, high))

    def take_off_rate(self) -> Array:
        """Return the probability that each draw takes off within a doubling of compute, shape (D,).

        It is positive for draws that have not climbed beyond the noise. A run that took off late may do so again.
        """
        draws = self.draws
        waiting = TAKE_OFF["still" if measured_noise(self.curve) < STILL else "other"].share
        climbed_D = draws.levels(self.curve.compute[-1:])[0] - draws.initial
        return np.where(draws.delay > 0, TAKE_OFF["other"].share, np.where(climbed_D < draws.noise_sd, waiting, 0.0))

    def with_noise(self, levels_MD: Array, compute_M: Array, mean_of: int = 1) -> Array:
        """Return the levels with the noise of evaluations, shape (M, D), within the metric's bounds.

        The noise at the present level is that of the run; at other levels its variance changes with p(1 - p).

        Args:
            levels_MD: Levels of the curve.
            compute_M: Their compute.
            mean_of: Number of successive evaluations around each compute whose mean is meant; 1: a single one.
        """
        draws = self.draws if self.down is None else self.down.draws
        phi_D, low, high = draws.autocorrelation, *self.curve.bounds
        # the part of the excursion that persists is known, so only the remaining noise is uncertain
        ahead_M1 = self.steps_ahead(compute_M)[:, None]
        new_MD = np.sqrt(1.0 - np.where(compute_M[:, None] >= self.last, phi_D ** (2 * ahead_M1 + 2), 0.0))
        present_variance = binomial(np.array(self.curve.metric.mean()), low, high)
        relative_MD = np.sqrt(binomial(levels_MD, low, high) / present_variance)
        sd_MD = draws.noise_sd * new_MD * relative_MD
        sd_MD = sd_MD * np.sqrt(share_of_mean(phi_D, max(1, round(mean_of / self.averaged.evaluations))))
        sd_MD = np.hypot(sd_MD, self.averaged.within_sd / np.sqrt(mean_of) * relative_MD)
        # each row with the same random numbers, so that the band at a compute does not depend on the others
        rows = [
            evaluations(level_D, sd_D, low, high, np.random.default_rng(1))
            for level_D, sd_D in zip(levels_MD, sd_MD, strict=True)
        ]
        return np.stack(rows)


def share_of_mean(phi_D: Array, count: int) -> Array:
    """Return the variance of the mean of successive AR(1) values, as a share of that of one, shape (D,).

    (1 + 2 sum_j (1 - j/n) phi^j) / n for n values.
    """
    lag_J1 = np.arange(1, count)[:, None]
    return np.asarray((1.0 + 2.0 * ((1.0 - lag_J1 / count) * phi_D**lag_J1).sum(axis=0)) / count)


def has_fallen(curve: Curve) -> bool:
    """Return whether the end of a curve is far below its best."""
    return fallen_by(curve) > max(FALLEN * float(np.ptp(curve.bounds)), SURE_FALL * local_noise(curve.metric))


def measured_noise(curve: Curve) -> float:
    """Return the measured noise of one evaluation, as a share of the metric's range."""
    return local_noise(curve.metric) / float(np.ptp(curve.bounds))


def prior_odds(curve: Curve) -> float:
    """Return the prior odds that a run stays where it is."""
    most = STAYS_AFTER_FALL / (1.0 - STAYS_AFTER_FALL)
    return most if has_fallen(curve) else min((max(measured_noise(curve), LEAST_NOISE) / EVEN_NOISE) ** 2, most)


def level_after_fall(curve: Curve) -> LevelPosterior:
    """Return the posterior of the level of a run that has fallen, in shares of the range."""
    low, high = curve.bounds
    share_N, floor, noise_N = (curve.metric - low) / (high - low), least_noise(curve) ** 2, relative_noise(curve)
    best = int(rolling_mean(curve.metric).argmax())
    return level_after_change(share_N, len(curve) * floor, best + 1, None if noise_N is None else 1.0 / noise_N)


def points_before_fall(curve: Curve, level: float) -> int:
    """Return the number of points up to the last one above the middle of the best level and the present one.

    At least the last point is after the fall.
    """
    middle = (float(rolling_mean(curve.metric).max()) + level) / 2.0
    last_above = int(np.flatnonzero(curve.metric > middle).max(initial=0))
    return min(last_above + 1, len(curve) - 1)


def down_since_fall(curve: Curve, count: int) -> Down:
    """Return the state of a run that has fallen, for this number of draws, as if all of them stayed down."""
    low, high = curve.bounds
    width, after, rng = high - low, level_after_fall(curve), np.random.default_rng(3)
    # in random order, because each draw that returns has a level before
    drawn = LevelDraws(*np.stack(after.draws(count, rng))[:, rng.permutation(count)])
    level_D, one_D = low + width * drawn.level, np.ones(count)
    # pairs of opposite deviates, so that the mean of the walks is the level
    half_D = rng.standard_normal((count + 1) // 2)
    draws = plain_draws(
        asymptote=level_D, efficiency=one_D, midpoint=one_D, initial=level_D, autocorrelation=0.0 * one_D,
        noise_sd=width * drawn.noise_sd, most=high,
    )  # fmt: skip
    num_before = points_before_fall(curve, low + width * float(after.weight_X @ after.level_X))
    age = curve.last_compute - curve.compute[num_before - 1]
    share_D = (rng.permutation(count) + 0.5) / count
    return Down(
        draws=draws,
        walk_D=width * drawn.step_sd * np.concatenate([half_D, -half_D])[:count],
        path_N=width * (after.path_N - after.path_N[-1]),
        num_before=num_before,
        log_evidence=after.log_evidence,
        # P(return within h) = h / (age + h)
        return_D=curve.last_compute + age * share_D / (1.0 - share_D),
    )


def futures(
    curve: Curve, rising: Posterior, averaged: Averaged, law_of: Callable[[int, int], Posterior | None]
) -> Futures:
    """Return both futures in proportion to prior probability times evidence.

    Args:
        curve: Points of the run.
        rising: The posterior of the law and its departures, and of a level.
        averaged: What the points are means of.
        law_of: Returns the posterior of a number of first points, with a number of draws; None if they are too few.
    """
    fell, num_draws = has_fallen(curve), len(rising.draws)
    steady, evidence_of_level = rising.level
    climb = rising.log_evidence - evidence_of_level
    noisy = measured_noise(curve) > NOISY
    down = down_since_fall(curve, num_draws) if fell else None
    # a climb that followed the law gives no evidence about the time after a fall
    evidence = climb if down is None else min(rising.log_evidence - down.log_evidence, 0.0)

    def rise(odds: float, evidence: float) -> int:
        """Return the number of draws that rise."""
        probability = 1.0 / (1.0 + np.exp(-np.clip(np.log(odds) - evidence, -50.0, 50.0)))
        return num_draws - (round(probability * num_draws) if probability > NEGLIGIBLE else 0)

    def with_draws(draws: Draws, doubtful: Futures | None, saturates: bool = False) -> Futures:
        """Return the futures if these draws rise and the others stay."""
        num_staying = num_draws - len(draws)
        staying = steady.evenly(num_staying) if down is None else down.draws.select(slice(len(draws), None))
        both = joined([draws, staying])
        above_D = curve.metric[-1] - both.levels(curve.compute[-1:])[0]
        return Futures(
            draws=both,
            stay_probability=num_staying / num_draws,
            excursion_D=both.autocorrelation * above_D,
            down=None if down is None else down.until_return(num_staying),
            curve=curve,
            fall=LATER_FALL["noisy" if noisy else "smooth"],
            climb=climb,
            doubtful=doubtful,
            saturates=saturates,
            averaged=averaged,
        )

    odds = prior_odds(curve)
    num_rising = rise(odds, evidence)
    # no fall, however clear, shows that the run cannot return
    possible = rising.doubtful.evenly(rise(max(odds, EVEN_ODDS), 0.0 if fell else evidence))
    changed = down if num_rising < len(possible) else None  # else noise explains the fall as well as a change
    before = None if changed is None else law_of(changed.num_before, len(possible))
    if before is not None:
        # as many as in the mean follow the law of all points, with noise in place of the fall; the others were down,
        # and the points since then say nothing about the law to which they return
        returning = before.doubtful.evenly(len(possible) - num_rising)
        possible = joined([possible.evenly(num_rising), returning])
    # a creep that moves the mean has been seen; one that is only possible saturates
    doubtful = with_draws(possible, None, "creep" not in rising.probability)
    return with_draws(rising.draws.evenly(num_rising), doubtful)
