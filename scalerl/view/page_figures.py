"""The figures of pages as plotly JSON: those of a page about runs, and the parts that all pages use.

A color is a name such as "@s0", or "@s0/0.2" with an opacity; the page's script replaces it by the color of the
theme. plotly is not imported.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalerl.scaling import Band, Curve, Estimate, Fit, Frontier
from scalerl.scaling.curve import UNITS
from scalerl.scaling.forecast import band_text
from scalerl.scaling.settings import Setting, setting_text
from scalerl.types import EvalPoint
from scalerl.view.analysis import COLORS, DASHES, Analysis, RunAnalysis, Slope, common_unit, height_range
from scalerl.view.figures import FORECAST_END, metric_name

LOG = {"type": "log", "dtick": "D2"}
"""A logarithmic axis labeled at 1, 2 and 5."""

SHOWN = 2000
"""Number of evaluations above which a figure leaves some out."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure: title, caption and drawing.

    Example: `Figure("Curves", "What to see.", [{"x": [1], "y": [2]}], {"xaxis": {"title": {"text": "compute"}}})`
    """

    title: str
    caption: str
    data: list[Json]
    layout: Json
    wide: bool = False
    """Whether the figure is as wide as the page."""
    choices: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Choices for the reader, by name, with the effect of each option: `{"layout": ...}` changes the figure's
    layout, `{"data": ...}` is drawn in addition. The first option is the default."""


# ------------------------------------------------------------------------------------------------------------- parts


def plain(values: ArrayLike | Iterable[float]) -> list[float | None]:
    """Return numbers rounded to six digits; infinite and NaN become None, which plotly leaves out."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).ravel()]


def thinned(values: Any) -> Any:
    """Return a sequence, or every so many of its values if it is longer than `SHOWN`."""
    return values[:: max(1, -(-len(values) // SHOWN))]


def number_html(value: float) -> str:
    """Return a number such as `4.2e+11` as HTML for pages and plotly, with the power of ten as a superscript."""
    digits, e, power = f"{value:.3g}".partition("e")
    return f"{digits}×10<sup>{int(power)}</sup>" if e else digits


def titled(x: str, y: str) -> Json:
    """Return a layout with titles of both axes."""
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def compute_axes(least: float, most: float) -> dict[str, Json]:
    """Return the options for an x axis of compute: logarithmic over a span, or linear."""
    return {
        "logarithmic": {"layout": {"xaxis": {**LOG, "range": plain(np.log10([least, most]))}}},
        "linear": {"layout": {"xaxis": {"type": "linear"}}},
    }


def grid_to(least: float, *ends: float) -> Any:
    """Return amounts of compute from 0 to the last of the ends, which it contains; dense on linear and log axes."""
    spaced = np.linspace(0, ends[-1], 61)
    return np.unique(np.concatenate([spaced, ends, np.geomspace(0.5 * least, ends[-1], 100)]))


def evaluations(curve: Curve, color: str, name: str, symbol: int = 0) -> Json:
    """Return the trace of a curve's points, with their standard errors; the name is plain text."""
    name = html.escape(name)
    trace: Json = {
        "mode": "markers", "name": name, "x": plain(thinned(curve.compute)), "y": plain(thinned(curve.metric)),
        "marker": {"color": color, "size": 6, "symbol": symbol},
        "hovertemplate": f"{curve.unit} %{{x:.4g}}<br>%{{y:.3f}}<extra>{name}</extra>",
    }  # fmt: skip
    if curve.stderr is not None:
        error = {"array": plain(thinned(curve.stderr)), "width": 0, "thickness": 1}
        trace["error_y"] = {**error, "color": f"{color.partition('/')[0]}/0.5"}
    return trace


def line(x: ArrayLike, y: ArrayLike, color: str, width: float = 2, dash: str = "solid") -> Json:
    """Return the trace of a line without an entry in the legend."""
    style = {"color": color, "width": width, "dash": dash}
    return {"mode": "lines", "showlegend": False, "x": plain(x), "y": plain(y), "line": style}


def band_traces(band: Band, color: str, group: Json) -> list[Json]:
    """Return the two traces of a 90% band."""
    edge: Json = {**group, "showlegend": False, "hoverinfo": "skip", "mode": "lines", "line": {"width": 0}}
    x = plain(band.compute)
    filled = {"fill": "tonexty", "fillcolor": f"{color}/0.16"}
    return [{**edge, "x": x, "y": plain(band.low)}, {**edge, "x": x, "y": plain(band.high), **filled}]


