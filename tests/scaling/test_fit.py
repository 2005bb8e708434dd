import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, CurveError, Prior, fit, sigmoid
from scalerl.reading.curves.sampling import least_midpoint


def test_an_early_ceiling_is_not_identified():
    early = fit(run(last=1500.0))
    assert not early.identified
    assert early.asymptote.sd > 0.02
    assert early.reason.startswith("its standard deviation is")
    assert fit(run()).identified


def test_the_ceiling_of_a_collapsed_run_is_not_identified():
    curve = run()
    metric = curve.metric.copy()
    metric[-6:] = np.linspace(0.5, 0.1, 6)  # smoothed over three: from 0.595 down to 0.18
    fitted = fit(Curve(curve.compute, metric))
    assert not fitted.identified
    assert fitted.reason == "the curve falls at the end, which the law cannot describe"
    assert any(warning.startswith("decline: the metric fell by 0.41") for warning in fitted.warnings)


@pytest.mark.parametrize(
    ("curve", "arguments", "message"),
    [
        (Curve([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4]), {}, "at least 5 points"),
        (run(), {"exclude_below": 15_000}, "got 4"),
        (run(), {"r0": 1.5}, "1.5"),
    ],
)
def test_invalid_curves_and_arguments_of_fit_are_errors(curve, arguments, message):
    with pytest.raises(CurveError, match=message):
        fit(curve, **arguments)


def test_early_points_can_be_left_out():
    curve = run(noise=0.001)
    metric = curve.metric.copy()
    metric[1:5] = [0.35, 0.42, 0.44, 0.45]  # a transient that is not a sigmoid
    spoiled = Curve(curve.compute, metric)
    assert fit(spoiled).efficiency.mean < 1.2
    assert fit(spoiled, exclude_below=1900).efficiency.mean == pytest.approx(1.92, abs=0.1)


def test_a_million_rows_are_averaged_with_a_warning_and_fitted_in_seconds():
    fitted = fit(run(points=1_000_000))
    assert fitted.asymptote.mean == pytest.approx(0.61, abs=0.002)
    assert "1000000 points were averaged in groups to 400" in fitted.warnings


def test_log_spaced_points_far_beyond_the_midpoint_give_the_right_forecast():
    compute = np.append(0.0, np.geomspace(1.0, 1e8, 40))
    noise = 0.004 * np.random.default_rng(0).standard_normal(41)
    fitted = fit(Curve(compute, sigmoid(compute, 0.7, 1.5, 100.0, 0.2) + noise))
    band = fitted.predict([2 * compute[-1]])
    assert band.mean[0] == pytest.approx(0.7, abs=0.005)
    assert band.low[0] < 0.7 < band.high[0]
    assert fitted.midpoint.mean == pytest.approx(100.0, rel=0.15)
    assert fitted.identified and fitted.warnings == ()


def test_the_smallest_midpoint_is_a_two_hundredth_of_the_last_unless_three_points_are_below_it():
    # of 400 steps the third is at 3/400, above 1/200
    assert least_midpoint(Curve(range(400), [0.5] * 400)) == 1 / 200
    assert least_midpoint(Curve([0, 1, 2, 4, 8, 1000], [0.5] * 6)) == 0.5e-3
    assert least_midpoint(Curve([0, 10, 20, 30, 40], [0.5] * 5)) == 0.125


@pytest.mark.parametrize("midpoint", [20.0, 8000.0])
def test_a_midpoint_at_either_limit_is_reported(midpoint):
    # points at 100, 200, ..., 4000: the lower limit is 50, and the upper one is set to 4000
    fitted = fit(run(last=4000.0, midpoint=midpoint), prior=Prior(midpoint_reach=1.0))
    assert "midpoint" in fitted.at_bound
    assert "midpoint C_mid reaches the limit of its allowed range" in fitted.warnings


def test_a_steepness_at_its_limit_is_reported_and_the_ceiling_is_not_identified():
    compute = np.linspace(0, 200.0, 41)
    for seed in range(2):
        noise = 0.005 * np.random.default_rng(seed).standard_normal(41)
        fitted = fit(Curve(compute, np.clip(sigmoid(compute, 0.7, 12.0, 100.0, 0.2) + noise, 0, 1)))
        assert fitted.efficiency.high > 4.85
        assert "steepness B reaches the limit of its allowed range" in fitted.warnings
        assert not fitted.identified


def test_the_band_of_single_evaluations_is_wider_than_that_of_the_curve():
    fitted = fit(run(noise=0.02))
    curve, noisy = fitted.predict([16_000.0]), fitted.predict([16_000.0], noise=True)
    assert noisy.high[0] - noisy.low[0] > 2 * (curve.high[0] - curve.low[0])
    # nine in ten of N(0, 0.02) lie within +-0.033
    assert noisy.high[0] - noisy.low[0] == pytest.approx(2 * 1.645 * 0.02, rel=0.35)


def test_an_identified_ceiling_says_when_its_interval_includes_a_later_rise():
    """It said "identified" beside an interval up to the bound of the metric."""
    seen = {True: 0, False: 0}
    for seed in range(12):
        compute, rng = np.linspace(0, 100, 31), np.random.default_rng(seed)
        level = 0.2 + 0.43 / (1 + (22.7 / np.maximum(compute, 1e-9)) ** 1.5)
        fitted = fit(Curve(compute, level + rng.normal(0, 0.011, 31)))
        if fitted.identified:
            wide = fitted.asymptote.high - fitted.asymptote.low > 0.066
            seen[wide] += 1
            assert ("includes a later rise" in fitted.reason) == ("includes a later rise" in str(fitted)) == wide
    assert all(seen.values())
