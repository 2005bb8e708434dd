import numpy as np
import pytest

from scalerl.study.best_arm import (
    RULES,
    Contest,
    chance_of_best,
    entry,
    leader,
    probability_above,
    probability_best,
    shortfall,
    worth_of_all,
    worth_of_each,
)


def contest(rows, still_open=None):
    """Arms whose few draws are written out, so that the answers can be worked out by hand."""
    draws_AD = np.array(rows, dtype=float)
    return Contest(draws_AD, draws_AD, np.full(len(rows), True) if still_open is None else np.array(still_open))


TWO = [[0.5, 0.5, 0.5, 0.5], [0.3, 0.4, 0.5 - 1e-9, 0.7]]  # means 0.5 and 0.475


def test_probabilities_count_the_draws():
    assert probability_best(contest(TWO)) == pytest.approx([0.75, 0.25])
    assert chance_of_best(contest(TWO)) == pytest.approx([1, 1 / 3])
    assert probability_above(contest(TWO)) == pytest.approx([1, 0.25])
    assert leader(contest(TWO)) == 0


def test_shortfall_is_the_mean_distance_to_the_best():
    # the best of each draw: 0.5, 0.5, 0.5, 0.7
    assert shortfall(contest(TWO)) == pytest.approx([0.05, 0.075])


def test_training_is_worth_what_knowing_would_gain():
    # knowing the second arm: 0.7 instead of 0.5 in one draw of four
    assert worth_of_all(contest(TWO)) == pytest.approx(0.05)
    # knowing the first, which is known, changes nothing
    assert worth_of_each(contest(TWO)) == pytest.approx([0, 0.05])


def test_training_is_worth_nothing_where_nothing_can_be_trained():
    assert worth_of_all(contest(TWO, [True, False])) == pytest.approx(0.0)


def test_of_two_equal_arms_training_is_worth_sd_over_root_pi():
    """The expected maximum of two independent normals lies sd / sqrt(pi) above their mean."""
    draws_AD = 0.6 + 0.01 * np.random.default_rng(0).standard_normal((2, 200_000))
    assert worth_of_all(contest(draws_AD)) == pytest.approx(0.01 / np.sqrt(np.pi), abs=1e-4)


def test_the_scatter_of_seeds_is_in_what_is_believed_and_not_in_what_training_can_teach():
    rng = np.random.default_rng(0)
    known_SD = [np.full(20_000, 0.6), np.full(20_000, 0.62), np.full(20_000, 0.58)]
    trained_D, recipe_D = entry(known_SD, np.full(20_000, 0.012), rng)
    assert trained_D.std() == pytest.approx(0, abs=1e-12)
    # three seeds of sd 0.012
    assert recipe_D.std() == pytest.approx(0.012 / np.sqrt(3), rel=0.03)


def test_many_arms_that_are_all_alike_all_stay_in_play():
    """Thirty arms: each is the best with probability 1/30, below the limit of 0.05."""
    draws_AD = np.random.default_rng(0).standard_normal((30, 4000))
    assert probability_best(contest(draws_AD)).max() < RULES["best"].least
    assert (RULES["best"].evidence(contest(draws_AD)) > RULES["best"].least).all()


def test_an_arm_surely_beaten_by_a_third_one_is_not_kept_by_a_leader_that_is_little_known():
    rng = np.random.default_rng(0)
    draws_AD = np.array([[0.62], [0.60], [0.50]]) + np.array([[0.10], [0.005], [0.005]]) * rng.standard_normal(
        (3, 4000)
    )
    assert RULES["best"].evidence(contest(draws_AD))[2] == 0
    assert RULES["above leader"].evidence(contest(draws_AD))[2] > 0.1
