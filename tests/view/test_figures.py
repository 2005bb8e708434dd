"""The figures show the numbers of the fits, and name the points that they leave out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from simulated_runs import run as curve

from scalerl.reading.curves import Curve, compare, fit
from scalerl.reading.curves.comparison import recipe_ceilings
from scalerl.reading.pages.analysis import Slope, analyze, sides_of, slope_at
from scalerl.reading.pages.drawing import plot
from scalerl.reading.pages.figure import Points
from scalerl.reading.pages.outlook import Source
from scalerl.reading.pages.page_figures import FIGURES, straight_lines, without_level, young_figure


def analysis(*curves):
    return analyze([Source(Path(f"run {i}"), f"run {i}", made, None) for i, made in enumerate(curves)])


@pytest.fixture
def axes():
    return Figure().subplots()


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_figure_shows_every_point_the_ceiling_and_the_forecast(axes, scale):
    made = curve()
    assert plot(fit(made), axes, scale=scale, note="a note") is axes
    drawn = next(line for line in axes.lines if len(line.get_xdata()) == 41 and line.get_marker() == "o")
    np.testing.assert_array_equal(drawn.get_xdata(), made.compute)
    assert axes.get_xscale() == scale and axes.get_xlim()[1] >= 64_000
    assert axes.get_legend().get_title().get_text().startswith("simulated   A = 0.6")
    assert axes.get_legend().get_title().get_text().endswith("\na note")
    two, four = fit(made).mean([32_000.0, 64_000.0])
    assert f"forecast, {two:.3f} at 2×, {four:.3f} at 4×" in legend(axes)
    assert legend(axes)[-1].startswith("ceiling of this climb, A = 0.6")
    assert texts(axes) == ["before training"]  # the level of the point that a log axis cannot show


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_runs_that_are_drawn_into_the_same_axes_share_a_legend_and_keep_what_the_caller_drew(axes):
    plot(fit(curve()), axes)
    own = axes.plot([1000.0, 2000.0], [0.3, 0.3])[0]
    plot(fit(curve(seed=1)), axes)
    assert legend(axes) == ["simulated", "simulated (2)"] and own in axes.lines
    assert sum(isinstance(area, PolyCollection) for area in axes.collections) == 2  # bands, each once


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
        line, points = straight_lines([slope], 1.0, "@s0")
        steepness = np.diff(np.log(line.y)) / np.diff(np.log(line.x))
        assert steepness[0] == pytest.approx(slope.efficiency, rel=1e-4) == pytest.approx(true, rel=0.05)
        assert line.name == f"{slope.label}: B = {slope.efficiency:.2f}" and len(points.x) == len(slope.compute)
    # the line of two runs has the geometric mean of their slopes
    both = straight_lines(slopes, 1.0, "@s0")[0]
    steepness = np.diff(np.log(both.y)) / np.diff(np.log(both.x))
    assert steepness[0] == pytest.approx(np.sqrt(slopes[0].efficiency * slopes[1].efficiency), rel=1e-4)


@pytest.fixture(scope="module")
def comparison():
    sides = ([curve(seed=10 * side + i, efficiency=b) for i in range(3)] for side, b in enumerate((2.6, 1.5)))
    return compare(*sides)


def test_the_sides_differ_by_the_reported_difference(comparison):
    first, second = sides_of(comparison)["asymptote"]
    difference = comparison.asymptote_difference
    assert first.recipe.mean - second.recipe.mean == pytest.approx(difference.mean, abs=0.001)
    assert np.hypot(first.recipe.sd, second.recipe.sd) == pytest.approx(difference.sd, rel=0.2)
    for run, f in zip(first.runs, comparison.sides[0], strict=True):  # the draws that `compare` uses
        assert run.mean == pytest.approx(recipe_ceilings(f).mean(), abs=1e-9)
    first, second = sides_of(comparison)["efficiency"]
    assert first.recipe.mean / second.recipe.mean == pytest.approx(comparison.efficiency_ratio.mean, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("points", "drawn"), [(2000, 2000), (2001, 1001)])
def test_a_figure_draws_at_most_2000_points_of_a_run_and_says_how_many_of_how_many(points, drawn):
    analyzed = analysis(curve(points=points))
    for name in ("curves", "backtests"):
        figure = FIGURES[name](analyzed)
        series = [*figure.series, *(one for part in figure.choices.get("Run", {}).values() for one in part.series)]
        marks = [one for one in series if isinstance(one, Points) and one.color == "@ink"]
        assert [len(one.x) for one in marks] == [drawn]
        assert (f"{drawn:,} of {points:,}" in figure.caption) == (drawn < points)
    young = young_figure(curve(points=points))
    assert len(young.series[0].x) == drawn and (f"{drawn:,} of {points:,} held-out" in young.caption) == (
        drawn < points
    )
