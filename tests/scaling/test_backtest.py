import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, backtest
from scalerl.scaling.backtesting import rmse


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
