"""The conditions under which a run stops automatically, judged by the same decision as `advise`.

advice is stop                                 the advice is to stop, and sure
gain at 2x below 0.01 with probability 0.9     more training hardly helps, by another gain or probability
ceiling identified                             the ceiling is known
falling                                        the metric falls from its best by more than noise explains

A stop for lack of gain must be advised at two successive evaluations, because a run is judged many times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalerl.scaling.advise import SURE, Advice, advise
from scalerl.scaling.fit import CEILING, MIN_POINTS, Fit, fit
from scalerl.scaling.health import decline
from scalerl.scaling.readers import CurveError

FORMS = "'advice is stop', 'gain at 2x below 0.01 with probability 0.9', 'ceiling identified', 'falling'"
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
    """Smallest gain that justifies more training, in the metric's unit; 0: the default of `advise`."""
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
    if plain == "advice is stop":
        return StopRule(text, "gain", 2.0, 0.0, SURE)
    match = GAIN.fullmatch(plain)
    if match is None:
        raise CurveError(f"got {text!r}; allowed: {FORMS}, with other numbers")
    factor, gain, probability = float(match[1]), float(match[2]), float(match[3] or PROBABILITY)
    if not (factor > 1 and gain > 0 and 0 < probability < 1):
        raise CurveError(
            f"got {text!r}; allowed: a multiple above 1x, a gain above 0, and a probability between 0 and 1"
        )
    return StopRule(text, "gain", factor, gain, probability)


def gains_little(rule: StopRule, fit: Fit, min_gain: float | None) -> str | None:
    """Return a reason if stopping is advised with the probability of the rule, now and one evaluation earlier."""
    if len(fit.curve) <= MIN_POINTS:
        return None
    advice = advice_by(rule, fit, min_gain)
    if not advises_stop(rule, advice) or not advises_stop(rule, advice_by(rule, earlier(fit), min_gain)):
        return None
    return advice.headline


def advice_by(rule: StopRule, fit: Fit, min_gain: float | None) -> Advice:
    """Return the advice for the gain of a rule, or for the gain of the run if the rule has none."""
    return advise(fit, rule.factor * fit.last_compute, rule.gain or min_gain)


def advises_stop(rule: StopRule, advice: Advice) -> bool:
    """Return whether an advice is to stop, with at least the probability of a rule."""
    return advice.action == "stop" and advice.probability >= rule.probability


def earlier(fit_result: Fit) -> Fit:
    """Return the fit without the last point."""
    return fit(fit_result.curve.first(len(fit_result.curve) - 1))


def ceiling_identified(rule: StopRule, fit: Fit, min_gain: float | None) -> str | None:
    """Return a reason if the ceiling is identified."""
    return f"{CEILING} is identified: {fit.asymptote}" if fit.identified else None


def falling(rule: StopRule, fit: Fit, min_gain: float | None) -> str | None:
    """Return a reason if the end of the curve is below its best by more than noise explains."""
    symptom = decline(fit.curve)
    return None if symptom is None else symptom.message.partition(";")[0]


JUDGES: dict[str, Callable[[StopRule, Fit, float | None], str | None]] = {
    "gain": gains_little,
    "ceiling identified": ceiling_identified,
    "falling": falling,
}
"""Functions that evaluate the conditions, by kind; each returns a reason to stop, or None."""


def reason_to_stop(rule: StopRule, fits: Sequence[Fit], min_gain: float | None = None) -> str | None:
    """Return the reason why a run should stop, or None.

    "falling" must hold for one curve, the other conditions for every curve.

    Args:
        rule: The condition.
        fits: Fits of the run's curves, one per task; without fits the result is None.
        min_gain: Smallest gain that is worth twice the compute, for "advice is stop"; None: the default of `advise`.
    """
    judged = [(fit.curve.label, JUDGES[rule.kind](rule, fit, min_gain)) for fit in fits]
    reasons = [f"{label}: {reason}" if len(fits) > 1 else reason for label, reason in judged if reason is not None]
    enough = 1 if rule.kind == "falling" else max(1, len(fits))
    return f"{rule.text!r} holds: {'; '.join(reasons)}" if len(reasons) >= enough else None
