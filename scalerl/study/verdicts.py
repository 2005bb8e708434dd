"""What an arm does to the candidate, as a word and as a sentence, from a comparison. It compares nothing itself."""

from __future__ import annotations

from scalerl.scaling import Comparison, Estimate
from scalerl.scaling.compare import LATER, LEVEL

EFFECTS = {
    "raises": "raises the ceiling",
    "lowers": "lowers the ceiling",
    "quicker": "same ceiling, more efficient",
    "slower": "same ceiling, less efficient",
    "later": "same ceiling; steeper and dearer, or flatter and cheaper",
    "cheaper": "less compute for the same level so far; A and B not told apart",
    "dearer": "more compute for the same level so far; A and B not told apart",
    "none": "no difference that this much compute can show",
    "unknown": "not measured yet",
    "candidate": "the candidate",
}
"""What an arm does, from the candidate's point of view."""


def effect_of(against: Comparison | None) -> str:
    """Return what an arm, the first side, does to the candidate, the second; a key of ``EFFECTS``."""
    if against is None:
        return "unknown"
    if against.verdict == LATER:
        return "later"
    kinds = {"higher ceiling": ("raises", "lowers"), "same ceiling and more efficient": ("quicker", "slower")}
    if against.verdict not in kinds:
        # a shift along the compute axis moves neither A nor B, and yet it is what a user pays
        sure = min(against.probability_cheaper, 1 - against.probability_cheaper) < LEVEL / 2
        return ("cheaper" if against.probability_cheaper > 0.5 else "dearer") if sure else "none"
    better, worse = kinds[against.verdict]
    return better if against.winner == "first" else worse


def sentence_of(name: str, candidate: str, effect: str, against: Comparison | None, problems: str) -> str:
    """Return an arm's verdict in words, with its numbers.

    Args:
        name: of the arm.
        candidate: what it is compared with.
        effect: from ``effect_of``.
        against: the comparison; None where there is none.
        problems: why the arm has no fit; empty if it has one.
    """
    if effect == "candidate":
        return f"{name} is the candidate."
    if against is None:
        reasons = problems or f"{candidate} has no fit yet"
        return f"{name}: not measured yet ({reasons})."
    difference, ratio, cost = against.asymptote_difference, against.efficiency_ratio, against.compute_ratio
    if effect in ("raises", "lowers"):
        return f"{name} {EFFECTS[effect]}: A differs by {_signed(difference)} from {candidate}."
    compute = f"the level {against.level:.3f} takes {_times(cost)} the compute"
    efficiency = f"its B is {_times(ratio)} that of {candidate}, and {compute}"
    if effect == "later":
        which = "steeper and dearer" if ratio.mean > 1 else "flatter and cheaper"
        return f"{name}: same ceiling, {which}: {efficiency}."
    if effect in ("cheaper", "dearer"):
        shift = f"{compute} of {candidate}; A differs by {_signed(difference)}, its B is {_times(ratio)} as large"
        return f"{name} is {effect} so far: {shift}."
    if effect == "none":
        return f"{name}{NO_DIFFERENCE}: A differs by {_signed(difference)}, {efficiency}."
    return f"{name}: {EFFECTS[effect]}: {efficiency}."


NO_DIFFERENCE = " makes no difference that this much compute can show"
"""What a list under such a heading leaves out."""


def _signed(estimate: Estimate) -> str:
    return f"{estimate.mean:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _times(estimate: Estimate) -> str:
    values = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = (f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.1g}" for value in values)
    return f"{mean} times ({low} to {high})"
