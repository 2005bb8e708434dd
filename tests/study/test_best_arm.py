import numpy as np
import pytest

from scalerl.study.allocate import (
    LEAST,
    ArmDraws,
    draws_of_arm,
    leader,
    probability_best,
    relative_probability_best,
    worth_of_all,
    worth_of_each,
)


def draws(rows):
    """Return arms with a few explicit draws, so that the results can be computed by hand."""
    draws_AD = np.array(rows, dtype=float)
    return ArmDraws(draws_AD, draws_AD)


TWO = [[0.5, 0.5, 0.5, 0.5], [0.3, 0.4, 0.5 - 1e-9, 0.7]]  # means 0.5 and 0.475


def test_probabilities_count_the_draws():
    assert probability_best(draws(TWO)) == pytest.approx([0.75, 0.25])
    assert relative_probability_best(draws(TWO)) == pytest.approx([1, 1 / 3])
    assert leader(draws(TWO)) == 0


def test_worth_is_the_expected_gain_from_known_ceilings():
    # knowing the second arm: 0.7 instead of 0.5 in one draw of four
    assert worth_of_all(draws(TWO)) == pytest.approx(0.05)
    # the first is known already, so knowing it gains nothing
    assert worth_of_each(draws(TWO)) == pytest.approx([0, 0.05])


def test_of_two_equal_arms_training_is_worth_sd_over_root_pi():
    """The expected maximum of two independent normals lies sd / sqrt(pi) above their mean."""
    draws_AD = 0.6 + 0.01 * np.random.default_rng(0).standard_normal((2, 200_000))
    assert worth_of_all(draws(draws_AD)) == pytest.approx(0.01 / np.sqrt(np.pi), abs=1e-4)


def test_the_scatter_of_seeds_is_in_the_recipe_draws_and_not_in_the_trained_draws():
    rng = np.random.default_rng(0)
    known_SD = [np.full(20_000, 0.6), np.full(20_000, 0.62), np.full(20_000, 0.58)]
    trained_D, recipe_D = draws_of_arm(known_SD, np.full(20_000, 0.012), rng)
    assert trained_D.std() == pytest.approx(0, abs=1e-12)
    # three seeds of sd 0.012
    assert recipe_D.std() == pytest.approx(0.012 / np.sqrt(3), rel=0.03)


def test_many_equal_arms_all_continue():
    """Thirty arms: each is the best with probability 1/30, below the limit of 0.05."""
    alike = draws(np.random.default_rng(0).standard_normal((30, 4000)))
    assert probability_best(alike).max() < LEAST
    assert (relative_probability_best(alike) > LEAST).all()
