import numpy as np
import pytest

from scalerl.reading.curves import Curve
from scalerl.reading.curves.baselines import last_value, linear_in_log_compute, power_law


def test_last_value_repeats_the_last_point():
    assert last_value(Curve([0, 1, 2], [0.1, 0.2, 0.35]))(np.array([4.0, 8.0])).tolist() == [0.35, 0.35]


def test_a_line_in_log_compute_gains_the_same_at_every_doubling():
    curve = Curve([0, 1, 2, 4, 8], [0.0, 0.1, 0.2, 0.3, 0.4])
    assert linear_in_log_compute(curve)(np.array([16.0, 32.0])) == pytest.approx([0.5, 0.6])


def test_the_line_stops_at_the_metrics_bound():
    curve = Curve([0, 1, 2, 4, 8], [0.0, 0.1, 0.2, 0.3, 0.4])
    assert linear_in_log_compute(curve)(np.array([1e6])) == pytest.approx([1.0])


def test_a_power_law_is_recovered():
    compute = np.arange(1.0, 30.0)
    curve = Curve(compute, 0.8 - 0.5 * compute**-0.5)
    assert power_law(curve)(np.array([100.0])) == pytest.approx([0.75], abs=2e-3)


def test_a_power_law_is_limited_by_the_bound_of_the_metric():
    compute = np.arange(1.0, 30.0)
    curve = Curve(compute, np.clip(1.4 - 1.3 * compute**-0.2, 0, 1))
    assert power_law(curve)(np.array([1e30])) <= 1.0


def test_a_falling_curve_gives_the_power_law_no_negative_slope():
    compute = np.arange(1.0, 10.0)
    curve = Curve(compute, 0.5 - 0.02 * compute)
    assert power_law(curve)(np.array([1.0, 100.0])) == pytest.approx([0.4, 0.4])
