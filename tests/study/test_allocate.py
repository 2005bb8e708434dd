import json

import numpy as np
import pytest
from study_arms import arm, collapsed, run, stretched

from scalerl.reading.curves import Curve, CurveError, fit
from scalerl.reading.curves.health import decline
from scalerl.training.study.allocate import LEAST_PROBABILITY, allocate, own_levels, usable_fits


def misleading(fraction=0.25, seeds=3):
    """Return an early low arm, an early good one, and a late arm that is below both now and ends above them."""
    part = {"last": fraction, "points": 13, "seeds": seeds}
    return {
        "low": arm(asymptote=0.45, midpoint=0.03, first_seed=0, **part),
        "good": arm(asymptote=0.60, midpoint=0.06, first_seed=10, **part),
        "slow": arm(asymptote=0.66, midpoint=0.40, first_seed=20, **part),
    }


def test_a_slow_starter_that_is_behind_now_continues_and_a_saturated_lower_arm_stops():
    arms = misleading()
    now = {name: np.mean([curve.metric[-3:] for curve in curves]) for name, curves in arms.items()}
    assert now["slow"] < now["low"] < now["good"]
    allocation = allocate(arms)
    assert {name: v.go_on for name, v in allocation.verdicts.items()} == {"low": False, "good": True, "slow": True}
    assert allocation.reason.startswith("Continue slow, good: more training raises the level of the chosen arm by 0.0")
    assert str(allocation.verdicts["low"]).startswith("low: stop (0.44") and "best with probability 0.00" in str(
        allocation
    )


def test_one_seed_stops_less_than_five():
    """A gap of 0.02 with seeds of sd 0.012: one seed per side leaves a fair chance, five about 1 in 250."""
    one = allocate({"high": arm(1, asymptote=0.62), "low": arm(1, 10, asymptote=0.60)})
    five = allocate({"high": arm(5, asymptote=0.62), "low": arm(5, 10, asymptote=0.60)})
    assert one.verdicts["low"].probability_best > 0.05 > five.verdicts["low"].probability_best


def test_identical_arms_end_the_study():
    allocation = allocate({"a": arm(first_seed=0, last=2.0), "b": arm(first_seed=10, last=2.0)})
    assert allocation.worth < 0.005 and "less than 0.005" in allocation.reason
    assert not any(v.go_on for v in allocation.verdicts.values())


def test_a_collapsed_arm_stops_and_the_reason_is_the_collapse():
    allocation = allocate({"fallen": [collapsed(seed=1)], "a": arm(1), "b": arm(1, 10)})
    verdict = allocation.verdicts["fallen"]
    assert str(verdict) == "fallen: stop (1 of its 1 runs have collapsed)" and verdict.level is None
    assert allocation.verdicts["a"].probability_best + allocation.verdicts["b"].probability_best == pytest.approx(1)


def test_when_all_have_collapsed_nothing_is_chosen():
    allocation = allocate({"a": [collapsed(seed=1)], "b": [collapsed(seed=2)]})
    assert (allocation.best, allocation.reason) == (None, "Over: all arms have collapsed.")
    assert not any(v.go_on for v in allocation.verdicts.values())


def test_correlated_noise_is_not_a_collapse():
    """AR(1) noise of sd 0.03 around a plateau: one run in eight ends far enough below its best to count as falling."""
    declines, collapses = 0, 0
    level, deviates = run(midpoint=0.05).metric, np.random.default_rng(0).standard_normal((40, 41))
    for deviate in deviates:
        noise = np.zeros(41)
        for i in range(1, 41):
            noise[i] = 0.7 * noise[i - 1] + 0.03 * np.sqrt(1 - 0.7**2) * deviate[i]
        curve = Curve(np.linspace(0, 1, 41), np.clip(level + noise, 0, 1))
        declines += decline(curve) is not None
        collapses += usable_fits([curve])[2]
    assert declines >= 3 and collapses <= 1


@pytest.mark.parametrize("short", [run(last=0.1, points=3), Curve([0, 0.1, 0.2, 0.3, 0.4], [0.0] * 5)])
def test_an_arm_that_cannot_be_fitted_yet_continues(short):
    allocation = allocate({"new": [short], "high": arm(asymptote=0.7), "low": arm(first_seed=10, asymptote=0.5)})
    assert allocation.verdicts["new"].go_on and allocation.verdicts["new"].problem.startswith("too early to judge: ")
    # the others are judged, and the study is not over
    assert not allocation.verdicts["low"].go_on and allocation.verdicts["high"].go_on


def test_if_no_arm_can_be_fitted_all_continue():
    allocation = allocate({"a": [run(points=3)], "b": [run(points=4)]})
    assert allocation.best is None and all(v.go_on for v in allocation.verdicts.values())
    assert json.loads(json.dumps(allocation.to_dict()))["worth"] is None


def test_the_unit_of_compute_does_not_matter():
    arms = misleading()
    here, there = allocate(arms), allocate({name: stretched(runs, 1e18) for name, runs in arms.items()})
    for name in arms:
        assert here.verdicts[name].go_on == there.verdicts[name].go_on
        assert here.verdicts[name].probability_best == pytest.approx(there.verdicts[name].probability_best, abs=0.01)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a": run()}, "two arms"),
        ({"a": run(), "b": []}, "'b'"),
        ({"a": run(), "b": run(bounds=(0, 2))}, "bounds"),
    ],
)
def test_arms_that_cannot_be_compared_are_an_error(arms, message):
    with pytest.raises(CurveError, match=message):
        allocate(arms)


def test_probabilities_and_worth_count_the_draws():
    """Means 0.5 and 0.475; knowing the second arm gives 0.7 instead of 0.5 in one draw of four."""
    draws_AD = np.array([[0.5, 0.5, 0.5, 0.5], [0.3, 0.4, 0.5 - 1e-9, 0.7]])
    allocation = allocate({"a": run(), "b": run(seed=1)}, lambda fits: (draws_AD, draws_AD))
    assert [v.probability_best for v in allocation.verdicts.values()] == [0.75, 0.25]
    assert allocation.worth == pytest.approx(0.05) and allocation.best == "a"


def test_the_scatter_of_seeds_is_in_the_level_of_a_recipe_and_not_in_that_of_its_runs():
    """One seed per arm and known ceilings: the scatter is the assumed one, 0.02 / 1.645 = 0.0122."""
    fits = {name: [fit(run(seed=i))] for i, name in enumerate("ab")}
    known = np.full(len(fits["a"][0].draws.asymptote), 0.6)
    recipe_AD, trained_AD = own_levels({name: [known] for name in fits}, fits)
    assert trained_AD.std() == pytest.approx(0, abs=1e-12)
    assert recipe_AD.std() == pytest.approx(0.0122, rel=0.05)


def test_many_equal_arms_all_continue():
    """Thirty arms: each is the best with probability 1/30, below the limit of 0.05."""
    alike_AD = np.random.default_rng(0).standard_normal((30, 4000))
    allocation = allocate({str(a): fit(run()) for a in range(30)}, lambda fits: (alike_AD, alike_AD))
    assert max(v.probability_best for v in allocation.verdicts.values()) < LEAST_PROBABILITY
    assert all(v.go_on for v in allocation.verdicts.values())


def test_without_a_tolerance_the_study_is_not_over_before_its_last_slice():
    arms = {"a": arm(first_seed=0, last=2.0), "b": arm(first_seed=10, asymptote=0.3, last=2.0)}
    assert not allocate(arms).verdicts["a"].go_on
    verdicts = allocate(arms, tolerance=0.0).verdicts
    assert verdicts["a"].go_on and not verdicts["b"].go_on
