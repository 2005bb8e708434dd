import numpy as np
import pytest
from scipy.stats import linregress

from scalerl.reading.curves import Curve
from scalerl.reading.curves.baselines import trend


def test_the_slope_and_its_error_are_those_of_scipy_over_the_last_doubling():
    rng = np.random.default_rng(0)
    compute = np.arange(21.0)
    metric = 0.3 + 0.02 * np.log2(1 + compute) + 0.01 * rng.standard_normal(21)
    theirs = linregress(np.log2(compute[11:]), metric[11:])  # above 10 of 20
    slope = trend(Curve(compute, metric))
    assert (slope.rise, slope.error) == pytest.approx((theirs.slope, theirs.stderr))


def test_earlier_points_except_the_one_at_zero_complete_a_short_last_doubling():
    compute = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0])
    slope = trend(Curve(compute, [0.9, 0.1, 0.2, 0.3, 0.4, 0.5]))
    assert slope.rise == pytest.approx(0.1)  # one tenth for each doubling, and 0.9 is left out
    assert slope.error < 1e-4
