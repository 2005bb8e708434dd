"""The conditions under which a run stops automatically, and the evidence for stopping that `advise` shares.

gain at 2x below 0.01 with probability 0.9     more training hardly helps
ceiling identified                             the ceiling is known
falling                                        the metric falls from its best by more than noise explains

Real runs often keep rising slowly after their climb, so the law alone, which has a ceiling, would stop them too early.
The trend of a run over its last doubling of compute is therefore a second opinion: the least-squares slope of the
metric in log compute, combined with the gains of public runs.

Axes in names: K points of the last doubling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scalerl.scaling.counts import NO_CLIMB
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import MIN_POINTS, UNLAWFUL, Fit, fit
from scalerl.scaling.futures import has_fallen
from scalerl.scaling.health import ENOUGH_POINTS, Symptom, decline
from scalerl.scaling.noise import least_noise
from scalerl.scaling.readers import CurveError

PRIOR_RISE = 0.01
"""Mean rise per doubling of compute after a climb, as a share of the metric's range.

For eight public runs from five repositories, the forecast gave a gain above 0.01 a probability below 0.2. Over the next
doubling these runs gained 0.013 in the median; seven of the eight gained between -0.015 and 0.043.
"""

PRIOR_SD = 0.02
"""Standard deviation of this rise."""

LEAST_POINTS = 5
"""Smallest number of points for the slope, used if the last doubling has fewer."""


class Trend(NamedTuple):
    """The rise per doubling of compute, before the prior.

    Example: `Trend(rise=0.004, error=0.003, width=1.0)` gains more than 0.01 over the next doubling with probability
    0.02.
    """

    rise: float
    """Least-squares slope of the metric in log2 of compute, in the metric's unit."""

    error: float
    """Standard error of the slope."""

    width: float
    """Width of the metric's range."""

    def probability(self, gain: float, doublings: float) -> float:
        """Return the probability that the next doublings of compute gain more than `gain`.

        Args:
            gain: Gain in the metric's unit.
            doublings: Number of doublings of compute ahead, > 0.
        """
        from scipy.special import ndtr

        prior = 1.0 / (PRIOR_SD * self.width) ** 2
        data = 1.0 / self.error**2
        mean = (prior * PRIOR_RISE * self.width + data * self.rise) / (prior + data)
        return float(ndtr((mean - gain / doublings) * np.sqrt(prior + data)))


def trend(curve: Curve) -> Trend:
    """Return the slope over the last doubling of compute, from at least `LEAST_POINTS` points.

    Args:
        curve: Curve with at least five points.
    """
    last = curve.last_compute
    count = max(int((curve.compute > last / 2).sum()), LEAST_POINTS)
    after = curve.compute > 0
    doublings_K = np.log2(curve.compute[after][-count:] / last)
    metric_K = curve.metric[after][-count:]
    across_K = doublings_K - doublings_K.mean()
    spread = float(across_K @ across_K)
    rise = float(across_K @ metric_K) / spread
    residual_K = metric_K - metric_K.mean() - rise * across_K
    width = float(np.ptp(curve.bounds))
    noise = max(np.sqrt(float(residual_K @ residual_K) / (len(metric_K) - 2)), least_noise(curve) * width)
    return Trend(rise, noise / np.sqrt(spread), width)


VISIBLE_CLIMB = float(np.log((1.0 - UNLAWFUL) / UNLAWFUL))
"""Log evidence ratio above which the points show a climb: with even prior odds its probability is above 0.9."""


class Chance(NamedTuple):
    """The probability that more training gains enough, estimated in two ways.

    Example: `Chance(forecast=0.02, trend=0.15, recent=Trend(0.004, 0.005, 1.0))`
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
        fitted: Fit of the run so far.
        compute: Compute in the curve's unit, beyond the last point.
        gain: Gain in the metric's unit.
    """
    recent = trend(fitted.curve)
    doublings = float(np.log2(compute / fitted.last_compute))
    return Chance(float((fitted.gain(compute) > gain).mean()), recent.probability(gain, doublings), recent)


def doubt(fitted: Fit, factor: float, gain: float, limit: float) -> str | None:
    """Return the reason why the run should not be stopped for lack of gain, or None if it may be stopped.

    The conditions for a stop must hold at this evaluation and at the previous one.

    Args:
        fitted: Fit of the run so far.
        factor: Compute at which the gain is judged, in multiples of that of the last point; > 1.
        gain: Smallest gain that justifies more training, in the metric's unit.
        limit: Maximum probability of a larger gain at which a run is stopped.
    """
    if len(fitted.curve) < ENOUGH_POINTS:
        return f"{len(fitted.curve)} evaluations are too few to stop on; at least {ENOUGH_POINTS} are needed"
    now = doubt_at(fitted, factor, gain, limit)
    if now is not None:
        return now
    before = doubt_at(earlier(fitted), factor, gain, limit)
    return None if before is None else f"this holds only since the last evaluation; before it, {before}"


