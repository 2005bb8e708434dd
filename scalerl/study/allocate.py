"""Decides from the curves of a study's arms (recipes) which arms get the next slice of compute.

An arm continues while the posterior gives it a chance to be the best. The present score is not used: an arm that is
behind continues if its ceiling is not known yet. The decision depends on the curves only, not on earlier decisions, so
an arm that was stopped can continue later if the other arms turn out worse.

Axes in names: A arms, D draws, S runs (seeds) of an arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from scalerl.scaling.compare import MARGIN, Runs, listed, seed_scatter
from scalerl.scaling.estimate import Estimate, or_none, short, summarize
from scalerl.study.best_arm import (
    ArmDraws,
    draws_of_arm,
    leader,
    probability_best,
    relative_probability_best,
    shortfall,
    worth_of_all,
    worth_of_each,
)
from scalerl.study.fitted_arms import FittedArm, checked_arms, fitted_arm

LEAST = 0.05
"""An arm continues while its probability of being the best is at least this share of the likeliest arm's.

Chosen on 120 simulated studies, with different random numbers from those of ``benchmarks/allocation.py``.
"""

TOLERANCE = MARGIN / 4
"""The study is over when more training would raise the chosen arm by less than this share of the metric's range."""


@dataclass(frozen=True)
class Verdict:
    """Whether one arm continues, and why."""

    arm: str
    """Name of the arm, as given by the caller."""

    go_on: bool
    """Whether to spend the next slice of compute on it."""

    reason: str
    """Reason, as text."""

    probability_best: float
    """Probability that it has the highest ceiling of all judged arms; NaN if it could not be judged."""

    evidence: float
    """``probability_best`` divided by that of the likeliest arm; NaN if it could not be judged."""

    shortfall: float
    """Expected distance below the best, in the metric's unit; NaN if it could not be judged."""

    worth: float
    """Expected gain in the ceiling of the chosen arm from training this arm alone, in the metric's unit; NaN if it
    could not be judged. If arms are trained one after the other, train the one with the largest worth first.
    """

    reach: Estimate | None
    """The recipe's ceiling; None if it could not be judged."""

    spent: float
    """Compute of all its runs so far, unit of the curves' axis."""

    def __str__(self) -> str:
        judged = "" if self.reach is None else f"{self.reach}, best with probability {self.probability_best:.2f}; "
        return f"{self.arm}: {'continue' if self.go_on else 'stop'} ({judged}{self.reason})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values; NaN becomes None."""
        numbers = {
            name: or_none(getattr(self, name)) for name in ("probability_best", "evidence", "shortfall", "worth")
        }
        return {**asdict(self), **numbers, "reach": None if self.reach is None else self.reach.to_dict()}


