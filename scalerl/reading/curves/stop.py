"""The conditions under which a run stops automatically, and how far each is from holding.

gain at 2x below 0.02     at two successive evaluations, few of the possible gains are above 0.02
ceiling identified        the ceiling of this climb is known
falling                   the metric falls from its best by more than noise explains
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalerl.reading.curves.falls import fallen_by
from scalerl.reading.curves.fit import CEILING, Fit, fit
from scalerl.reading.curves.health import decline
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.tables.errors import CurveError

CONDITION_FORMS = (
    "'gain at 2x below 0.02', 'gain at 2x below 0.02 with probability 0.9', 'ceiling identified', 'falling'"
)
"""The conditions in the form in which a user writes them."""

PROBABILITY = 0.9
"""Default share of the draws that a gain condition needs below the gain.

Of 294 cuts of public runs, 10 meet it at one evaluation, 8 of them rightly; with a share of 0.8, 54 and 40."""

NUMBER_PATTERN = r"(\d*\.?\d+(?:e[+-]?\d+)?)"
GAIN = re.compile(rf"gain at {NUMBER_PATTERN}\s*[x×] below {NUMBER_PATTERN}(?: with probability {NUMBER_PATTERN})?")


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


class Judgment(NamedTuple):
    """Whether a condition holds.

    Example: `Judgment(False, "share of draws above 0.02 is 0.23, needed 0.10")`
    """

    holds: bool
    text: str
    """The reason, or how far it is."""

    def waiting(self, why: str) -> Judgment:
        """Return the judgment of a condition that is not decided yet, although it may seem to hold."""
        return Judgment(False, f"{self.text}; it waits, because {why}") if self.holds else self


def stop_rule(text: str) -> StopRule:
    """Parse a condition.

    Raises:
        CurveError: The text is none of `CONDITION_FORMS`, or a number in it is out of range.
    """
    plain = " ".join(text.lower().split())
    if plain in ("ceiling identified", "falling"):
        return StopRule(text, plain)
    match = GAIN.fullmatch(plain)
    if match is None:
        raise CurveError(f"got {text!r}; allowed: {CONDITION_FORMS}, with other numbers")
    factor, gain, probability = float(match[1]), float(match[2]), float(match[3] or PROBABILITY)
    if not (factor > 1 and gain > 0 and 0 < probability < 1):
        raise CurveError(
            f"got {text!r}; allowed: a multiple above 1x, a gain above 0, and a probability between 0 and 1"
        )
    return StopRule(text, "gain", factor, gain, probability)


def gains_little(rule: StopRule, fit: Fit) -> Judgment:
    """Judge the share of the draws with a larger gain, now and one evaluation earlier: a run is judged many times."""
    needed = f"needed {1.0 - rule.probability:.2f}"
    now = fit.probability_of_gain(rule.factor * fit.last_compute, rule.gain)
    text = f"share of draws above {rule.gain:g} is {now:.2f}, {needed}"
    if now >= 1.0 - rule.probability:
        return Judgment(False, text)
    if len(fit.curve) <= MIN_POINTS:
        return Judgment(False, f"{text} at two evaluations")
    previous = earlier(fit)
    before = previous.probability_of_gain(rule.factor * previous.last_compute, rule.gain)
    return Judgment(before < 1.0 - rule.probability, f"{text}; one evaluation before it was {before:.2f}")


def earlier(fit_result: Fit) -> Fit:
    """Return the fit without the last point."""
    return fit(fit_result.curve.first(len(fit_result.curve) - 1))


def ceiling_identified(rule: StopRule, fit: Fit) -> Judgment:
    """Judge whether the ceiling is identified."""
    if fit.identified:
        return Judgment(True, f"{CEILING} is identified: {fit.asymptote}")
    return Judgment(False, f"{CEILING} is not identified: {fit.reason}")


def falling(rule: StopRule, fit: Fit) -> Judgment:
    """Judge whether the end of the curve is below its best by more than noise explains."""
    symptom = decline(fit.curve)
    if symptom is None:
        return Judgment(False, f"the metric is {fallen_by(fit.curve):.3f} below its best, no more than noise explains")
    return Judgment(True, symptom.message.partition(";")[0])


JUDGES: dict[str, Callable[[StopRule, Fit], Judgment]] = {
    "gain": gains_little,
    "ceiling identified": ceiling_identified,
    "falling": falling,
}
"""Functions that judge the conditions, by kind."""


def judge(rule: StopRule, fits: Sequence[Fit]) -> Judgment:
    """Judge whether a run should stop.

    "falling" must hold for one curve, the other conditions for every curve.

    Args:
        rule: The condition.
        fits: Fits of the run's curves, one per task; without fits no condition holds.
    """
    judged = [(fit.curve.label, JUDGES[rule.kind](rule, fit)) for fit in fits]
    enough = 1 if rule.kind == "falling" else max(1, len(fits))
    holds = sum(of_task.holds for _, of_task in judged) >= enough
    told = [(label, of_task.text) for label, of_task in judged if of_task.holds == holds]
    text = "; ".join(f"{label}: {text}" if len(fits) > 1 else text for label, text in told)
    verb = "holds" if holds else "does not hold"
    return Judgment(holds, f"{rule.text!r} {verb}: {text or f'fewer than {MIN_POINTS} evaluations'}")
