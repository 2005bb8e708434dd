import doctest
import json
import subprocess
import sys

import numpy as np
import pytest
from scaling_runs import run

from scalerl.scaling import METHODS, Curve, CurveError, PaperGrid, fit


def test_the_three_methods_agree_on_a_well_measured_run():
    fits = {method: fit(run(noise=0.002), method=method) for method in METHODS}
    assert [round(f.asymptote.mean, 2) for f in fits.values()] == [0.61, 0.61, 0.61]
    assert [f.efficiency.mean for f in fits.values()] == pytest.approx([1.92] * 3, abs=0.1)


def test_an_early_ceiling_is_not_identified():
    early = fit(run(last=1500.0))
    assert not early.identified
    assert early.asymptote.sd > 0.02
    assert early.reason.startswith("the ceiling has standard deviation")
    assert fit(run()).identified


def test_the_ceiling_of_a_collapsed_run_is_not_identified():
    curve = run()
    metric = curve.metric.copy()
    metric[-6:] = np.linspace(0.5, 0.1, 6)  # smoothed over three: from 0.595 down to 0.18
    found = fit(Curve(curve.compute, metric))
    assert not found.identified
    assert found.reason == "the curve falls at the end, which the law cannot describe"
    assert any(warning.startswith("decline: the metric fell by 0.41") for warning in found.warnings)


@pytest.mark.parametrize(
    ("curve", "arguments", "message"),
    [
        (Curve([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4]), {}, "at least 5 points; got 4. Evaluate more often"),
        (run(), {"exclude_below": 15_000}, "got 4 after leaving out those below 1.5e\\+04"),
        (
            Curve(range(8), [0.5] * 8),
            {"method": "paper"},
            "every metric value is 0.5: there is no climb to fit by 'paper'",
        ),
        (None, {}, "a Curve; got a NoneType"),
        (run(), {"method": "mcmc"}, "method must be one of posterior, least-squares, paper; got 'mcmc'"),
        (run(), {"r0": "fixed"}, "r0 must be 'free' or a number; got 'fixed'"),
        (run(), {"r0": 1.5}, r"r0 must lie in \[0, 1\); got 1.5"),
        (run(), {"settings": PaperGrid()}, "method 'posterior' takes a Prior; got a PaperGrid"),
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


def test_repairs_of_the_curve_appear_among_the_warnings():
    curve = run()
    shuffled = Curve(curve.compute[::-1], curve.metric[::-1])
    assert "rows were not in order of compute and were sorted" in fit(shuffled).warnings


def test_a_million_rows_are_averaged_with_a_warning_and_fitted_in_seconds():
    found = fit(run(points=1_000_000))
    assert found.asymptote.mean == pytest.approx(0.61, abs=0.002)
    assert "1000000 points were averaged in groups to 400" in found.warnings


def test_the_band_of_single_evaluations_is_wider_than_that_of_the_curve():
    found = fit(run(noise=0.02))
    curve, noisy = found.predict([16_000.0]), found.predict([16_000.0], noise=True)
    assert noisy.high[0] - noisy.low[0] > 2 * (curve.high[0] - curve.low[0])
    # nine in ten of N(0, 0.02) lie within +-0.033
    assert noisy.high[0] - noisy.low[0] == pytest.approx(2 * 1.645 * 0.02, rel=0.35)


def test_the_dict_has_the_documented_keys_and_is_json():
    found = json.loads(json.dumps(fit(run()).to_dict()))
    assert {"asymptote", "efficiency", "midpoint", "initial", "identified", "warnings"} <= set(found)
    assert set(found["asymptote"]) == {"mean", "sd", "low", "high"}
    assert found["axis"] == "device_hours"


def test_importing_the_package_loads_neither_torch_nor_matplotlib_nor_pandas():
    code = (
        "import sys, scalerl.scaling;"
        "print([m for m in ('torch', 'matplotlib', 'pandas', 'scipy.optimize', 'scipy.stats') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_examples_in_the_docstrings_run():
    module = sys.modules["scalerl.scaling.curve"]
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted >= 2
