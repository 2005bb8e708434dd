"""The figures of a page about runs as plotly JSON. Does not import plotly."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import numpy as np

from scalerl.scaling import Curve, Estimate, Fit
from scalerl.view.analysis import Analysis, RunAnalysis
from scalerl.view.drawing import LOG, Figure, Json, compute_axes, cut, number_html, plain, rounded, whiskers
from scalerl.view.figures import SERIES, metric_name
from scalerl.view.quantities import MASSES, Slope, common_unit, forecast_of_rest, height_range

AHEAD = 4.0
"""End of the drawn forecasts, in multiples of the last point's compute."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""Dashes of the runs of one recipe, which share its color."""


def curves(analysis: Analysis) -> Figure:
    """Return the figure of points, fits, bands, forecasts and ceilings of all runs."""
    least = _least(analysis)
    data = [
        {**trace, "legendgroup": str(number)}
        for number, run in enumerate(analysis.runs)
        for trace in curve_traces(
            run.name, run.curve, run.outlook.fit, style_of(analysis, number), least, _aside(number)
        )
    ]
    title = f"training compute ({analysis.axis})"
    layout = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": metric_name(analysis.runs[0].curve)}}}
    caption = (
        "Dots are held-out evaluations. Lines are the fitted law with its 90% band, dashed where it is a forecast. The "
        "mark at the right end of each line is its ceiling A with a 90% interval. Click a name to hide its run."
    )
    furthest = max(run.outlook.fit.last_compute for run in analysis.runs)
    axes = compute_axes(0.6 * least, AHEAD * furthest * _aside(len(analysis.runs) + 1))
    return Figure("Curves and forecasts", caption, data, layout, {"Compute axis": axes})


def _least(analysis: Analysis) -> float:
    """Return the least compute above 0 at which any run was evaluated."""
    return min(float(run.curve.compute[run.curve.compute > 0][0]) for run in analysis.runs)


def _aside(number: int) -> float:
    """Return the position of a run's ceiling, as a factor beyond the forecast, so that ceilings do not overlap."""
    return 1.05 * 1.03**number


