"""The comparison of learning with another trainer, benchmarks/trainers.py."""

import math

import pytest


@pytest.fixture
def learning(benchmark):
    return benchmark("learning")


@pytest.fixture
def trainers(benchmark):
    return benchmark("trainers")


def curve(*rates, cost=1.0):
    return [
        {"step": 8 * i, "pass_rate": rate, "cpu_s": 8 * i * cost, "seconds": 4 * i * cost}
        for i, rate in enumerate(rates)
    ]


def test_the_reward_is_the_answer_after_the_thinking(learning):
    assert learning.reward("7+4=1;</think>1", "1") == 1.0
    assert learning.reward("7+4=1;</think>1\n", "1") == 1.0
    for wrong in ("7+4=1;1", "7+4=1;</think>2", "</think>11", "</think>", ""):
        assert learning.reward(wrong, "1") == 0.0


def test_a_level_is_reached_where_the_mean_of_two_evaluations_is(learning):
    rows = curve(0.2, 0.4, 0.6, 0.8, 0.6, 0.6, 0.9)
    # means 0.3, 0.5, 0.7, 0.7, 0.6, 0.75 at steps 4, 12, 20, 28, 36, 44
    assert learning.reached(rows, 0.6) == pytest.approx(16)
    assert learning.reached(rows, 0.72) == pytest.approx(36 + 8 * 0.12 / 0.15)
    assert learning.reached(rows, 0.6, "cpu_s") == pytest.approx(16)
    assert learning.reached(rows, 0.6, "seconds") == pytest.approx(8)
    assert learning.reached(rows, 0.76) is None and learning.reached(rows[:1], 0.1) is None
    assert learning.reached(rows, 0.25) == 4  # from the first pair on
    # one lucky evaluation is not enough
    assert learning.reached(curve(0.5, 0.7, 0.5, 0.5), 0.65) is None


def test_each_arm_has_its_best_rate_over_all_seeds(trainers):
    slow, fast, lucky = curve(0.2, 0.4, 0.6, 0.8, 0.8), curve(0.2, 0.6, 0.8, 0.8, cost=3.0), curve(0.8, 0.8)
    runs = [
        {"arm": "scalerl", "rate": 1e-4, "seed": 0, "rows": slow},
        {"arm": "scalerl", "rate": 2e-4, "seed": 0, "rows": fast},
        {"arm": "trl", "rate": 1e-4, "seed": 0, "rows": slow},
        {"arm": "trl", "rate": 1e-4, "seed": 1, "rows": slow},
        {"arm": "trl", "rate": 2e-4, "seed": 0, "rows": lucky},
        {"arm": "trl", "rate": 2e-4, "seed": 1, "rows": curve(0.2, 0.3)},
    ]
    lines = trainers.summary(runs)
    # fast: means 0.4, 0.7, 0.8 at 4, 12, 20, so 0.75 at 16: 4,096 rollouts, 48 CPU-s, 24 s
    assert "| scalerl | 0.0002 | 1 | 0.75 | 4,096 | 48 | 24 |" in lines
    assert [line.split("|")[2:4] for line in lines if line.startswith("| trl ")] == [[" 0.0001 ", " 2 "]] * 2
    # slow: 0.7 and 0.8 at 20 and 28, so 0.75 at 24
    assert "| trl | 0.0001 | 2 | 0.75 | 6,144 | 24 | 12 |" in lines
    never = [{"arm": "trl", "rate": 1e-4, "seed": 0, "rows": curve(0.2, 0.3)}]
    assert trainers.summary(never)[-1] == "| trl | 0.0001 | 1 | 0.75 | inf | inf | inf |"
    assert math.isinf(trainers._means([curve(0.2, 0.3)], 0.75)[0])


def test_a_run_that_misses_a_level_says_so(trainers):
    assert trainers._levels(curve(0.2, 0.6, 0.7)) == [
        "0.6 after 2,662 rollouts, 10 CPU-s, 5 s",  # means 0.4 and 0.65 at 4 and 12, so 10.4 updates
        "0.75 not reached in 16 updates",
    ]
