import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, health, sigmoid
from scalerl.reading.curves.health import shape_symptoms


def names(curve):
    return [symptom.name for symptom in health(curve)]


def test_a_healthy_run_has_no_symptom():
    assert names(run()) == []


def test_a_fall_beyond_the_noise_is_a_decline_with_its_size():
    metric = run(noise=0.0).metric.copy()
    metric[-3:] = 0.3
    (symptom,) = health(Curve(run().compute, metric))
    assert symptom.name == "decline"
    assert symptom.numbers["fall"] == pytest.approx(metric.max() - 0.3, abs=0.01)


def test_a_dip_within_the_noise_is_not_a_decline():
    assert names(run(noise=0.02, seed=4)) == []


def test_a_climb_before_the_first_evaluation_is_named():
    curve = run(points=20, midpoint=40.0, noise=0.002)
    (symptom,) = health(curve)
    assert symptom.name == "saturation before the window"
    assert symptom.numbers["share"] > 0.9


def test_few_points_are_named():
    assert names(run(points=7)) == ["too few points"]


def test_a_late_take_off_is_named_with_its_start():
    compute = np.linspace(0, 100, 41)
    rise = np.where(compute > 40, sigmoid(np.maximum(compute - 40, 0), 0.7, 1.5, 20.0, 0.1), 0.1)
    (symptom,) = health(noisy(compute, rise))
    assert symptom.name == "late take-off"
    assert symptom.numbers["start"] == pytest.approx(40, abs=6)


def test_a_second_rise_is_named_with_its_midpoint():
    compute = np.linspace(0, 100, 41)
    levels = sigmoid(compute, 0.35, 2.0, 8.0, 0.1) + sigmoid(compute, 0.25, 5.0, 70.0, 0.0)
    (symptom,) = health(noisy(compute, levels))
    assert symptom.name == "two-phase rise"
    assert symptom.numbers["second_midpoint"] == pytest.approx(70, rel=0.2)


def test_a_climb_that_only_ends_slowly_is_not_called_a_second_rise():
    compute = np.linspace(0, 100, 41)
    levels = sigmoid(compute, 0.35, 2.5, 9.0, 0.1) + sigmoid(compute, 0.2, 2.0, 38.0, 0.0)
    slope = np.diff(levels[1:]) / np.diff(np.log(compute[1:]))
    assert (np.diff(slope)[slope.argmax() :] < 0).all()  # the truth never becomes steeper again
    (symptom,) = health(noisy(compute, levels))
    assert symptom.name == "slow end"
    assert "the climb ends more slowly than the law predicts" in symptom.message


def test_a_creep_is_named_with_its_slope():
    compute = np.linspace(0, 100, 41)
    numbers = {
        s.name: s.numbers for s in health(noisy(compute, sigmoid(compute, 0.4, 2.5, 6.0, 0.1) + 0.0005 * compute))
    }
    # 0.05 in a run of 100
    assert numbers["creep"]["rise_per_run"] == pytest.approx(0.05, rel=0.2)


def noisy(compute, levels, noise=0.003):
    return Curve(compute, levels + noise * np.random.default_rng(0).standard_normal(len(compute)))


def test_a_curve_that_does_not_start_near_zero_gets_a_warning():
    made = run(points=41, last=16_000.0)
    late = Curve(np.arange(102.0, 202.0, 5.0), made.metric[:20], axis="step")
    (symptom,) = [each for each in shape_symptoms(late) if each.name == "missing start"]
    assert "starts at 102 steps" in symptom.message and symptom.numbers["first"] == 102.0
    for first in (0.0, 5.0, 15.0):  # before training, one spacing after it, and three
        fine = Curve(first + 5.0 * np.arange(20), made.metric[:20], axis="step")
        assert all(each.name != "missing start" for each in shape_symptoms(fine))


def test_a_metric_that_falls_from_the_start_is_taken_for_a_loss():
    falls = Curve(np.arange(20.0), np.exp(-np.arange(20.0) / 8))
    (symptom,) = [each for each in shape_symptoms(falls) if each.name == "decline"]
    assert "such as a loss, fit its negative" in symptom.message
    climbs = np.concatenate([np.linspace(0.1, 0.8, 14), np.linspace(0.6, 0.1, 6)])
    assert "loss" not in next(each for each in shape_symptoms(Curve(np.arange(20.0), climbs))).message