def doubt_at(fitted: Fit, factor: float, gain: float, limit: float) -> str | None:
    """Return the reason as in `doubt`, judged at the last evaluation only."""
    if has_fallen(fitted.curve):
        return "the run has fallen from its best"
    if not climbed(fitted):
        return f"the run shows no clear climb so far, and {NO_CLIMB} such public runs rose by more than 0.01 later"
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
    return futures.stays <= UNLAWFUL and futures.climb > VISIBLE_CLIMB


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
    """Return the fit without the last point."""
    return fit(fitted.curve.first(len(fitted.curve) - 1))


def clear_fall(fitted: Fit) -> Symptom | None:
    """Return the fall of a run that fell by more than noise at two successive evaluations, or None."""
    curve = fitted.curve
    if len(curve) <= MIN_POINTS:
        return None
    seen = [decline(part) if has_fallen(part) else None for part in (curve.first(len(curve) - 1), curve)]
    return seen[1] if seen[0] is not None else None


FORMS = "'gain at 2x below 0.01 with probability 0.9', 'ceiling identified', 'falling'"
"""The conditions in the form in which a user writes them."""

PROBABILITY = 0.9
"""Default probability of a gain condition."""

NUMBER = r"(\d*\.?\d+(?:e[+-]?\d+)?)"
GAIN = re.compile(rf"gain at {NUMBER}\s*[x×] below {NUMBER}(?: with probability {NUMBER})?")


class StopRule(NamedTuple):
    """One condition.

    Example: `StopRule("gain at 2x below 0.01", "gain", factor=2.0, gain=0.01, probability=0.9)`
    """

    text: str
    """The condition as given by the user."""
    kind: str
    """Key of `JUDGES`."""
    factor: float = 0.0
    """Compute at which the gain is judged, in multiples of that of the last point; > 1."""
    gain: float = 0.0
    """Smallest gain that justifies more training, in the metric's unit; > 0."""
    probability: float = 0.0
    """Probability with which the gain must be smaller, in (0, 1)."""


def stop_rule(text: str) -> StopRule:
    """Parse a condition.

    Raises:
        CurveError: The text is none of `FORMS`, or a number in it is out of range.
    """
    plain = " ".join(text.lower().split())
    if plain in ("ceiling identified", "falling"):
        return StopRule(text, plain)
    match = GAIN.fullmatch(plain)
    if match is None:
        raise CurveError(f"got {text!r}; allowed: {FORMS}, with other numbers")
    factor, gain, probability = float(match[1]), float(match[2]), float(match[3] or PROBABILITY)
    if not (factor > 1 and gain > 0 and 0 < probability < 1):
        raise CurveError(
            f"got {text!r}; allowed: a multiple above 1x, a gain above 0, and a probability between 0 and 1"
        )
    return StopRule(text, "gain", factor, gain, probability)


def gains_little(rule: StopRule, fit: Fit) -> str | None:
    """Return a reason if the gain is probably too small, by the same evidence as in `advise`."""
    if doubt(fit, rule.factor, rule.gain, 1.0 - rule.probability) is not None:
        return None
    chance = chance_of_gain(fit, rule.factor * fit.last_compute, rule.gain)
    return (
        f"{rule.factor:g} times the compute gains less than {rule.gain:g} with probability "
        f"{1 - chance.forecast:.2f} by the forecast and {1 - chance.trend:.2f} by the trend of the last doubling "
        "of compute"
    )


def ceiling_identified(rule: StopRule, fit: Fit) -> str | None:
    """Return a reason if the ceiling is identified."""
    return f"the ceiling is identified: {fit.asymptote}" if fit.identified else None


def falling(rule: StopRule, fit: Fit) -> str | None:
    """Return a reason if the end of the curve is below its best by more than noise explains."""
    symptom = decline(fit.curve)
    return None if symptom is None else symptom.message.partition(";")[0]


JUDGES: dict[str, Callable[[StopRule, Fit], str | None]] = {
    "gain": gains_little,
    "ceiling identified": ceiling_identified,
    "falling": falling,
}
"""Functions that evaluate the conditions, by kind; each returns a reason to stop, or None."""


def reason_to_stop(rule: StopRule, fits: Sequence[Fit]) -> str | None:
    """Return the reason why a run should stop, or None.

    "falling" must hold for one curve, the other conditions for every curve.

    Args:
        rule: Condition to evaluate.
        fits: Fits of the run's curves, one per task; without fits the result is None.
    """
    judged = [(fit.curve.label, JUDGES[rule.kind](rule, fit)) for fit in fits]
    reasons = [f"{label}: {said}" if len(fits) > 1 else said for label, said in judged if said is not None]
    enough = 1 if rule.kind == "falling" else max(1, len(fits))
    return f"{rule.text!r} holds: {'; '.join(reasons)}" if len(reasons) >= enough else None
