"""Turns the comparison of an arm with the reference into an effect (one word) and a sentence."""

from __future__ import annotations

from typing import NamedTuple

from scalerl.scaling import Comparison, Estimate
from scalerl.scaling.compare import LATER, LEVEL


class Effect(NamedTuple):
    """An effect of an arm relative to the reference."""

    words: str
    short: str
    """Text for a narrow column."""
    color: str
    """Color on the pages, a name as in `view.page_figures`."""


EFFECTS = {
    "raises": Effect("raises the ceiling", "higher ceiling", "@s2"),
    "lowers": Effect("lowers the ceiling", "lower ceiling", "@s7"),
    "more_efficient": Effect("same ceiling, more efficient", "more efficient", "@s5"),
    "less_efficient": Effect("same ceiling, less efficient", "less efficient", "@s1"),
    "later": Effect(
        "same ceiling; steeper but needs more compute, or flatter but needs less", "B and compute disagree", "@s6"
    ),
    "less_compute": Effect(
        "needs less compute for the same level so far; A and B not distinguished", "less compute so far", "@s5"
    ),
    "more_compute": Effect(
        "needs more compute for the same level so far; A and B not distinguished", "more compute so far", "@s1"
    ),
    "none": Effect("no difference that this much compute can show", "no difference seen", "@muted"),
    "unknown": Effect("not measured yet", "not measured", "@muted"),
    "reference": Effect("the reference", "the reference", "@s0"),
}
"""Effects by name, sorted by importance."""


def effect_of(against: Comparison | None) -> str:
    """Return the effect of an arm (the first side), compared with the reference (the second); a key of `EFFECTS`."""
    if against is None:
        return "unknown"
    if against.verdict == LATER:
        return "later"
    kinds = {
        "higher ceiling": ("raises", "lowers"),
        "same ceiling and more efficient": ("more_efficient", "less_efficient"),
    }
    if against.verdict not in kinds:
        # a shift along the compute axis changes neither A nor B, but it changes the cost for the user
        probability = against.probability_less_compute
        sure = min(probability, 1 - probability) < LEVEL / 2
        return ("less_compute" if probability > 0.5 else "more_compute") if sure else "none"
    better, worse = kinds[against.verdict]
    return better if against.winner == "first" else worse


def sentence_of(name: str, reference: str, effect: str, against: Comparison | None, problems: str) -> str:
    """Return an arm's verdict as a sentence with its numbers.

    Args:
        name: Name of the arm.
        reference: Name of the reference.
        effect: Result of `effect_of`.
        against: Comparison of the arm with the reference; None if there is none.
        problems: Reasons why the arm has no fit; empty if it has one.
    """
    if effect == "reference":
        return f"{name} is the reference."
    if against is None:
        reasons = problems or f"{reference} has no fit yet"
        return f"{name}: not measured yet ({reasons})."
    difference, ratio = f"A differs by {_signed(against.asymptote_difference)}", against.efficiency_ratio
    if effect in ("raises", "lowers"):
        return f"{name} {EFFECTS[effect].words}: {difference} from {reference}."
    needed, level = f"{_times(against.compute_ratio)} the compute", f"for the level {against.level:.3f}"
    efficiency = f"its B is {_times(ratio)} that of {reference}, and it needs {needed} {level}"
    if effect == "later":
        which = "steeper but needs more compute" if ratio.mean > 1 else "flatter but needs less compute"
        return f"{name}: same ceiling, {which}: {efficiency}."
    if effect in ("less_compute", "more_compute"):
        amount = "less" if effect == "less_compute" else "more"
        return (
            f"{name} needs {amount} compute so far: {needed} of {reference} {level}; "
            f"{difference}, and its B is {_times(ratio)} that of {reference}."
        )
    if effect == "none":
        return f"{name}{NO_DIFFERENCE}: {difference}, {efficiency}."
    return f"{name}: {EFFECTS[effect].words}: {efficiency}."


NO_DIFFERENCE = " makes no difference that this much compute can show"
"""Text that a list omits from its sentences, because the heading already contains it."""


def _signed(estimate: Estimate) -> str:
    return f"{estimate.mean:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _times(estimate: Estimate) -> str:
    values = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = (f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.1g}" for value in values)
    return f"{mean} times ({low} to {high})"