def whiskers(*estimates: Estimate) -> Json:
    """Return the 90% intervals as plotly error bars, one for each point."""
    up, down = ([e.high - e.mean for e in estimates], [e.mean - e.low for e in estimates])
    return {"type": "data", "symmetric": False, "array": plain(up), "arrayminus": plain(down)}


def intervals(
    estimates: Sequence[Estimate], heights: Sequence[float], names: Sequence[str], color: str, *, bold: bool = False
) -> Json:
    """Return the trace of estimates as dots with lines for their 90% intervals; the names are plain text."""
    texts = [f"<b>{html.escape(name)}</b><br>{html.escape(str(e))}" for name, e in zip(names, estimates, strict=True)]
    return {
        "mode": "markers", "showlegend": False, "x": plain([e.mean for e in estimates]), "y": plain(heights),
        "marker": {"color": color, "size": 11 if bold else 7},
        "error_x": {**whiskers(*estimates), "color": color, "thickness": 3 if bold else 1.5, "width": 0},
        "text": texts, "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def name_axis(names: Sequence[str], bold: Sequence[bool] = ()) -> Json:
    """Return a y axis with a row for each name; long ones are cut to their ends, because the ends of paths differ."""
    cut = [html.escape(name if len(name) <= 24 else "…" + name[-23:]) for name in names]
    shown = [f"<b>{name}</b>" if thick else name for name, thick in zip(cut, bold or [False] * len(cut), strict=True)]
    ticks = {"tickvals": [-i for i in range(len(names))], "ticktext": shown, "showgrid": False}
    return {**ticks, "range": [-len(names) + 0.4, 0.6]}


STRAIGHT = (
    "In these coordinates the law is a straight line with slope B: F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B. "
    "Near the ceiling, noise scatters the points."
)
"""Explanation of a figure of slopes, for its caption."""


def straight(slopes: Sequence[Slope], unit: float, style: tuple[str, str], width: float = 2) -> list[Json]:
    """Return the line of one recipe, with the geometric mean of B over its runs, and the points of each run."""
    spans = np.stack([slope.span for slope in slopes])
    efficiency = float(np.exp(np.mean([np.log(slope.efficiency) for slope in slopes])))
    span = np.array([spans[:, 0].min(), spans[:, 1].max()])
    mean = replace(slopes[0], efficiency=efficiency, span=span)
    color, dash = style
    group = {"legendgroup": mean.label, "name": f"{html.escape(mean.label)}: B = {efficiency:.2f}", "showlegend": False}
    points = [
        {**group, "mode": "markers", "x": plain(thinned(slope.compute / unit)), "y": plain(thinned(slope.level(unit))),
         "marker": {"color": f"{color}/0.75", "size": 6, "symbol": (DASHES.index(dash) + number) % 8},
         "hovertemplate": f"C %{{x:.3g}}<br>F %{{y:.3g}}<extra>{html.escape(mean.label)}</extra>"}
        for number, slope in enumerate(slopes)
    ]  # fmt: skip
    law = line(span / unit, mean.line(span, unit), color, width, dash)
    return [{**law, **group, "hoverinfo": "skip", "showlegend": True}, *points]


def slope_layout(slopes: Sequence[Slope], unit: float, axis: str) -> Json:
    """Return axes for straight lines."""
    layout = titled(f"compute in units of {number_html(unit)} {axis}", "F(R) = C^B")
    layout["xaxis"] |= {**LOG, "exponentformat": "none"}
    layout["yaxis"] |= {"type": "log", "range": plain(np.log10(height_range(slopes, unit))), "dtick": 1}
    return layout


def without_level(slopes: Sequence[Slope]) -> str:
    """Return a sentence with the number of points that a figure of slopes cannot show; empty if there are none."""
    dropped = sum(slope.dropped for slope in slopes)
    return f" {dropped} points at or above A, or at or below R0, have no F and are not drawn." if dropped else ""


def curve_traces(
    name: str, curve: Curve, fit_result: Fit, style: tuple[str, str], least: float, aside: float
) -> list[Json]:
    """Return the traces of a run, in this order: band (two), fit, forecast, points, ceiling.

    Args:
        name: Name of the run, plain text.
        curve: Points of the run, including those left out of the fit.
        fit_result: Fit of the run.
        style: Color and dash.
        least: Least compute above 0 of the figure.
        aside: Factor beyond the forecast at which the ceiling is drawn.
    """
    last, ceiling = fit_result.last_compute, fit_result.asymptote
    # on a log axis, the segment from 0 is a horizontal line left of the range
    grid = grid_to(least, last, FORECAST_END * last)
    band = fit_result.predict(grid)
    color, dash = style
    is_past, is_future = grid <= last, grid >= last
    group: Json = {"name": html.escape(name), "legendgroup": name}
    points = evaluations(curve, color, name, DASHES.index(dash))
    end = {"x": plain([FORECAST_END * last * aside]), "y": plain([ceiling.mean])}
    mark = {"marker": {"color": color, "size": 9, "symbol": "line-ew-open"}, "mode": "markers", "showlegend": False}
    return [
        *band_traces(band, color, group),
        {**line(grid[is_past], band.mean[is_past], color), **group, "hoverinfo": "skip"},
        {**line(grid[is_future], band.mean[is_future], color, dash="dash"), **group,
         "hovertemplate": "forecast<br>" + points["hovertemplate"]},
        {**points, **group},
        {**group, **end, **mark, "error_y": {**whiskers(ceiling), "color": color, "width": 5},
         "hovertemplate": f"ceiling A: %{{y:.3f}}<extra>{group['name']}</extra>"},
    ]  # fmt: skip


def frontier_figure(frontier: Frontier, runs: Sequence[tuple[Curve, Setting]]) -> Figure:
    """Return the figure of the points of runs, the curve of each setting, and the best level at each compute."""
    compute_M, settings, mean_SM, best, low_M, high_M = frontier.envelope
    names, curves = [setting_text(setting) for setting in settings], [curve for curve, _ in runs]
    last = 3 * max(frontier.budget, *(curve.last_compute for curve in curves))
    best_M, compute_M = np.array(best)[compute_M <= last], compute_M[compute_M <= last]
    leaders = list(dict.fromkeys(best_M.tolist()))
    colors = {names[s]: f"@s{i % COLORS}" for i, s in enumerate(leaders)}
    data: list[Json] = []
    for curve, setting in runs:
        color = colors.get(setting_text(setting), "@muted")
        dots = evaluations(replace(curve, stderr=None), f"{color}/0.25", setting_text(setting))
        data.append({**dots, "showlegend": False})
    for name, mean_M in zip(names, mean_SM, strict=True):
        labels = {"name": html.escape(name), "hovertemplate": f"%{{y:.3f}}<extra>{html.escape(name)}</extra>"}
        data.append({**line(compute_M, mean_M[: len(compute_M)], colors.get(name, "@muted/0.5"), 1.2, "dot"), **labels})
    level_M = mean_SM[best_M, np.arange(len(best_M))]
    data += band_traces(Band(compute_M, level_M, low_M[: len(best_M)], high_M[: len(best_M)], low_M), "@ink", {})
    for s in leaders:
        is_best_M = (best_M == s) | (np.append(best_M[0], best_M[:-1]) == s)  # to the beginning of the next stretch
        stretch = line(compute_M, np.where(is_best_M, level_M, np.nan), colors[names[s]], 4)
        data.append({**stretch, "name": html.escape(names[s]), "showlegend": True, "hoverinfo": "skip"})
    caption = (
        f"Dots are {dots_of(curves)}, dotted lines the predicted curves of settings. The thick line is the frontier, "
        "the best level at each compute, in the color of the setting that is best there, with its 90% band."
    )
    axes = compute_axes(min(float(curve.compute[curve.compute > 0][0]) for curve in curves), last)
    layout = titled(f"compute of one run ({frontier.unit})", metric_name(curves[0]))
    return Figure("What a budget buys", caption, data, layout, True, {"Compute axis": axes})


# -------------------------------------------------------------------------------------------------- one run directory


def points_figure(points: Sequence[EvalPoint], axis: str, task: str) -> Figure:
    """Return the figure of a task's evaluations, which have no fit yet."""
    share_text, points = left_out([len(points)]), thinned(points)
    compute = [float(getattr(point, axis)) for point in points]
    unit = UNITS.get(axis, axis)
    trace: Json = {
        "mode": "markers", "name": html.escape(task), "x": plain(compute), "y": plain([p.pass_rate for p in points]),
        "marker": {"color": "@s0", "size": 6}, "hovertemplate": "%{x:.4g}<br>%{y:.3f}<extra></extra>",
        "error_y": {"array": plain([p.stderr for p in points]), "width": 0, "thickness": 1, "color": "@s0/0.5"},
    }  # fmt: skip
    caption = (
        f"Dots are {share_text}held-out evaluations with one standard error. A curve is fitted and continued as a "
        "forecast from the fifth evaluation on."
    )
    layout = titled(f"training compute ({unit})", "held-out pass rate")
    return Figure("Curves and forecasts", caption, [trace], layout, True)


def young_figure(curve: Curve) -> Figure:
    """Return the figure of the points of a log that has no fit yet."""
    dots = dots_of([curve])
    caption = f"Dots are {dots}. A curve is fitted and continued as a forecast from the fifth on."
    layout = titled(f"training compute ({curve.unit})", metric_name(curve))
    return Figure("Curves and forecasts", caption, [evaluations(curve, "@s0", curve.label)], layout, True)


def series_figure(series: Sequence[tuple[str, Json]], metric: Json) -> Figure:
    """Return the figure of one metric of one or more runs.

    Args:
        series: Name of each run, and its lists x, low, mean and high, as from `series.bucketed`.
        metric: Description of the metric: name, label, unit, meaning, bounds, share.
    """
    several = len(series) > 1
    unit = f" ({metric['unit']})" if metric["unit"] else ""
    data: list[Json] = []
    for number, (name, values) in enumerate(series):
        color, dash = f"@s{number % COLORS}", DASHES[number // COLORS % len(DASHES)]
        group: Json = {"legendgroup": str(number), "name": html.escape(name), "mode": "lines", "x": values["x"]}
        quiet = {**group, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        extra = html.escape(name) if several else ""
        data += [
            {**quiet, "y": values["low"]},
            {**quiet, "y": values["high"], "fill": "tonexty", "fillcolor": f"{color}/0.18"},
            {**group, "y": values["mean"], "line": {"color": color, "width": 1.7, "dash": dash},
             "hovertemplate": f"step %{{x:.0f}}: %{{y:.4g}}<extra>{extra}</extra>"},
        ]  # fmt: skip
    bounds = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound,
         "line": {"color": "@s1", "width": 1, "dash": "dot"}}
        for bound in metric["bounds"] if bound > 0
    ]  # fmt: skip
    share = metric["share"]
    layout = titled("step", f"{html.escape(metric['label'])}{html.escape(unit)}") | {"showlegend": several}
    layout["yaxis"] |= {"tickformat": ".1%" if share else "", "rangemode": "nonnegative" if share else "normal"}
    scales: dict[str, Json] = {
        "linear": {"layout": {"shapes": bounds, "yaxis": {"type": "linear"}}},
        "logarithmic": {"layout": {"shapes": [], "yaxis": {"type": "log"}}},
    }
    meaning = metric["meaning"][:1].upper() + metric["meaning"][1:]
    caption = f"{meaning}{unit}. The band is the range over neighboring steps."
    return Figure(metric["label"], caption, data, layout, True, {"Scale": scales})


def metric_figure(runs: Sequence[tuple[str, Sequence[Json]]]) -> Figure | None:
    """Return the figure of one metric of several runs, which the reader chooses; None if they have none.

    Args:
        runs: Name of each run, and its metrics as from `FollowedRun.metrics`.
    """
    described = {metric["name"]: metric for _, metrics in runs for metric in metrics}
    options: dict[str, Json] = {}
    for name in [name for name in ("pass_rate",) if name in described] + [n for n in described if n != "pass_rate"]:
        series = [(run, metric) for run, metrics in runs for metric in metrics if metric["name"] == name]
        figure = series_figure(series, described[name])
        layout = {**figure.layout, "shapes": figure.choices["Scale"]["linear"]["layout"]["shapes"], "showlegend": True}
        options[f"{described[name]['group']}: {described[name]['label']}"] = {"data": figure.data, "layout": layout}
    if not options:
        return None
    caption = "Lines are means over neighboring steps, and bands their range. Dotted lines are healthy bounds."
    return Figure("One metric of all runs", caption, [], {}, True, {"Metric": options})


def dots_of(curves: Sequence[Curve]) -> str:
    """Return what the points of some curves are, and how many of them a figure has if it leaves some out."""
    kind = "rewards of training, not held out" if any(curve.training for curve in curves) else "held-out evaluations"
    return f"{part}{kind}" if (part := left_out([len(curve) for curve in curves])) else kind


def drawn_part(counts: Sequence[int]) -> str:
    """Return a sentence with the number of points that are drawn, if a figure leaves some out; else nothing."""
    return f" {part}points are drawn." if (part := left_out(counts)) else ""


def left_out(counts: Sequence[int]) -> str:
    """Return "2,000 of 30,000 " if a figure leaves out some of so many points of each run; else nothing."""
    shown = sum(len(thinned(range(count))) for count in counts)
    return f"{shown:,} of {sum(counts):,} " if shown < sum(counts) else ""


# -------------------------------------------------------------------------------------------------------------- curves


def curves(analysis: Analysis) -> Figure:
    """Return the figure of points, fits, bands, forecasts and ceilings of all runs."""
    least = min(float(run.source.curve.compute[run.source.curve.compute > 0][0]) for run in analysis.runs)
    aside = [1.05 * 1.03**number for number in range(len(analysis.runs) + 2)]  # so that ceilings do not overlap
    data = [
        trace
        for number, run in enumerate(analysis.runs)
        for trace in curve_traces(run.source.name, run.source.curve, run.outlook.fit, run.style, least, aside[number])
    ]
    layout = titled(f"training compute ({analysis.axis})", metric_name(analysis.runs[0].source.curve))
    caption = (
        f"Dots are {dots_of([run.source.curve for run in analysis.runs])}. Lines are the fitted law with its 90% band, "
        "dashed where it is a forecast. The mark at the right end is the ceiling A of the climb, with a 90% interval. "
        f"{bands_text([run.outlook.fit for run in analysis.runs])} Click a name to hide its run."
    )
    furthest = max(run.outlook.fit.last_compute for run in analysis.runs)
    axes = compute_axes(0.6 * least, FORECAST_END * furthest * aside[-1])
    return Figure("Curves and forecasts", caption, data, layout, True, {"Compute axis": axes})


def bands_text(fits: Sequence[Fit]) -> str:
    """Return what the bands of a figure mean: with the numbers of one run, or in general for several."""
    if len(fits) == 1:
        return band_text(fits[0])
    return "The bands have the level of each curve; one evaluation scatters around it."


def suites(analysis: Analysis) -> Figure | None:
    """Return the figure of the evaluation suites, with standard errors and without a fit; None if no run has any."""
    names = list(dict.fromkeys(suite.label for run in analysis.runs for suite in run.source.suites))
    if not names:
        return None
    alone = len(analysis.runs) == 1
    data = []
    for number, run in enumerate(analysis.runs):
        for suite in run.source.suites:
            color = f"@s{names.index(suite.label) % COLORS}"
            trace = evaluations(suite, color, suite.label if alone else f"{suite.label}, {run.source.name}")
            dash = {"color": color, "width": 1.5, "dash": DASHES[number % len(DASHES)]}
            data.append({**trace, "mode": "lines+markers", "showlegend": True, "line": dash})
    several = "" if alone else " Each suite has a color, and each run a dash."
    caption = (
        "Results on suites that are only evaluated. Bars are one standard error over the prompts of the suite. Suites "
        f"have no fit and no forecast.{several}"
        f"{drawn_part([len(suite) for run in analysis.runs for suite in run.source.suites])}"
    )
    layout = titled(f"training compute ({analysis.axis})", "mean pass rate")
    return Figure("Evaluation suites", caption, data, layout, wide=True)


def slopes(analysis: Analysis) -> Figure:
    """Return the figure of all runs as straight lines at the common ceiling."""
    lines = [run.slope for run in analysis.runs]
    unit = common_unit(lines)
    data = [trace for run in analysis.runs for trace in straight([run.slope], unit, run.style)]
    caption = f"Each run is fitted again with its ceiling fixed at the common A = {analysis.ceiling:.3f}. {STRAIGHT}"
    caption += without_level(lines)
    if analysis.comparison and analysis.comparison.verdict == "higher ceiling":
        caption += " Here the ceilings differ, so the common one fits neither side: do not rely on these slopes."
    layout = slope_layout(lines, unit, analysis.axis)
    return Figure("Steepness B at one ceiling", caption, data, layout, wide=True)


def ceilings(analysis: Analysis) -> Figure:
    """Return the figure of A with intervals, by run and by recipe."""
    return _estimates(analysis, "asymptote", "Ceiling A of each climb", "ceiling A of the climb")


def steepness(analysis: Analysis) -> Figure:
    """Return the figure of B with intervals, by run and by recipe; at the common ceiling if recipes are compared."""
    at = f"B at the common A = {analysis.ceiling:.3f}" if analysis.sides else "steepness B"
    return _estimates(analysis, "efficiency", "Steepness B", at)


def _estimates(analysis: Analysis, quantity: str, title: str, axis: str) -> Figure:
    """Return a figure with a row for each run; if recipes are compared, with a thick row above the runs of each."""
    rows: list[tuple[str, Estimate, str, bool]] = []
    for number, side in enumerate(analysis.sides.get(quantity, ())):
        recipe = analysis.comparison.names[number] if analysis.comparison else ""
        rows.append((f"{recipe}, recipe", side.recipe, f"@s{number}", True))
        names = [run.source.name for run in analysis.runs if run.side == number]
        rows += [(run, estimate, f"@s{number}", False) for run, estimate in zip(names, side.runs, strict=True)]
    if not rows:
        rows = [(run.source.name, getattr(run.outlook.fit, quantity), run.style[0], False) for run in analysis.runs]
    data = [intervals([e], [-i], [name], color, bold=bold) for i, (name, e, color, bold) in enumerate(rows)]
    layout = titled(axis, "") | {"yaxis": name_axis([row[0] for row in rows], [row[3] for row in rows])}
    recipes = " Thick lines are recipes and include the scatter of seeds." if analysis.sides else ""
    return Figure(title, f"Lines are 90% intervals.{recipes}", data, {**layout, "height": 140 + 32 * len(rows)})


def backtests(analysis: Analysis) -> Figure | None:
    """Return the figure of earlier forecasts of each run, with a slider; None if no run is long enough."""
    choices = {run.source.name: _earlier_forecasts(run) for run in analysis.runs if run.parts}
    if not choices:
        return None
    caption = (
        "How the forecast looked earlier: move the slider to a share of the run's compute. The fit knows the run up to "
        "where its line begins. The band, of single evaluations, should contain nine of ten of those after it."
        f"{drawn_part([len(run.source.curve) for run in analysis.runs if run.parts])}"
    )
    layout = titled(f"training compute ({analysis.axis})", metric_name(analysis.runs[0].source.curve))
    return Figure("Backtest: earlier forecasts", caption, [], layout, True, {"Run": choices})


def _earlier_forecasts(run: RunAnalysis) -> Json:
    """Return the traces of every earlier forecast, of which one is visible, and the slider that chooses it.

    The name of a forecast says how many of the evaluations after it are in its band.
    """
    curve, traces, steps = run.source.curve, list[Json](), list[Json]()
    start = len(run.parts) // 2
    for number, part in enumerate(run.parts):
        # few points, because the ends of a band with noise are random
        band = part.predict(np.linspace(part.last_compute, curve.last_compute, 24), noise=True)
        share, later_N = part.last_compute / curve.last_compute, curve.compute > part.last_compute
        low_N, high_N = (np.interp(curve.compute[later_N], band.compute, end) for end in (band.low, band.high))
        inside = int(((low_N <= curve.metric[later_N]) & (curve.metric[later_N] <= high_N)).sum())
        name = (
            f"from {share:.0%}: {band.mean[-1]:.3f} ({band.low[-1]:.3f} to {band.high[-1]:.3f}) at the end; "
            f"{inside} of {int(later_N.sum())} later evaluations are in the band"
        )
        group, visible = {"legendgroup": str(number)}, {"visible": number == start}
        forecast = {**line(band.compute, band.mean, "@s0"), **group, "name": name, "showlegend": True}
        traces += [{**trace, **visible} for trace in (*band_traces(band, "@s0", group), forecast)]
        shown = [at // 3 == number for at in range(3 * len(run.parts))]
        steps.append({"label": f"{share:.0%}", "method": "restyle", "args": [{"visible": [*shown, True]}]})
    slider = {
        "active": start, "steps": steps, "pad": {"t": 50}, "currentvalue": {"prefix": "as of ", "xanchor": "left"},
        "bgcolor": "@line", "activebgcolor": "@s0", "bordercolor": "@line", "tickcolor": "@line",
    }  # fmt: skip
    points = evaluations(replace(curve, stderr=None), "@ink", "evaluations")
    return {"data": [*traces, points], "layout": {"sliders": [slider]}}


Make = Callable[[Analysis], Figure | None]
ORDER: tuple[Make, ...] = (curves, suites, ceilings, steepness, slopes, backtests)
FIGURES = {make.__name__: make for make in ORDER}
"""The figures in the order of the page."""