def curve_traces(name: str, curve: Curve, found: Fit, style: tuple[str, str], least: float, aside: float) -> list[Json]:
    """Return the traces of a run, in this order: band (two), fit, forecast, points, ceiling.

    Args:
        name: Name of the run, plain text.
        curve: Points of the run, including those left out of the fit.
        found: Fit of the run.
        style: Color and dash.
        least: Least compute above 0 of the figure.
        aside: Factor beyond the forecast at which the ceiling is drawn.
    """
    last, unit = found.last_compute, curve.unit
    # dense on both axes; on a log axis, the segment from 0 is a horizontal line left of the range
    spaced = np.linspace(0, AHEAD * last, 61)[1:]
    grid = np.unique(np.concatenate([[0.0, last], spaced, np.geomspace(0.5 * least, AHEAD * last, 100)]))
    band = found.predict(grid)
    color, dash = style
    name = html.escape(name)
    seen, ahead = grid <= last, grid >= last
    group: Json = {"name": name}
    quiet: Json = {**group, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
    where = f"{unit} %{{x:.4g}}<br>%{{y:.3f}}<extra>{name}</extra>"
    error = None if curve.stderr is None else {"array": plain(curve.stderr), "width": 0, "thickness": 1}
    ceiling = found.asymptote
    return [
        {**quiet, "x": plain(grid), "y": plain(band.low), "line": {"width": 0}},
        {**quiet, "x": plain(grid), "y": plain(band.high), "line": {"width": 0}, "fill": "tonexty",
         "fillcolor": f"{color}/0.16"},
        {**quiet, "x": plain(grid[seen]), "y": plain(band.mean[seen]), "line": {"color": color, "width": 2}},
        {**group, "showlegend": False, "mode": "lines", "x": plain(grid[ahead]), "y": plain(band.mean[ahead]),
         "line": {"color": color, "width": 2, "dash": "dash"}, "hovertemplate": "forecast<br>" + where},
        {**group, "mode": "markers", "x": plain(curve.compute), "y": plain(curve.metric),
         "marker": {"color": color, "size": 6, "symbol": DASHES.index(dash)}, "hovertemplate": where,
         **({"error_y": {**error, "color": f"{color}/0.5"}} if error else {})},
        {**group, "showlegend": False, "mode": "markers", "x": [rounded(AHEAD * last * aside)],
         "y": [rounded(ceiling.mean)], "marker": {"color": color, "size": 9, "symbol": "line-ew-open"},
         "error_y": {**whiskers(ceiling), "color": color, "width": 5},
         "hovertemplate": f"ceiling A: %{{y:.3f}}<extra>{name}</extra>"},
    ]  # fmt: skip


def suites(analysis: Analysis) -> Figure | None:
    """Return the figure of the evaluation suites, with standard errors and without a fit; None if no run has any."""
    names = list(dict.fromkeys(suite.label for run in analysis.runs for suite in run.suites))
    if not names:
        return None
    data = [
        _suite_trace(analysis, number, suite, f"@s{names.index(suite.label) % len(SERIES)}")
        for number, run in enumerate(analysis.runs)
        for suite in run.suites
    ]
    layout = {
        "xaxis": {"title": {"text": f"training compute ({analysis.axis})"}},
        "yaxis": {"title": {"text": "mean pass rate"}},
    }
    several = " Each suite has a color, and each run a dash." if len(analysis.runs) > 1 else ""
    caption = (
        "Results on suites that are only evaluated. Bars are one standard error over the prompts of the suite. Suites "
        f"have no fit and no forecast.{several}"
    )
    return Figure("Evaluation suites", caption, data, layout)


def _suite_trace(analysis: Analysis, number: int, suite: Curve, color: str) -> Json:
    """Return the trace of one suite of one run."""
    alone = len(analysis.runs) == 1
    name = html.escape(suite.label if alone else f"{suite.label}, {analysis.runs[number].name}")
    trace: Json = {
        "mode": "lines+markers", "name": name, "showlegend": True, "x": plain(suite.compute), "y": plain(suite.metric),
        "line": {"color": color, "width": 1.5, "dash": DASHES[number % len(DASHES)]},
        "marker": {"color": color, "size": 6},
        "hovertemplate": f"{analysis.axis} %{{x:.4g}}<br>%{{y:.3f}}<extra>{name}</extra>",
    }  # fmt: skip
    if suite.stderr is not None:
        trace["error_y"] = {"array": plain(suite.stderr), "width": 0, "thickness": 1, "color": f"{color}/0.5"}
    return trace


def slopes(analysis: Analysis) -> Figure:
    """Return the figure of all runs as straight lines at the common ceiling."""
    every = [run.slope for run in analysis.runs]
    unit = common_unit(every)
    data: list[Json] = []
    for index, run in enumerate(analysis.runs):
        color, dash = style_of(analysis, index)
        shared = {"legendgroup": str(index), "name": f"{html.escape(run.name)}: B = {run.slope.efficiency:.2f}"}
        data += [
            {**shared, **slope_line(run.slope, unit, color), "showlegend": False},
            {**shared, **slope_points(run.slope, unit, color, run.name, DASHES.index(dash))},
        ]
        data[-2]["line"]["dash"] = dash
    caption = f"Each run is fitted again with its ceiling fixed at the common A = {analysis.ceiling:.3f}. {STRAIGHT}"
    caption += without_level(every)
    if analysis.comparison and analysis.comparison.verdict == "higher ceiling":
        caption += " Here the ceilings differ, so the common one fits neither side: do not rely on these slopes."
    return Figure("Steepness B at one ceiling", caption, data, slope_layout(every, unit, analysis.axis))


STRAIGHT = (
    "In these coordinates the law is a straight line with slope B: F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B. "
    "Near the ceiling, noise scatters the points."
)
"""Explanation of a figure of slopes, for its caption."""


def slope_line(slope: Slope, unit: float, color: str) -> Json:
    """Return the trace of one run's law as a straight line."""
    line = {"x": plain(slope.span / unit), "y": plain(slope.line(slope.span, unit))}
    return {**line, "hoverinfo": "skip", "mode": "lines", "line": {"color": color, "width": 2}}


def slope_points(slope: Slope, unit: float, color: str, name: str, symbol: int = 0) -> Json:
    """Return the trace of one run's points in the coordinates of `slope_line`."""
    return {
        "mode": "markers", "x": plain(slope.compute / unit), "y": plain(slope.level(unit)),
        "marker": {"color": f"{color}/0.75", "size": 6, "symbol": symbol},
        "hovertemplate": f"C %{{x:.3g}}<br>F %{{y:.3g}}<extra>{html.escape(name)}</extra>",
    }  # fmt: skip


def slope_layout(slopes: Sequence[Slope], unit: float, axis: str) -> Json:
    """Return axes for straight lines."""
    spread = np.log10(height_range(slopes, unit))
    return {
        "xaxis": {
            **LOG,
            "exponentformat": "none",
            "title": {"text": f"compute in units of {number_html(unit)} {axis}"},
        },
        "yaxis": {"type": "log", "title": {"text": "F(R) = C^B"}, "range": plain(spread), "dtick": 1},
    }


def without_level(slopes: Sequence[Slope]) -> str:
    """Return a sentence with the number of points that a figure of slopes cannot show; empty if there are none."""
    dropped = sum(slope.dropped for slope in slopes)
    return f" {dropped} points at or above A, or at or below R0, have no F and are not drawn." if dropped else ""


def posterior(analysis: Analysis) -> Figure:
    """Return the figure of the joint posterior of A and B of each run."""
    data: list[Json] = []
    for number, run in enumerate(analysis.runs):
        color, dash = style_of(analysis, number)
        found = run.outlook.fit
        shared: Json = {"legendgroup": str(number), "name": html.escape(run.name)}
        if run.density is not None:
            low, high = MASSES
            data.append({
                **shared, "type": "contour", "showlegend": False, "showscale": False, "hoverinfo": "skip",
                "x": plain(run.density.asymptote), "y": plain(run.density.efficiency),
                "z": [[round(float(v), 3) for v in row] for row in run.density.mass],
                "contours": {"start": low, "end": high, "size": high - low, "coloring": "none"},
                "line": {"color": color, "width": 1.6, "dash": dash},
            })  # fmt: skip
        data.append({
            **shared, "mode": "markers", "x": [rounded(found.asymptote.mean)], "y": [rounded(found.efficiency.mean)],
            "marker": {"color": color, "size": 8, "symbol": DASHES.index(dash)},
            "hovertemplate": "A %{x:.3f}<br>B %{y:.2f}<extra>" + shared["name"] + "</extra>",
        })  # fmt: skip
    layout = {"xaxis": {"title": {"text": "ceiling A"}}, "yaxis": {"type": "log", "title": {"text": "steepness B"}}}
    caption = (
        "The joint posterior of A and B for each run. The inner contour contains 50% of it, the outer one 90%. A long "
        "slanted shape means that a higher ceiling with a flatter climb fits as well."
    )
    return Figure("A and B together", caption, data, layout)


Row = tuple[str, Estimate, str, bool]
"""Label, estimate, color, and whether it stands for a whole recipe."""


def ceilings(analysis: Analysis) -> Figure:
    """Return the figure of A with intervals, by run and by recipe."""
    free = [
        (run.name, run.outlook.fit.asymptote, style_of(analysis, i)[0], False) for i, run in enumerate(analysis.runs)
    ]
    return _intervals(_side_rows(analysis, "asymptote") or free, "Ceiling A", "ceiling A")


def steepness(analysis: Analysis) -> Figure:
    """Return the figure of B with intervals, by run and by recipe; at the common ceiling if recipes are compared."""
    free = [
        (run.name, run.outlook.fit.efficiency, style_of(analysis, i)[0], False) for i, run in enumerate(analysis.runs)
    ]
    rows = _side_rows(analysis, "efficiency")
    axis = f"B at the common A = {analysis.ceiling:.3f}" if rows else "steepness B"
    return _intervals(rows or free, "Steepness B", axis)


def _side_rows(analysis: Analysis, quantity: str) -> list[Row]:
    rows: list[Row] = []
    for number, (side, name) in enumerate(zip(analysis.sides.get(quantity, ()), ("first", "second"), strict=False)):
        rows.append((f"{name} recipe", side.recipe, f"@s{number}", True))
        names = [run.name for run in analysis.runs if run.side == number]
        rows += [(run, estimate, f"@s{number}", False) for run, estimate in zip(names, side.runs, strict=True)]
    return rows


def _intervals(rows: list[Row], title: str, axis: str) -> Figure:
    data: list[Json] = [
        {"mode": "markers", "showlegend": False, "x": [rounded(estimate.mean)], "y": [-i],
         "marker": {"color": color, "size": 11 if bold else 7},
         "error_x": {**whiskers(estimate), "color": color, "thickness": 3 if bold else 1.5, "width": 0},
         "hovertemplate": f"{html.escape(str(estimate))}<extra>{html.escape(name)}</extra>"}
        for i, (name, estimate, color, bold) in enumerate(rows)
    ]  # fmt: skip
    names = [f"<b>{html.escape(name)}</b>" if bold else html.escape(cut(name)) for name, _, _, bold in rows]
    ticks = {"tickvals": [-i for i in range(len(rows))], "ticktext": names, "range": [-len(rows) + 0.4, 0.6]}
    layout = {"xaxis": {"title": {"text": axis}}, "yaxis": {**ticks, "showgrid": False}, "height": 140 + 32 * len(rows)}
    recipes = " Thick lines are recipes and include the scatter of seeds." if any(row[3] for row in rows) else ""
    return Figure(title, f"Lines are 90% intervals.{recipes}", data, layout)


def backtests(analysis: Analysis) -> Figure | None:
    """Return the figure of the forecasts from the first parts of each run; None if no run is long enough."""
    choices = {run.name: {"data": _backtest_traces(analysis, run)} for run in analysis.runs if run.parts}
    if not choices:
        return None
    layout = {
        "xaxis": {"title": {"text": f"training compute ({analysis.axis})"}},
        "yaxis": {"title": {"text": metric_name(analysis.runs[0].curve)}},
    }
    caption = (
        "Each color is a fit of the first part of the run, up to where its line begins, and its forecast of the rest. "
        "The bands should contain nine of ten evaluations."
    )
    return Figure("Backtest: forecasts from the first parts", caption, [], layout, {"Run": choices})


def _backtest_traces(analysis: Analysis, run: RunAnalysis) -> list[Json]:
    traces: list[Json] = []
    for number, part in enumerate(run.parts):
        color = f"@s{number}"
        band = forecast_of_rest(part, run.curve)
        quiet: Json = {"legendgroup": str(number), "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
        traces += [
            {**quiet, "x": plain(band.compute), "y": plain(band.low), "line": {"width": 0}},
            {**quiet, "x": plain(band.compute), "y": plain(band.high), "line": {"width": 0}, "fill": "tonexty",
             "fillcolor": f"{color}/0.14"},
            {"legendgroup": str(number), "name": f"from the first {part.last_compute / run.curve.last_compute:.0%}",
             "mode": "lines", "x": plain(band.compute), "y": plain(band.mean), "line": {"color": color, "width": 2},
             "hovertemplate": f"{analysis.axis} %{{x:.4g}}<br>%{{y:.3f}}"},
        ]  # fmt: skip
    points = {"x": plain(run.curve.compute), "y": plain(run.curve.metric)}
    dots = {"mode": "markers", "name": "evaluations", "marker": {"color": "@ink", "size": 5}}
    return [*traces, {**points, **dots, "hovertemplate": f"{analysis.axis} %{{x:.4g}}<br>%{{y:.3f}}<extra></extra>"}]


FIGURES: dict[str, Callable[[Analysis], Figure | None]] = {
    "curves": curves,
    "suites": suites,
    "ceilings": ceilings,
    "steepness": steepness,
    "slopes": slopes,
    "posterior": posterior,
    "backtests": backtests,
}
"""The figures in the order of the page."""


def style_of(analysis: Analysis, number: int) -> tuple[str, str]:
    """Return the color and dash of a run: one color per run, or one color per recipe and one dash per run of it."""
    if analysis.comparison is None:
        return f"@s{number % len(SERIES)}", DASHES[0]
    side = analysis.runs[number].side
    place = number - (len(analysis.comparison.sides[0]) if side else 0)
    return f"@s{side}", DASHES[place % len(DASHES)]
