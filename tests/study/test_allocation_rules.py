"""The rules that the benchmark of allocation compares; the first is that of `scalerl.study.allocate`."""

import numpy as np
import pytest
from study_arms import arm

from scalerl.scaling import fit
from scalerl.study.allocate import ArmDraws, allocate, worth_of_all


@pytest.fixture
def rules(benchmark):
    return benchmark("allocation_rules")


ARMS = [
    [fit(curve) for curve in arm(asymptote=asymptote, midpoint=midpoint, first_seed=seed, last=0.25, points=13)]
    for asymptote, midpoint, seed in ((0.45, 0.03, 0), (0.60, 0.06, 10), (0.66, 0.40, 20))
]
"""An early low arm, an early good one, and a late arm that is below both now and ends above them."""


def draws(rows):
    draws_AD = np.array(rows, dtype=float)
    return ArmDraws(draws_AD, draws_AD)


def test_the_rule_named_best_decides_like_allocate(rules):
    decision = rules.decide(ARMS, np.full(3, True), "best")
    product = allocate({str(a): fits for a, fits in enumerate(ARMS)})
    assert list(decision.continues_A) == [v.go_on for v in product.verdicts.values()] == [False, True, True]
    assert str(decision.best) == product.best


def test_every_rule_finds_the_best_of_two_known_arms(rules):
    known = [[fit(curve) for curve in arm(asymptote=a, first_seed=seed)] for a, seed in ((0.7, 0), (0.5, 10))]
    for rule in rules.RULES:
        decision = rules.decide(known, np.full(2, True), rule)
        assert decision.best == 0 and not decision.continues_A.any()


def test_an_arm_that_cannot_be_trained_further_has_no_worth(rules):
    # means 0.5 and 0.475: knowing the second would gain 0.05, but it has spent its budget
    two = draws([[0.5, 0.5, 0.5, 0.5], [0.3, 0.4, 0.5 - 1e-9, 0.7]])
    assert worth_of_all(two) == pytest.approx(0.05)
    assert worth_of_all(rules.hold(two, np.array([True, False]))) == pytest.approx(0.0)
