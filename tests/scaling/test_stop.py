import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, advise, fit
from scalerl.scaling.stop import StopRule, advice_by, advises_stop, earlier, reason_to_stop, stop_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gain at 2x below 0.01 with probability 0.9", ("gain", 2.0, 0.01, 0.9)),
        ("Gain at 1.5 x below .02", ("gain", 1.5, 0.02, 0.9)),
        ("Advice is  stop", ("gain", 2.0, 0.0, 0.8)),
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


def test_a_stop_needs_the_probability_of_the_rule_including_the_trend():
    # truth: the 2x of 16,000 gains 0.0093, the last doubling 0.026
    rising = fit(run(noise=0.002))
    assert float((rising.gain(2 * rising.last_compute) < 0.01).mean()) > 0.7
    assert reason_to_stop(stop_rule("gain at 2x below 0.01 with probability 0.7"), [rising]) is None
    assert reason_to_stop(stop_rule("gain at 2x below 0.04 with probability 0.8"), [rising]) is not None


def test_the_reason_is_the_first_line_of_the_advice():
    done = fit(run(last=60_000.0, noise=0.002))
    assert reason_to_stop(stop_rule("advice is stop"), [done]) == f"'advice is stop' holds: {advise(done).headline}"


def test_the_gain_of_the_run_counts_for_a_rule_without_one():
    rising = fit(run(noise=0.002))
    assert [reason_to_stop(stop_rule("advice is stop"), [rising], gain) is None for gain in (0.001, 0.04)] == [
        True, False
    ]  # fmt: skip


def test_a_stop_needs_two_successive_evaluations():
    curve = run(last=60_000.0, noise=0.002)
    metric = curve.metric.copy()
    metric[-4:-1] += [0.02, 0.035, 0.05]  # the level seems to rise until the last point
    fitted, rule = fit(Curve(curve.compute, metric)), stop_rule("gain at 2x below 0.03 with probability 0.6")
    assert advises_stop(rule, advice_by(rule, fitted, None))
    assert not advises_stop(rule, advice_by(rule, earlier(fitted), None))
    assert reason_to_stop(rule, [fitted]) is None


def test_a_run_of_five_points_is_not_stopped_for_lack_of_gain():
    assert reason_to_stop(stop_rule("advice is stop"), [fit(Curve(np.arange(5.0), [0.1, 0.5, 0.5, 0.5, 0.5]))]) is None
