import numpy as np
import pytest

from scalerl.reading.curves.law import climb, sigmoid


def test_half_of_the_climb_is_done_at_the_midpoint():
    # R0 + (A - R0) / 2 = 0.2 + 0.41 / 2
    assert sigmoid(2542.0, 0.61, 1.92, 2542.0, 0.2) == pytest.approx(0.405, abs=1e-15)


def test_the_law_by_hand_at_three_times_the_midpoint():
    # u = 1 / (1 + (1/3)^2) = 0.9, so R = 0.1 + 0.5 * 0.9
    assert sigmoid(30.0, 0.6, 2.0, 10.0, 0.1) == pytest.approx(0.55, abs=1e-15)


def test_compute_zero_is_the_initial_level_exactly():
    assert sigmoid(0.0, 0.61, 1.92, 2542.0, 0.2) == 0.2


def test_no_overflow_at_absurd_compute():
    levels = sigmoid(np.array([1e-300, 1e300]), 0.6, 20.0, 1.0, 0.1)
    assert levels == pytest.approx([0.1, 0.6], abs=1e-12)


def test_the_climb_is_a_logistic_curve_in_log_compute():
    assert climb(2.0, 1.0, 3.0) == pytest.approx(1 / (1 + np.exp(-3.0)), abs=1e-15)
