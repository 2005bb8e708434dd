"""Finds the arms that may be the best, from joint draws of their ceilings.

``recipe_AD`` is the posterior of the recipe's ceiling and includes the scatter between seeds. ``trained_AD`` is the
posterior of the mean ceiling of the arm's runs. More training of these runs narrows ``trained_AD`` to a point; the
scatter between seeds in ``recipe_AD`` stays.

Axes in names: A arms, D draws, S runs (seeds) of an arm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.compare import run_weights, shuffled, side_mean
from scalerl.scaling.law import Array


class ArmDraws(NamedTuple):
    """Joint draws of the ceilings of all arms that can be judged; the values in one column belong together."""

    trained_AD: Array
    """Mean ceiling of an arm's runs, in the metric's unit."""

    recipe_AD: Array
    """Ceiling of the recipe, which also includes the scatter between seeds."""


def draws_of_arm(ceiling_SD: list[Array], seed_D: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return an arm's rows of ``trained_AD`` and ``recipe_AD``, each of shape (D,).

    Args:
        ceiling_SD: draws of the ceiling of each run.
        seed_D: draws of the standard deviation between seeds.
        rng: random generator that shuffles the draws of each run, so that runs are independent.
    """
    mixed_SD = [shuffled(ceiling_D, rng) for ceiling_D in ceiling_SD]
    trained_D = (run_weights(mixed_SD, seed_D) * np.stack(mixed_SD)).sum(axis=0)
    return trained_D, side_mean(mixed_SD, seed_D, rng)


def leader(draws: ArmDraws) -> int:
    """Return the arm with the highest mean; choosing it now minimizes the expected regret."""
    return int(draws.trained_AD.mean(axis=1).argmax())


def probability_best(draws: ArmDraws) -> Array:
    """Return the probability that each arm has the highest ceiling, shape (A,), summing to one."""
    count_A = np.bincount(draws.recipe_AD.argmax(axis=0), minlength=len(draws.recipe_AD))
    return np.asarray(count_A / draws.recipe_AD.shape[1])


def relative_probability_best(draws: ArmDraws) -> Array:
    """Return the probability of being the best divided by that of the likeliest arm, shape (A,), in [0, 1].

    The probability itself shrinks as similar arms are added. With a limit on it, all of twenty similar arms would stop.
    """
    probability_A = probability_best(draws)
    return np.asarray(probability_A / probability_A.max())


def shortfall(draws: ArmDraws) -> Array:
    """Return the expected distance of each arm below the best, shape (A,), including the scatter between seeds."""
    return np.asarray((draws.recipe_AD.max(axis=0) - draws.recipe_AD).mean(axis=1))


def worth_of_all(draws: ArmDraws) -> float:
    """Return the expected gain in the chosen arm's ceiling if all runs were trained until their ceilings are known.

    This is the expected value of perfect information about the runs (Raiffa and Schlaifer, Applied Statistical Decision
    Theory, 1961). It is an upper bound on the gain from more training of these runs, in the metric's unit.
    """
    return float(draws.trained_AD.max(axis=0).mean() - draws.trained_AD.mean(axis=1).max())


def worth_of_each(draws: ArmDraws) -> Array:
    """Return for each arm the gain of ``worth_of_all`` if only its ceiling were known, shape (A,)."""
    mean_A = draws.trained_AD.mean(axis=1)
    others_A = np.array([np.delete(mean_A, i).max(initial=-np.inf) for i in range(len(mean_A))])
    return np.asarray(np.maximum(draws.trained_AD, others_A[:, None]).mean(axis=1) - mean_A.max())
