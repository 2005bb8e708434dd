import numpy as np
import pytest
from scipy.stats import linregress

from scalerl.scaling import Curve
from scalerl.scaling.trend import Trend, trend


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


@pytest.mark.parametrize(
    ("slope", "probability"),
    [
        # precision 2500 (prior, sd 0.02) + 111111 (data); mean (25 + 444.4) / 113611 = 0.00413, sd 0.00297; z = -1.98
        (Trend(0.004, 0.003, 1.0), 0.0240),
        # 2500 + 100: mean (25 + 0) / 2600 = 0.0096, sd 0.0196; z = -0.0196. With much noise, the prior remains
        (Trend(0.0, 0.1, 1.0), 0.4922),
        # the first on a metric from 0 to 100
        (Trend(0.4, 0.3, 100.0), 0.0240),
    ],
)
def test_the_probability_is_that_of_slope_and_prior(slope, probability):
    gain = 0.01 * slope.width
    assert slope.probability(gain, 1.0) == pytest.approx(probability, abs=1e-4)
    assert slope.probability(2 * gain, 2.0) == pytest.approx(probability, abs=1e-4)  # the same rise per doubling
