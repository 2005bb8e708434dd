import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, fit
from scalerl.scaling.stop import StopRule, reason_to_stop, stop_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gain at 2x below 0.01 with probability 0.9", ("gain", 2.0, 0.01, 0.9)),
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
        ("gain at 1x below 0.01", "above 1x"),
        ("gain at 2x below 0", "gain"),
        ("gain at 2x below 0.1 with probability 1", "probability"),
    ],
)
def test_an_invalid_condition_is_an_error_with_the_allowed_forms(text, message):
    with pytest.raises(CurveError, match=message):
        stop_rule(text)


def test_each_condition_holds_for_its_run_and_not_for_a_young_one():
    done, young = fit(run(last=60_000.0, noise=0.002)), fit(run(last=1800.0))
    curve = run()
    metric = curve.metric.copy()
    metric[-8:] = np.linspace(0.55, 0.2, 8)
    down = fit(Curve(curve.compute, metric))
    gain, known, fall = (
        stop_rule(text) for text in ("gain at 2x below 0.02 with probability 0.9", "ceiling identified", "falling")
    )
    assert "0.02" in reason_to_stop(gain, [done]) and "0.6" in reason_to_stop(known, [done])
    assert "0.339" in reason_to_stop(fall, [down])
    assert [reason_to_stop(rule, [young]) for rule in (gain, known, fall)] == [None] * 3


def test_one_falling_task_is_enough_and_the_other_conditions_need_every_task():
    done, young = fit(run(last=60_000.0, noise=0.002)), fit(run(last=1800.0))
    assert reason_to_stop(stop_rule("ceiling identified"), [done, young]) is None
    assert reason_to_stop(stop_rule("ceiling identified"), [done, done]) is not None
    assert reason_to_stop(stop_rule("falling"), []) is None


def test_the_gain_must_be_small_by_the_forecast_and_by_the_trend():
    # truth: the 2x of 16,000 gains 0.0093, the last doubling 0.026
    rising = fit(run(noise=0.002))
    asked = stop_rule("gain at 2x below 0.01 with probability 0.8")
    assert float((rising.gain(2 * rising.last_compute) < 0.01).mean()) > 0.8
    assert reason_to_stop(asked, [rising]) is None
    assert reason_to_stop(stop_rule("gain at 2x below 0.04 with probability 0.8"), [rising]) is not None