@dataclass(frozen=True)
class Allocation:
    """Which arms get the next slice of a study's compute."""

    verdicts: dict[str, Verdict]
    """One verdict for each arm, in the given order."""

    best: str | None
    """The arm to choose if the study ended now; None while no arm can be judged, or if all have collapsed."""

    over: bool
    """Whether the study is over; then no arm continues."""

    reason: str
    """Reason why it is over or continues, as text."""

    worth: float
    """Upper bound on the expected gain in the ceiling of the chosen arm from more training, in the metric's unit."""

    seed_sd: float
    """Standard deviation between seeds of one recipe, in the metric's unit; NaN while no arm can be judged."""

    seed_source: str
    """Source of ``seed_sd``."""

    spent: float
    """Compute of all runs of all arms so far."""

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"  {verdict}" for verdict in self.verdicts.values())])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values for a line of allocation.jsonl; ``rule`` and ``target`` are constant."""
        numbers = {name: or_none(getattr(self, name)) for name in ("worth", "seed_sd")}
        verdicts = {name: verdict.to_dict() for name, verdict in self.verdicts.items()}
        return {**asdict(self), **numbers, "verdicts": verdicts, "rule": "best", "target": None}


def allocate(arms: Mapping[str, Runs]) -> Allocation:
    """Decide for each arm whether its runs get the next slice of compute.

    The seeds of an arm count as independent of those of other arms. If seeds are paired (the same data order in every
    arm), the arms differ by less than assumed, so arms are stopped later than necessary, not earlier.

    Args:
        arms: one or several runs (seeds) of each arm by its name, as curves or posterior fits, at any compute.

    Raises:
        CurveError: there are fewer than two arms, an arm has no runs, the runs do not share axis and bounds, or a fit
            is not a posterior.

    Returns:
        A verdict for each arm, the arm to choose if the study ended now, and whether the study is over.
    """
    width = float(np.ptp(checked_arms(arms)[0].bounds))
    fitted = [fitted_arm(name, listed(runs)) for name, runs in arms.items()]
    judgeable = [f for f in fitted if f.fits and not f.collapsed]
    verdicts = {f.arm: unjudged(f) for f in fitted}
    early = [f.arm for f in fitted if not f.fits and not f.collapsed]
    spent = sum(f.spent for f in fitted)
    if not judgeable:
        reason = "Continue: too early to judge any arm." if early else "Over: all arms have collapsed."
        return Allocation(verdicts, None, not early, reason, math.nan, math.nan, "no arm could be judged", spent)
    draws, seed_sd, source = arm_draws(judgeable, width)
    found, chosen = judged(draws, judgeable)
    verdicts |= found
    in_play = [name for name, verdict in verdicts.items() if verdict.go_on]
    worth = worth_of_all(draws)
    over, reason = ending(early, in_play, chosen, worth, TOLERANCE * width)
    if over:
        for name in in_play:
            kept = verdicts[name]
            verdicts[name] = replace(kept, go_on=False, reason=f"the study is over; {kept.reason}")
    return Allocation(verdicts, chosen, over, reason, worth, seed_sd, source, spent)


def arm_draws(judgeable: list[FittedArm], width: float) -> tuple[ArmDraws, float, str]:
    """Return the draws of all arms, the standard deviation between their seeds, and its source."""
    rng = np.random.default_rng(0)
    seed_D, source = seed_scatter([f.fits for f in judgeable], width, rng)
    rows = [draws_of_arm([run.draws.asymptote for run in f.fits], seed_D, rng) for f in judgeable]
    trained_AD, recipe_AD = (np.stack(part) for part in zip(*rows, strict=True))
    return ArmDraws(trained_AD, recipe_AD), float(np.median(seed_D)), source


def ending(early: list[str], in_play: list[str], first: str, worth: float, needed: float) -> tuple[bool, str]:
    """Return whether the study is over, and the reason."""
    if early:
        return False, f"Continue: too early to judge {', '.join(early)}."
    if len(in_play) == 1:
        return True, f"Over: no other arm has a chance to be better than {first}."
    gain = f"more training raises the ceiling of the chosen arm by {worth:.2g} on average"
    if worth < needed:
        return True, f"Over: {gain}, less than {needed:.2g}. Choose {first}; only more seeds would give more certainty."
    return False, f"Continue {', '.join(in_play)}: {gain}."


def judged(draws: ArmDraws, judgeable: list[FittedArm]) -> tuple[dict[str, Verdict], str]:
    """Return the verdicts on arms with a posterior, by name, while the study continues, and the name of the leader."""
    first = leader(draws)
    numbers_4A = (probability_best(draws), relative_probability_best(draws), shortfall(draws), worth_of_each(draws))
    found = {}
    for a, fitted in enumerate(judgeable):
        best, evidence, short_of, worth = (float(values_A[a]) for values_A in numbers_4A)
        enough = evidence >= LEAST
        words = (
            f"probability of being the best, relative to the likeliest arm: {short(evidence)}, "
            f"{'at least' if enough else 'below'} {LEAST:g}"
        )
        if a == first:
            words = "the leader: highest expected ceiling"
        reason, reach = words + fitted.left_out, summarize(draws.recipe_AD[a])
        on = enough or a == first
        found[fitted.arm] = Verdict(fitted.arm, on, reason, best, evidence, short_of, worth, reach, fitted.spent)
    return found, judgeable[first].arm


def unjudged(fitted: FittedArm) -> Verdict:
    """Return the verdict on an arm without a posterior: it continues unless it has collapsed."""
    unknown = math.nan
    return Verdict(
        fitted.arm, not fitted.collapsed, fitted.problem, unknown, unknown, unknown, unknown, None, fitted.spent
    )
