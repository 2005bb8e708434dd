import tracemalloc

import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, CurveError, backtest, fit
from scalerl.reading.curves.backtesting import rmse, split_at


def test_the_first_half_of_a_run_on_the_law_predicts_the_rest():
    (split,) = backtest(run(), fractions=[0.5]).splits
    assert (split.shown, split.held_out) == (21, 20)
    # the held-out points have noise of 0.004
    assert 0.003 < split.forecast.rmse < 0.008
    assert split.forecast.coverage >= 0.8
    # the last value misses the 0.04 that are still to come
    assert split.baselines["last value"].rmse > 2 * split.forecast.rmse


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


def test_a_backtest_of_many_evaluations_does_not_hold_the_draws_of_all():
    """2,000 draws at each of 24,000 evaluations would take 384 MB in each array, 200 powers of each 38 MB."""
    curve = run(points=30_000)
    tracemalloc.start()
    try:
        result = split_at(curve, 0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.held_out == 24_000 and peak < 80e6


def test_the_band_of_one_evaluation_holds_nine_in_ten_of_a_long_log():
    """Above 400 points a fit is of means of neighbors, around which single evaluations scatter."""
    count = 1200
    compute = np.arange(count) / count
    noise = 0.03 * np.random.default_rng(11).standard_normal(count)
    long = Curve(compute, 0.2 + 0.5 / (1 + (0.2 / np.maximum(compute, 1e-9)) ** 1.5) + noise)
    assert fit(long).noise_sd == pytest.approx(0.03, rel=0.05)
    (split,) = backtest(long, fractions=[0.5]).splits
    assert split.forecast.coverage == pytest.approx(0.9, abs=0.05)
