"""The counts of benchmarks/real_curves.py after an advice, compared with results by hand."""

import numpy as np
import pytest

from scalerl.reading.curves import Curve


@pytest.fixture
def bench(benchmark):
    return benchmark("real_curves")


def test_the_share_is_of_the_compute_after_the_stops(bench):
    def stop(at):
        return bench.Stop("r", "lab", "flat", "stop", at, gain=0.0, smooth_gain=0.0, noise=0.0, over_best=0.0)

    # 0.6 and 0.2 of a run are left; only the first gains less than 0.01
    assert bench.share([stop(0.4), stop(0.8)], [0.009, 0.011]) == pytest.approx(0.75)
    assert bench.share([], []) is None


def test_a_fall_is_counted_from_the_best_and_from_the_stop(bench):
    # rises by 0.05 per evaluation to 0.6, then eight evaluations at 0.3
    metric = np.concatenate([np.linspace(0.05, 0.6, 12), np.full(8, 0.3)])
    stop = bench.first_stop(bench.RealRun("fell", "lab", "collapse", Curve(np.arange(1.0, 21.0), metric)))
    # the best mean of three is 0.55; with one, two and three points at 0.3 it is 0.483, 0.4 and 0.3, so that it is more
    # than 0.1 below at the second point and, as required, at the next
    assert (stop.action, stop.at) == ("go back", pytest.approx(15 / 20))
    assert stop.over_best == pytest.approx(0.3 - 0.55)
    # three points before the stop are 0.3 like the last three; so are the four around it
    assert (stop.gain, stop.smooth_gain) == pytest.approx((0.0, 0.0))


def test_no_advice_is_counted_if_fewer_than_three_points_follow(bench):
    assert bench.first_stop(bench.RealRun("short", "lab", "flat", Curve(np.arange(7.0), [0.5] * 7))) is None
