import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import run

from scalerl.reading.curves import Curve, CurveError, fit, forecast, sigmoid
from scalerl.reading.curves.estimate import as_json


@pytest.fixture(scope="module")
def exact():
    """A fit without uncertainty, for results by hand: A 0.6, B 2, C_mid 10, R0 0.1, measured to 30."""
    compute = np.linspace(0, 30, 61)
    return fit(Curve(compute, sigmoid(compute, 0.6, 2.0, 10.0, 0.1)))


def test_the_forecast_at_four_times_the_last_point_by_hand(exact):
    (there,) = forecast(exact, at=["4x"]).at
    # at 120 = 12 C_mid: 0.1 + 0.5 / (1 + 1/144)
    assert (there.compute, there.mean) == (120.0, pytest.approx(0.1 + 0.5 * 144 / 145, abs=1e-4))


def test_the_gain_to_the_ceiling_by_hand(exact):
    # now, at 3 C_mid, R = 0.1 + 0.5 * 0.9 = 0.55
    answer = forecast(exact)
    assert answer.now.mean == pytest.approx(0.55, abs=1e-4)
    assert answer.gain_to_come.mean == pytest.approx(0.05, abs=1e-4)


def test_the_compute_where_95_percent_is_done_is_a_range(exact):
    done = forecast(exact).done
    assert done.low < done.median < done.high
    assert done.median == pytest.approx(10 * np.sqrt(19), rel=1e-2)


def test_the_compute_needed_for_a_target(exact):
    # half of the climb, 0.35, is reached at C_mid
    assert forecast(exact, target=0.35).target.median == pytest.approx(10.0, rel=1e-2)


def test_a_target_above_the_ceiling_is_never_reached(exact):
    target = forecast(exact, target=0.7).target
    assert (target.probability, target.low) == (0.0, np.inf)
    assert as_json(target)["low"] is None
    assert str(target).startswith("never to never")


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.1), last=st.floats(1e3, 1e5))
def test_forecasts_stay_within_bounds_and_fall_only_as_an_excursion_ends(seed, noise, last):
    fitted = fit(run(seed=seed, noise=noise, last=last))
    ahead = forecast(fitted, at=["1x", "2x", "4x", "10x", "100x"])
    means = [estimate.mean for estimate in ahead.at]
    assert (np.diff(means) >= -abs(float(fitted.posterior.mean_sample.excursion_D.mean())) - 1e-9).all()
    assert all(0 <= e.low <= e.high <= 1 for e in ahead.at)


@pytest.mark.parametrize("bad", ["fast", "0x", -5.0, float("nan")])
def test_an_invalid_amount_of_compute_is_an_error(exact, bad):
    with pytest.raises(CurveError, match="multiple"):
        forecast(exact, at=[bad])


def test_a_target_outside_the_bounds_is_an_error(exact):
    with pytest.raises(CurveError, match="61"):
        forecast(exact, target=61)


@pytest.mark.parametrize(
    ("item", "compute"),
    [("2 X", 60.0), ("1.5×", 45.0), ("+ 10", 40.0), ("+0.5x", 45.0), ("9e1", 90.0), (12, 12.0)],
)
def test_amounts_of_compute_are_totals_multiples_or_additions(exact, item, compute):
    assert forecast(exact, at=item).at[0].compute == pytest.approx(compute)


def test_a_bare_number_below_the_present_compute_is_refused_with_both_ways_to_write_it(exact):
    with pytest.raises(CurveError, match="for a multiple write 2x, for more than now write \\+2"):
        forecast(exact, at=["2"])


def test_a_curve_at_the_bound_says_that_nothing_is_left_to_gain():
    full = Curve(np.arange(20.0), np.minimum(0.3 + 0.1 * np.arange(20.0), 1.0))
    assert "the metric's bound of 1" in str(forecast(fit(full)))
    assert "bound of" not in str(forecast(fit(run())))
