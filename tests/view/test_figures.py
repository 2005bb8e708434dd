"""The figures show the numbers of the fits, and name the points that they leave out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from simulated_runs import run as curve

from scalerl.scaling import Curve, compare, fit
from scalerl.view.analysis import Slope, analyze, common_unit, sides_of, slope_at
from scalerl.view.figures import plot_curve
from scalerl.view.outlook import Source
from scalerl.view.page_figures import FIGURES, straight, without_level


def analysis(*curves):
    return analyze([Source(Path(f"run {i}"), f"run {i}", made, None) for i, made in enumerate(curves)])


@pytest.fixture
def axes():
    return Figure().subplots()


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(("scale", "first"), [("linear", 0), ("log", 1)])
def test_the_figure_shows_every_point_the_ceiling_and_the_forecast(axes, scale, first):
    made = curve()
    assert plot_curve(axes, fit(made), scale=scale, note="a note") is axes
    drawn = next(line for line in axes.lines if len(line.get_xdata()) == 41 - first and line.get_marker() == "o")
    np.testing.assert_array_equal(drawn.get_xdata(), made.compute[first:])  # on a log axis without the one before RL
    assert axes.get_xscale() == scale and axes.get_xlim()[1] >= 64_000
    shown = texts(axes)
    assert any(t.startswith("2×: ") for t in shown) and any(t.startswith("ceiling A = ") for t in shown)
    assert "a note" in shown and "before RL" in shown


def test_f_is_compute_to_the_power_b():
    # half of the climb at C_mid: F = 10^2 / (1 / 0.5 - 1) = 10^2; a fifth of it at 5: F = 10^2 / (5 - 1) = 5^2
    slope = Slope("", 0.6, 2.0, 10.0, 0.2, *[np.array([5.0, 10.0])] * 2, np.array([0.2, 0.5]), 0)
    np.testing.assert_allclose(slope.level(), [25.0, 100.0])
    np.testing.assert_allclose(slope.line([5.0, 10.0]), [25.0, 100.0])
    np.testing.assert_allclose(slope.level(unit=10.0), [0.25, 1.0])  # the same in units of 10


def test_a_lower_fixed_ceiling_makes_a_run_steeper():
    made = curve(noise=0.0)
    own, lower = slope_at(made, 0.61), slope_at(made, 0.605)
    assert (own.efficiency, own.midpoint, own.initial) == pytest.approx((1.92, 2542, 0.2), rel=0.005)
    assert lower.ceiling == 0.605 and lower.efficiency > 1.93


def test_points_at_or_above_the_ceiling_or_below_the_start_are_left_out_and_counted():
    made = curve(noise=0.0)
    metric = made.metric.copy()
    metric[[1, 40]] = 0.15, 0.625
    slope = slope_at(Curve(made.compute, metric), 0.61)
    assert slope.dropped == 2 and len(slope.compute) == 38 and np.isfinite(slope.level()).all()
    assert "2 points at or above A" in without_level([slope])


def test_runs_become_lines_whose_slopes_are_their_b():
    slopes = [slope_at(curve(efficiency=b, seed=i), 0.61, f"run {i}") for i, b in enumerate((1.5, 2.6))]
    for slope, true in zip(slopes, (1.5, 2.6), strict=True):
        line, points = straight([slope], 1.0, ("@s0", "solid"))
        steepness = np.diff(np.log(line["y"])) / np.diff(np.log(line["x"]))
        assert steepness[0] == pytest.approx(slope.efficiency, rel=1e-4) == pytest.approx(true, rel=0.05)
        assert line["name"] == f"{slope.label}: B = {slope.efficiency:.2f}" and len(points["x"]) == len(slope.compute)
    # the line of two runs has the geometric mean of their slopes
    both = straight(slopes, 1.0, ("@s0", "solid"))[0]
    steepness = np.diff(np.log(both["y"])) / np.diff(np.log(both["x"]))
    assert steepness[0] == pytest.approx(np.sqrt(slopes[0].efficiency * slopes[1].efficiency), rel=1e-4)


def test_lines_of_runs_pass_near_each_other_in_the_common_unit():
    slopes = [slope_at(curve(efficiency=b, midpoint=c), 0.61) for b, c in ((1.5, 2000.0), (2.6, 3200.0))]
    unit = common_unit(slopes)
    assert unit == pytest.approx(np.sqrt(2000 * 3200), rel=0.03)
    assert all(slope.line(unit, unit) == 1 for slope in slopes)


@pytest.fixture(scope="module")
def comparison():
    sides = ([curve(seed=10 * side + i, efficiency=b) for i in range(3)] for side, b in enumerate((2.6, 1.5)))
    return compare(*sides)


def test_the_sides_differ_by_the_reported_difference(comparison):
    first, second = sides_of(comparison)["asymptote"]
    difference = comparison.asymptote_difference
    assert first.recipe.mean - second.recipe.mean == pytest.approx(difference.mean, abs=0.001)
    assert np.hypot(first.recipe.sd, second.recipe.sd) == pytest.approx(difference.sd, rel=0.2)
    assert first.runs == tuple(f.asymptote for f in comparison.sides[0])
    first, second = sides_of(comparison)["efficiency"]
    assert first.recipe.mean / second.recipe.mean == pytest.approx(comparison.efficiency_ratio.mean, rel=0.02)


def test_a_backtest_draws_each_forecast_from_the_end_of_its_part():
    analyzed = analysis(curve())
    parts = analyzed.runs[0].parts
    assert [part.last_compute for part in parts] == [4800.0, 8000.0, 11_200.0]
    traces = FIGURES["backtests"](analyzed).choices["Run"]["run 0"]["data"]
    lines = [trace for trace in traces if trace.get("name", "").startswith("from the first")]
    assert [trace["x"][0] for trace in lines] == [4800.0, 8000.0, 11_200.0]
    assert lines[0]["y"][-1] == pytest.approx(parts[0].predict([16_000.0]).mean[0], abs=1e-6)
    assert lines[2]["name"] == "from the first 70%"


def test_the_common_ceiling_of_equally_precise_runs_is_their_mean():
    analyzed = analysis(*(curve(asymptote=a) for a in (0.56, 0.60)))
    mean = np.mean([run.outlook.fit.asymptote.mean for run in analyzed.runs])
    assert analyzed.ceiling == pytest.approx(mean, abs=5e-4) and analyzed.runs[0].slope.ceiling == analyzed.ceiling
