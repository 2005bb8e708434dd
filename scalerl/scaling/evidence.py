"""Tests whether the evidence is enough to stop a run, for ``advise`` and ``stop_when``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.fit import DOUBTFUL, MIN_POINTS, Fit, fit
from scalerl.scaling.futures import has_fallen
from scalerl.scaling.health import ENOUGH_POINTS, Symptom, decline
from scalerl.scaling.trend import Trend, trend

NO_RETURN = (10, 11)
"""Counts of public runs that had clearly fallen at two successive evaluations: (never again more than 0.01 above their
earlier best, all), for means of three points. All are from one repository."""

NO_CLIMB = (16, 32)
"""Counts of public runs without a clear climb at an evaluation from the tenth on: (ended more than 0.01 above that
evaluation, all), for means of a fifth of the points."""

VISIBLE_CLIMB = float(np.log((1.0 - DOUBTFUL) / DOUBTFUL))
"""Log evidence ratio above which the points show a climb: with even prior odds its probability is above 0.9."""


class Chance(NamedTuple):
    """The probability that more training gains enough, estimated in two ways.

    Example: ``Chance(forecast=0.02, trend=0.15, recent=Trend(0.004, 0.005, 1.0))``
    """

    forecast: float
    """Probability by the forecast."""

    trend: float
    """Probability if the rise continues as over the last doubling of compute."""

    recent: Trend
    """The rise over the last doubling of compute."""


def chance_of_gain(fitted: Fit, compute: float, gain: float) -> Chance:
    """Return both probabilities of a gain above `gain`, from the last point to a larger compute.

    Args:
        fitted: fit by a method that gives an uncertainty.
        compute: compute in the curve's unit, beyond the last point.
        gain: gain in the metric's unit.
    """
    recent = trend(fitted.curve)
    doublings = float(np.log2(compute / fitted.last_compute))
    return Chance(float((fitted.gain(compute) > gain).mean()), recent.probability(gain, doublings), recent)


def doubt(fitted: Fit, factor: float, gain: float, limit: float) -> str | None:
    """Return the reason why the run should not be stopped for lack of gain, or None if it may be stopped.

    The conditions for a stop must hold at this evaluation and at the previous one.

    Args:
        fitted: fit by a method that gives an uncertainty.
        factor: compute at which the gain is judged, in multiples of that of the last point; > 1.
        gain: smallest gain that justifies more training, in the metric's unit.
        limit: maximum probability of a larger gain at which a run is stopped.
    """
    if len(fitted.curve) < ENOUGH_POINTS:
        return f"{len(fitted.curve)} evaluations are too few to stop on; at least {ENOUGH_POINTS} are needed"
    now = doubt_at(fitted, factor, gain, limit)
    if now is not None:
        return now
    before = doubt_at(earlier(fitted), factor, gain, limit)
    return None if before is None else f"this is so only since the last evaluation; before it, {before}"


def doubt_at(fitted: Fit, factor: float, gain: float, limit: float) -> str | None:
    """Return the reason as in ``doubt``, judged at the last evaluation only."""
    if has_fallen(fitted.curve):
        return "the run has fallen from its best"
    if not climbed(fitted):
        return (
            f"the run shows no clear climb so far, and {NO_CLIMB[0]} of {NO_CLIMB[1]} such public runs rose by more "
            "than 0.01 later"
        )
    chance = chance_of_gain(fitted, factor * fitted.last_compute, gain)
    if chance.forecast > limit:
        ceiling = "" if fitted.identified else f"; {fitted.reason}"
        return f"by the forecast a gain above {gain:g} has probability {chance.forecast:.2f}{ceiling}"
    if chance.trend > limit:
        return doubt_by_trend(chance, factor, gain, limit)
    return None


def climbed(fitted: Fit) -> bool:
    """Return whether the points show a climb, and the run probably rises; without a climb, it may still begin later.

    The prior odds alone are no evidence of a climb: with little noise they are against a run that stays.
    """
    futures = fitted.futures
    return futures is None or (futures.stays <= DOUBTFUL and futures.climb > VISIBLE_CLIMB)


def doubt_by_trend(chance: Chance, factor: float, gain: float, limit: float) -> str:
    """Return the reason by the trend: the metric still rises, or it is too noisy to tell."""
    recent = chance.recent
    if recent._replace(rise=0.0).probability(gain, float(np.log2(factor))) > limit:
        return (
            f"the evaluations scatter too much to exclude a gain of {gain:g}: the rise over the last doubling of "
            f"compute is known only to ± {recent.error:.2g}. Evaluate on more prompts, or ask for a larger gain"
        )
    return (
        f"by the forecast a gain above {gain:g} has probability {chance.forecast:.2f}, but the level rose by "
        f"{recent.rise:.2g} ± {recent.error:.2g} over the last doubling of compute; if this continues, the "
        f"probability is {chance.trend:.2f}"
    )


def earlier(fitted: Fit) -> Fit:
    """Return the fit by the same method without the last point."""
    return fit(fitted.curve.first(len(fitted.curve) - 1), fitted.method)


def clear_fall(fitted: Fit) -> Symptom | None:
    """Return the fall of a run that fell by more than noise at two successive evaluations, or None."""
    curve = fitted.curve
    if len(curve) <= MIN_POINTS:
        return None
    seen = [decline(part) if has_fallen(part) else None for part in (curve.first(len(curve) - 1), curve)]
    return seen[1] if seen[0] is not None else None
