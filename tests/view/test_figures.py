"""The figures show the numbers of the fits, and name the points that they leave out."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from simulated import curve, level

from scalerl.scaling import Curve, CurveError, compare, fit
from scalerl.view.figures import plot_backtest, plot_comparison, plot_curve, plot_posterior, plot_slopes
from scalerl.view.quantities import (
    QUANTITIES,
    Slope,
    common_asymptote,
    common_unit,
    first_parts,
    joint_density,
    slope_at,
)


@pytest.fixture
def axes():
    return Figure().subplots()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_on_a_linear_axis_the_evaluation_before_training_is_a_point(axes):
    made = curve()
    assert plot_curve(axes, fit(made), scale="linear") is axes
    drawn = next(line for line in axes.lines if len(line.get_xdata()) == 41 and line.get_marker() == "o")
    np.testing.assert_array_equal(drawn.get_xdata(), made.compute)
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0 and axes.get_xlim()[1] >= 64_000


def test_a_fit_without_uncertainty_is_drawn_without_a_band(axes):
    plot_curve(axes, fit(curve(), "paper"))
    assert "90% band of the curve" not in axes.get_legend_handles_labels()[1]
    assert "ceiling A, not identified yet = 0.610" in texts(axes)


def test_f_is_compute_to_the_power_b():
    # half of the climb at C_mid: F = 10^2 / (1 / 0.5 - 1) = 10^2; a fifth of it at 5: F = 10^2 / (5 - 1) = 5^2
    slope = Slope("", "compute", 0.6, 2.0, 10.0, 0.2, *[np.array([5.0, 10.0])] * 2, np.array([0.2, 0.5]), 0)
    np.testing.assert_allclose(slope.level(), [25.0, 100.0])
    np.testing.assert_allclose(slope.line([5.0, 10.0]), [25.0, 100.0])
    np.testing.assert_allclose(slope.level(unit=10.0), [0.25, 1.0])  # the same in units of 10


def test_a_lower_fixed_ceiling_makes_a_run_steeper():
    compute = np.linspace(0, 16_000, 41)
    made = Curve(compute, level(compute))
    own, lower = slope_at(made, 0.61), slope_at(made, 0.605)
    assert (own.efficiency, own.midpoint, own.initial) == pytest.approx((1.92, 2542, 0.2), rel=0.005)
    assert lower.ceiling == 0.605 and lower.efficiency > 1.93


def test_points_at_or_above_the_ceiling_or_below_the_start_are_left_out_and_counted(axes):
    made = curve(noise=0.0)
    metric = made.metric.copy()
    metric[[1, 40]] = 0.15, 0.625
    found = slope_at(Curve(made.compute, metric), 0.61)
    assert found.dropped == 2 and len(found.compute) == 38 and np.isfinite(found.level()).all()
    plot_slopes(axes, [found])
    assert any(text.endswith("at or below R0: 2") for text in texts(axes))


def test_runs_become_lines_whose_slopes_are_their_b(axes):
    slopes = [slope_at(curve(efficiency=b, seed=i), 0.61, f"run {i}") for i, b in enumerate((1.5, 2.6))]
    assert plot_slopes(axes, slopes, unit=1.0) is axes
    for slope, true in zip(slopes, (1.5, 2.6), strict=True):
        line = next(drawn for drawn in axes.lines if len(drawn.get_xdata()) == 2)
        line.remove()
        steepness = np.diff(np.log(line.get_ydata())) / np.diff(np.log(line.get_xdata()))
        assert steepness[0] == pytest.approx(slope.efficiency) == pytest.approx(true, rel=0.05)
    assert axes.get_legend_handles_labels()[1][0] == f"run 0: B = {slopes[0].efficiency:.2f}"


def test_lines_of_runs_pass_near_each_other_in_the_common_unit():
    slopes = [slope_at(curve(efficiency=b, midpoint=c), 0.61) for b, c in ((1.5, 2000.0), (2.6, 3200.0))]
    unit = common_unit(slopes)
    assert unit == pytest.approx(np.sqrt(2000 * 3200), rel=0.03)
    assert all(slope.line(unit, unit) == 1 for slope in slopes)


def test_contours_contain_their_share_of_the_posterior(axes):
    found = fit(curve(last=5000.0))
    a_G, b_G, mass_GG = joint_density(found.draws, found.curve.bounds)
    column = np.abs(found.draws.asymptote[:, None] - a_G).argmin(axis=1)
    row = np.abs(np.log(found.draws.efficiency)[:, None] - np.log(b_G)).argmin(axis=1)
    mass_D = mass_GG[row, column]
    assert (mass_D < 0.5).mean() == pytest.approx(0.5, abs=0.06)
    assert (mass_D < 0.9).mean() == pytest.approx(0.9, abs=0.04)
    assert plot_posterior(axes, [found], ["a run"]) is axes
    drawn = [vertices for c in axes.collections for path in c.get_paths() for vertices in path.vertices]
    assert np.min(drawn, axis=0)[0] < found.asymptote.low and np.max(drawn, axis=0)[0] > found.asymptote.high


def test_a_posterior_of_one_point_is_drawn_as_a_point(axes):
    found = fit(curve(), "paper")
    plot_posterior(axes, [found])
    assert not axes.collections and axes.lines[0].get_xdata() == [found.asymptote.mean]


@pytest.fixture(scope="module")
def comparison():
    sides = ([curve(seed=10 * side + i, efficiency=b) for i in range(3)] for side, b in enumerate((2.6, 1.5)))
    return compare(*sides)


def test_the_sides_differ_by_the_reported_difference(comparison):
    first, second = QUANTITIES["asymptote"](comparison, np.random.default_rng(1))
    difference = comparison.asymptote_difference
    assert first.recipe.mean - second.recipe.mean == pytest.approx(difference.mean, abs=0.001)
    assert np.hypot(first.recipe.sd, second.recipe.sd) == pytest.approx(difference.sd, rel=0.2)
    assert first.runs == tuple(f.asymptote for f in comparison.sides[0])
    first, second = QUANTITIES["efficiency"](comparison, np.random.default_rng(1))
    assert first.recipe.mean / second.recipe.mean == pytest.approx(comparison.efficiency_ratio.mean, rel=0.02)


@pytest.mark.parametrize("quantity", list(QUANTITIES))
def test_a_comparison_is_drawn_as_intervals_of_recipes_and_runs(axes, comparison, quantity):
    assert plot_comparison(axes, comparison, quantity, names=("ours", "theirs")) is axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert [row.split(":")[0] for row in rows] == [
        "ours",
        "run 1",
        "run 2",
        "run 3",
        "theirs",
        "run 1",
        "run 2",
        "run 3",
    ]
    run = QUANTITIES[quantity](comparison, np.random.default_rng(0))[0].runs[1]
    interval = next(line for line in axes.lines if list(line.get_ydata()) == [-2, -2])
    assert list(interval.get_xdata()) == [run.low, run.high]
    assert axes.get_title(loc="left") == "same ceiling and more efficient"


def test_a_backtest_draws_each_forecast_from_the_end_of_its_part(axes):
    made = curve()
    parts = first_parts(made, (0.3, 0.7))
    assert [part.last_compute for part in parts] == [4800.0, 11_200.0]
    assert plot_backtest(axes, made, parts) is axes
    lines = [line for line in axes.lines if str(line.get_label()).startswith("forecast from")]
    assert [line.get_xdata()[0] for line in lines] == [4800.0, 11_200.0]
    assert lines[0].get_ydata()[-1] == parts[0].predict([16_000.0]).mean[0]
    assert lines[1].get_label() == "forecast from the first 70%"


def test_a_part_too_short_to_fit_is_an_error():
    with pytest.raises(CurveError, match="at least 5 points; got 4"):
        first_parts(curve(points=11), (0.3,))


def test_the_common_ceiling_of_equally_precise_runs_is_their_mean():
    fits = [fit(curve(asymptote=a)) for a in (0.56, 0.60)]
    assert common_asymptote(fits) == pytest.approx(np.mean([f.asymptote.mean for f in fits]), abs=5e-4)
