import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, fit, forecast, sigmoid
from scalerl.scaling.estimate import as_json


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


def test_each_estimate_has_its_baselines(exact):
    answer = forecast(exact, at=[60.0, "4x"])
    assert set(answer.baselines) == {"last value", "linear in log compute", "power law"}
    assert answer.baselines["last value"] == pytest.approx((0.55, 0.55), abs=1e-4)


def test_a_forecast_without_an_identified_ceiling_is_marked():
    text = str(forecast(fit(run(last=1500.0))))
    assert "ceiling NOT identified" in text
    assert "at 3000 device-hours:" in text


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.1), last=st.floats(1e3, 1e5))
def test_forecasts_stay_within_bounds_and_fall_only_as_an_excursion_ends(seed, noise, last):
    fitted = fit(run(seed=seed, noise=noise, last=last))
    ahead = forecast(fitted, at=["1x", "2x", "4x", "10x", "100x"])
    means = [estimate.mean for estimate in ahead.at]
    assert (np.diff(means) >= -abs(float(fitted.futures.excursion_D.mean())) - 1e-9).all()
    assert all(0 <= e.low <= e.high <= 1 for e in ahead.at)


@pytest.mark.parametrize("bad", ["x", "fast", "0x", "-2x", "1.2.3x", -5.0, 0, float("nan"), float("inf")])
def test_an_invalid_amount_of_compute_is_an_error(exact, bad):
    with pytest.raises(CurveError, match="multiple"):
        forecast(exact, at=[bad])


def test_a_target_outside_the_bounds_is_an_error(exact):
    with pytest.raises(CurveError, match="61"):
        forecast(exact, target=61)
