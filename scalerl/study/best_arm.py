"""Which of several arms may be best, from joint draws, and the rules that stop arms. Knows no curves and no words.

Two kinds of draws of an arm's worth (its ceiling, or its level at a target) are kept apart. ``recipe_AD`` holds what
is believed of the recipe, with the scatter of seeds. ``trained_AD`` holds what its own runs will turn out to reach:
training on narrows that one to a point, while the scatter of seeds stays however long these runs are trained.

Axes in names: A arms, D draws, S runs (seeds) of an arm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.scaling.compare import run_weights, shuffled, side_mean
from scalerl.scaling.law import Array


class Contest(NamedTuple):
    """The arms that can be judged, side by side; draws of one column belong together."""

    trained_AD: Array
    """Mean over an arm's runs of what each will reach, in the metric's unit."""

    recipe_AD: Array
    """What a further run of the recipe is expected to reach: the same with the scatter of seeds."""

    open_A: NDArray[np.bool_]
    """Whether the arm can be trained on; what is known of the others stays as it is."""


def entry(reach_SD: list[Array], seed_D: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """An arm's rows of ``trained_AD`` and ``recipe_AD``, each of shape (D,)."""
    mixed_SD = [shuffled(reach_D, rng) for reach_D in reach_SD]
    trained_D = (run_weights(mixed_SD, seed_D) * np.stack(mixed_SD)).sum(axis=0)
    return trained_D, side_mean(mixed_SD, seed_D, rng)


def leader(contest: Contest) -> int:
    """The arm to choose if the study ended now: the highest mean loses least on average."""
    return int(contest.trained_AD.mean(axis=1).argmax())


def probability_best(contest: Contest) -> Array:
    """That each arm is the best of all, shape (A,), summing to one."""
    count_A = np.bincount(contest.recipe_AD.argmax(axis=0), minlength=len(contest.recipe_AD))
    return np.asarray(count_A / contest.recipe_AD.shape[1])


def chance_of_best(contest: Contest) -> Array:
    """Probability of being the best over that of the likeliest arm, shape (A,), in [0, 1].

    The probability itself shrinks as arms are added that are all alike, and twenty of them would all be stopped.
    """
    probability_A = probability_best(contest)
    return np.asarray(probability_A / probability_A.max())


def probability_above(contest: Contest) -> Array:
    """That each arm is better than the leader, shape (A,); 1 for the leader itself.

    It keeps an arm that a third one surely beats, as long as the leader itself is little known.
    """
    first = leader(contest)
    above_A = (contest.recipe_AD > contest.recipe_AD[first]).mean(axis=1)
    above_A[first] = 1.0
    return np.asarray(above_A)


def shortfall(contest: Contest) -> Array:
    """How far each arm is expected to lie below the best, shape (A,); scatter of seeds included."""
    return np.asarray((contest.recipe_AD.max(axis=0) - contest.recipe_AD).mean(axis=1))


def learnable(contest: Contest) -> Array:
    """``trained_AD`` with the arms that cannot be trained on held at their means."""
    mean_A1 = contest.trained_AD.mean(axis=1, keepdims=True)
    return np.where(contest.open_A[:, None], contest.trained_AD, mean_A1)


def worth_of_all(contest: Contest) -> float:
    """Gain in the arm that is chosen if every open run were trained until its reach is known, in the metric's unit.

    The expected value of perfect information (Raiffa and Schlaifer, Applied Statistical Decision Theory, 1961) about
    the runs; it bounds what any further training of them can bring.
    """
    learnt_AD = learnable(contest)
    return float(learnt_AD.max(axis=0).mean() - learnt_AD.mean(axis=1).max())


def worth_of_each(contest: Contest) -> Array:
    """The same for learning of one arm alone, shape (A,)."""
    learnt_AD = learnable(contest)
    mean_A = learnt_AD.mean(axis=1)
    others_A = np.array([np.delete(mean_A, i).max(initial=-np.inf) for i in range(len(mean_A))])
    return np.asarray(np.maximum(learnt_AD, others_A[:, None]).mean(axis=1) - mean_A.max())


class Rule(NamedTuple):
    """An arm goes on while its evidence is at least so much."""

    evidence: Callable[[Contest], Array]
    """Contest to one number an arm, shape (A,)."""

    least: float
    """Default limit, chosen by simulation; a probability, or a share of the metric's range for "worth"."""

    words: str
    """The evidence as it is named in a reason."""

    in_metric: bool = False
    """Whether the evidence is in the metric's unit, so that the limit goes with its range."""


RULES: dict[str, Rule] = {
    "best": Rule(chance_of_best, 0.05, "chance of being the best over that of the likeliest arm"),
    "above leader": Rule(probability_above, 0.10, "probability of being better than the leader"),
    "worth": Rule(worth_of_each, 0.001, "gain expected from training it on", in_metric=True),
}
"""What keeps an arm in the study. The limits were set on 120 simulated studies of other random numbers than those of
``benchmarks/allocation.py``, which measures what each rule saves and loses.
"""
