import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, CurveError, fit
from scalerl.reading.curves.stop import StopRule, earlier, judge, stop_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gain at 2x below 0.01 with probability 0.8", ("gain", 2.0, 0.01, 0.8)),
        ("Gain at 1.5 x below .02", ("gain", 1.5, 0.02, 0.9)),
        ("ceiling identified", ("ceiling identified", 0.0, 0.0, 0.0)),
        ("falling", ("falling", 0.0, 0.0, 0.0)),
    ],
)
def test_conditions_are_read(text, rule):
    assert stop_rule(text) == StopRule(text, *rule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rising", "got 'rising'"),
        ("advice is stop", "allowed: 'gain at 2x below 0.02'"),
        ("gain at 1x below 0.01", "above 1x"),
        ("gain at 2x below 0", "gain"),
        ("gain at 2x below 0.1 with probability 1", "probability"),
    ],
)
def test_an_invalid_condition_is_an_error_with_the_allowed_forms(text, message):
    with pytest.raises(CurveError, match=message):
        stop_rule(text)


GAIN, KNOWN, FALLING = (stop_rule(text) for text in ("gain at 2x below 0.02", "ceiling identified", "falling"))


def test_each_condition_holds_for_its_run_and_not_for_a_young_one():
    done, young = fit(run(last=60_000.0, noise=0.002)), fit(run(last=1800.0))
    curve = run()
    metric = curve.metric.copy()
    metric[-8:] = np.linspace(0.55, 0.2, 8)
    down = fit(Curve(curve.compute, metric))
    assert judge(GAIN, [done]).holds and judge(KNOWN, [done]).holds and judge(FALLING, [down]).holds
    assert "fell by 0.339" in judge(FALLING, [down]).text
    assert not any(judge(rule, [young]).holds for rule in (GAIN, KNOWN, FALLING))


def test_a_condition_that_does_not_hold_says_how_far_it_is():
    young = fit(run(last=1800.0))
    share = young.probability_of_gain(3600.0, 0.02)
    assert judge(GAIN, [young]).text == (
        f"'gain at 2x below 0.02' does not hold: share of draws above 0.02 is {share:.2f}, needed 0.10"
    )
    assert "it counts as identified below 0.02" in judge(KNOWN, [young]).text
    assert "below its best" in judge(FALLING, [young]).text
    assert judge(GAIN, []).text.endswith("fewer than 5 evaluations")


def test_one_falling_task_is_enough_and_the_other_conditions_need_every_task():
    done, young = fit(run(last=60_000.0, noise=0.002)), fit(run(last=1800.0))
    assert not judge(KNOWN, [done, young]).holds
    assert judge(KNOWN, [done, done]).holds
    assert not judge(FALLING, []).holds


def test_a_stop_needs_two_successive_evaluations():
    curve = run(last=60_000.0, noise=0.002)
    metric = curve.metric.copy()
    metric[-4:-1] += [0.02, 0.035, 0.05]  # the level seems to rise until the last point
    fitted, rule = fit(Curve(curve.compute, metric)), stop_rule("gain at 2x below 0.03 with probability 0.6")
    now, before = (f.probability_of_gain(2 * f.last_compute, 0.03) for f in (fitted, earlier(fitted)))
    assert now < 0.4 < before
    assert not judge(rule, [fitted]).holds


def test_a_run_of_five_points_is_not_stopped_for_lack_of_gain():
    five = fit(Curve(np.arange(5.0), [0.1, 0.5, 0.5, 0.5, 0.5]))
    assert not judge(stop_rule("gain at 2x below 0.5"), [five]).holds
