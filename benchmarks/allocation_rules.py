"""The rules for stopping arms that `allocation.py` compares: the rule of `scalerl.study.allocate`, and two others.

`scalerl.study.allocate` has no budget, because its slices end with the run. Here, an arm that has spent its budget
cannot be trained further, so its posterior does not change.

Axes in names: A arms, D draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scalerl.scaling import Fit
from scalerl.study.allocate import (
    LEAST,
    TOLERANCE,
    ArmDraws,
    arm_draws,
    fitted_arm,
    leader,
    relative_probability_best,
    worth_of_all,
    worth_of_each,
)

Array = np.ndarray


class Rule(NamedTuple):
    """A rule by which an arm continues while its evidence is at least a limit."""

    evidence: Callable[[ArmDraws, Array], Array]
    """Evidence per arm, shape (A,), from the draws, and from the draws with finished arms fixed at their means."""

    least: float
    """Limit, chosen on 120 studies with different random numbers from those of `allocation.py`."""


def probability_above(draws: ArmDraws) -> Array:
    """Return the probability that each arm is better than the leader, shape (A,); 1 for the leader.

    While the ceiling of the leader is uncertain, it keeps an arm that is surely worse than a third arm.
    """
    first = leader(draws)
    above_A = (draws.recipe_AD > draws.recipe_AD[first]).mean(axis=1)
    above_A[first] = 1.0
    return above_A


RULES = {
    "best": Rule(lambda draws, held: relative_probability_best(draws), LEAST),
    "above leader": Rule(lambda draws, held: probability_above(draws), 0.10),
    "worth": Rule(lambda draws, held: worth_of_each(held), 0.001),
}
"""Rules by their names in docs/studies.md; the evidence of "worth" is in the metric's unit."""


class Decision(NamedTuple):
    """The decision of a rule after a slice."""

    best: int
    """The arm to choose if the study ended now."""
    continues_A: Array
    """Whether each arm gets the next slice; none does when the study is over."""


def decide(fits: Sequence[Sequence[Fit]], open_A: Array, rule: str) -> Decision:
    """Return the arms that continue by a rule.

    Args:
        fits: Fits of all runs of each arm.
        open_A: Whether each arm has budget left.
        rule: Key of `RULES`.
    """
    fitted = [fitted_arm(str(a), list(runs)) for a, runs in enumerate(fits)]
    judgeable = [f for f in fitted if not f.collapsed]
    number_J = np.array([int(f.arm) for f in judgeable])
    draws, _, _ = arm_draws(judgeable, 1.0)
    held = hold(draws, open_A[number_J])
    first = leader(draws)
    in_play_J = RULES[rule].evidence(draws, held) >= RULES[rule].least
    in_play_J[first] = True
    continues_A = np.zeros(len(fits), dtype=bool)
    continues_A[number_J] = in_play_J & open_A[number_J]
    if in_play_J.sum() == 1 or worth_of_all(held) < TOLERANCE:
        continues_A[:] = False
    return Decision(int(number_J[first]), continues_A)


def hold(draws: ArmDraws, open_A: Array) -> ArmDraws:
    """Return the draws, with the arms that cannot be trained further fixed at their means."""
    mean_A1 = draws.trained_AD.mean(axis=1, keepdims=True)
    return draws._replace(trained_AD=np.where(open_A[:, None], draws.trained_AD, mean_A1))
