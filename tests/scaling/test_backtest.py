import sys
import tracemalloc

import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, backtest, fit
from scalerl.scaling.backtesting import rmse, split_at


def test_the_first_half_of_a_run_on_the_law_predicts_the_rest():
    (split,) = backtest(run(), fractions=[0.5]).splits
    assert (split.shown, split.held_out) == (21, 20)
    # the held-out points have noise of 0.004
    assert 0.003 < split.forecast.rmse < 0.008
    assert split.forecast.coverage >= 0.8
    # the last value misses the 0.04 that are still to come
    assert split.baselines["last value"].rmse > 2 * split.forecast.rmse


def test_on_a_flat_end_the_error_of_the_last_value_is_the_noise():
    compute = np.arange(21.0)
    metric = np.where(compute < 10, compute / 20, 0.5)
    (split,) = backtest(Curve(compute, metric), fractions=[0.75]).splits
    assert split.baselines["last value"].rmse == 0.0


def test_errors_are_root_mean_squares():
    assert rmse(np.array([0.03, -0.04])) == pytest.approx(np.sqrt((0.0009 + 0.0016) / 2))


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ([1.0], "got 1.0"),
        ([0.05], "3 points"),
    ],
)
def test_fractions_without_points_to_fit_or_predict_are_errors(fractions, message):
    with pytest.raises(CurveError, match=message):
        backtest(run(), fractions)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("together", [1, 7, 64])
def test_a_band_in_parts_has_the_bits_of_the_whole(noise, together, monkeypatch):
    curve = run()
    fitted = fit(curve)
    compute = np.linspace(0.0, 4.0 * curve.last_compute, 50)
    whole = fitted.predict(compute, noise=noise)
    monkeypatch.setattr(sys.modules["scalerl.scaling.fit"], "PREDICTED_TOGETHER", together)  # not the function `fit`
    for one, other in zip(whole, fitted.predict(compute, noise=noise), strict=True):
        assert one.tolist() == other.tolist()
    assert [len(column) for column in fitted.predict([])] == [0] * 5


def test_a_backtest_of_many_evaluations_does_not_hold_the_draws_of_all():
    """2,000 draws at each of 4,000 evaluations would take 64 MB in each array."""
    curve = run(points=5000)
    tracemalloc.start()
    try:
        result = split_at(curve, 0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.held_out >= 3900 and peak < 100e6
