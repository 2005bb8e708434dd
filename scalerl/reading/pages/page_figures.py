"""The figures of a page about runs, and the parts that all figures use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from scalerl.reading.curves import Comparison, Curve, Estimate, Fit, Frontier
from scalerl.reading.curves.comparison import side_band
from scalerl.reading.curves.forecast import band_text
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.settings import Setting, setting_text
from scalerl.reading.pages.analysis import COLORS, Analysis, RunAnalysis, Slope, climb_ends, common_unit, height_range
from scalerl.reading.pages.figure import (
    Axis,
    Errors,
    Figure,
    FigurePart,
    Json,
    Line,
    Points,
    Rule,
    Series,
    ShadedBand,
    Span,
    powers_text,
)

FORECAST_END = 4.0
"""End of the drawn forecasts, in multiples of the last point's compute."""

MULTIPLES = np.array([2.0, FORECAST_END])
"""Where the forecast of a single run is marked and its level is given, in multiples of the last point's compute."""

MOST_SHOWN = 2000
"""Number of evaluations above which a figure leaves some out."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""Dashes of runs that share a color."""

SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "triangle-left")
"""Symbols of the seeds of a recipe."""

# ------------------------------------------------------------------------------------------------------------- parts


def thinned_points(values: Any) -> Any:
    """Return a sequence, or every so many of its values if it is longer than `MOST_SHOWN`."""
    return values[:: max(1, -(-len(values) // MOST_SHOWN))]


def compute_options(compute: str, title: str, least: float, most: float) -> dict[str, FigurePart]:
    """Return the options for an x axis of compute: logarithmic over a span, or linear."""
    return {
        "logarithmic": FigurePart(x=Axis(title, "log", compute, (least, most))),
        "linear": FigurePart(x=Axis(title, "linear", compute)),
    }


def grid_to(least: float, *ends: float) -> Any:
    """Return amounts of compute from 0 to the last of the ends, which it contains; dense on linear and log axes."""
    spaced = np.linspace(0, ends[-1], 61)
    return np.unique(np.concatenate([spaced, ends, np.geomspace(0.5 * least, ends[-1], 100)]))


def evaluation_points(curve: Curve, color: str, name: str, symbol: str = "circle", **more: Any) -> Points:
    """Return a curve's points, with their standard errors."""
    errors = None if curve.stderr is None else Errors(thinned_points(curve.stderr), f"{color.partition('/')[0]}/0.5")
    return Points(
        x=thinned_points(curve.compute), y=thinned_points(curve.metric), color=color, name=name, symbol=symbol,
        errors=errors, hover=f"{curve.unit} %{{x:.4g}}<br>%{{y:.3f}}", **more,
    )  # fmt: skip


def whiskers(*estimates: Estimate) -> Any:
    """Return the lengths of 90% intervals below and above their means, shape (2, N)."""
    return np.array([[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]])


def intervals(
    estimates: Sequence[Estimate], heights: Sequence[float], names: Sequence[str], color: str, *, bold: bool = False,
    **more: Any,
) -> Points:  # fmt: skip
    """Return estimates as dots with lines for their 90% intervals, a row for each."""
    return Points(
        x=[e.mean for e in estimates], y=heights, color=color, size=11 if bold else 7,
        errors=Errors(whiskers(*estimates), color, 3 if bold else 1.5, along="x"),
        texts=[f"{name}\n{e}" for name, e in zip(names, estimates, strict=True)], **more,
    )  # fmt: skip


def name_axis(names: Sequence[str], below: float = 0.6) -> Axis:
    """Return a y axis with a row for each name; long ones are cut to their ends, because the ends of paths differ."""
    cut = [name if len(name) <= 24 else "…" + name[-23:] for name in names]
    return Axis(ticks={-i: name for i, name in enumerate(cut)}, limits=(-len(names) + 1 - below, 0.6))


STRAIGHT = (
    "In these coordinates the law is a straight line with slope B: F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B. "
    "Near the ceiling, noise scatters the points."
)
"""Explanation of a figure of slopes, for its caption."""


def straight_lines(
    slopes: Sequence[Slope], unit: float, color: str, width: float = 2, *, legend: bool = True
) -> list[Series]:
    """Return the line of one recipe, with the geometric mean of B over its runs, and the points of each run."""
    spans = np.stack([slope.span for slope in slopes])
    efficiency = float(np.exp(np.mean([np.log(slope.efficiency) for slope in slopes])))
    span = np.array([spans[:, 0].min(), spans[:, 1].max()])
    mean = replace(slopes[0], efficiency=efficiency, span=span)
    label = mean.label
    law = Line(
        x=span / unit, y=mean.line(span, unit), color=color, width=width, group=label, legend=legend,
        name=f"{label}: B = {efficiency:.2f}",
    )  # fmt: skip
    return [law] + [
        Points(
            x=thinned_points(slope.compute / unit), y=thinned_points(slope.level(unit)), color=f"{color}/0.75",
            group=label, symbol=symbol, hover="C %{x:.3g}<br>F %{y:.3g}", name=label,
        )
        for slope, symbol in zip(slopes, cycle(SYMBOLS), strict=False)
    ]  # fmt: skip


def slope_axes(slopes: Sequence[Slope], unit: float, axis: str) -> tuple[Axis, Axis]:
    """Return axes for straight lines."""
    x = Axis(f"compute in units of {powers_text(unit)} {axis}", "log")
    return x, Axis("F(R) = C^B", "log", limits=height_range(slopes, unit))


def without_level(slopes: Sequence[Slope]) -> str:
    """Return a sentence with the number of points that a figure of slopes cannot show; empty if there are none."""
    dropped = sum(slope.dropped for slope in slopes)
    return f" {dropped} points at or above A, or at or below R0, have no F and are not drawn." if dropped else ""


def dots_of(curves: Sequence[Curve]) -> str:
    """Return what the points of some curves are, and how many of them a figure has if it leaves some out."""
    kind = "rewards of training, not held out" if any(curve.training for curve in curves) else "held-out evaluations"
    return f"{part}{kind}" if (part := left_out_points([len(curve) for curve in curves])) else kind


def drawn_part(counts: Sequence[int]) -> str:
    """Return a sentence with the number of points that are drawn, if a figure leaves some out; else nothing."""
    return f" {part}points are drawn." if (part := left_out_points(counts)) else ""


def left_out_points(counts: Sequence[int]) -> str:
    """Return "2,000 of 30,000 " if a figure leaves out some of so many points of each run; else nothing."""
    shown = sum(len(thinned_points(range(count))) for count in counts)
    return f"{shown:,} of {sum(counts):,} " if shown < sum(counts) else ""


# -------------------------------------------------------------------------------------------------------------- curves


class RecipeRuns(NamedTuple):
    """One recipe of a figure of curves: a single run, or its seeds."""

    name: str
    color: str
    runs: Sequence[tuple[str, Curve, Fit]]
    """Name of each run, all of its points, also those left out of the fit, and its fit."""


def recipes_of(comparison: Comparison, runs: Sequence[tuple[str, Curve]] = ()) -> list[RecipeRuns]:
    """Return the recipes of a comparison; names and all points of its runs are those of its fits, or as given."""
    listed = iter(runs or [(f.curve.label, f.curve) for side in comparison.sides for f in side])
    return [
        RecipeRuns(name, f"@s{number}", [(*next(listed), f) for f in side])
        for number, (name, side) in enumerate(zip(comparison.names, comparison.sides, strict=True))
    ]


def curves_figure(recipes: Sequence[RecipeRuns], comparison: Comparison | None = None) -> Figure:
    """Return the figure of points, mean curves, bands, forecasts and ceilings.

    The levels of recipes that are compared are those that the comparison uses. A single run has its levels and its
    ceiling in the legend.
    """
    runs = [run for recipe in recipes for run in recipe.runs]
    first = runs[0][1]
    if len(runs) == 1:
        return _single(*runs[0][1:])
    least, end = min(_least(curve) for _, curve, _ in runs), 0.0
    bands, seeds, points, lines = list[Series](), list[Series](), list[Series](), list[Series]()
    for number, (name, color, members) in enumerate(recipes):
        fits = [f for _, _, f in members]
        last = max(f.last_compute for f in fits)
        grid = grid_to(least, last, FORECAST_END * last)
        group: Json = {"color": color, "group": name}
        levels = side_band(fits, grid, comparison.seed_sd) if comparison else fits[0].predict(grid)
        ceiling = climb_ends(comparison)[number].recipe if comparison else fits[0].asymptote
        bands.append(ShadedBand(x=grid, low=levels.low, high=levels.high, edges=True, **group))
        if len(members) > 1:
            faint = f"{color}/0.4"
            for run, _, f in members:
                seeds.append(mean_lines(run, grid, f.mean(grid), f.last_compute, faint, 1, name)[0])
            points += seed_points(name, [member[:2] for member in members], faint)
        else:
            points.append(evaluation_points(members[0][1], f"{color}/0.75", name, group=name))
        lines += mean_lines(name, grid, levels.mean, last, color)
        end = max(end, FORECAST_END * last) * 1.04  # so that the marks of ceilings do not overlap
        mark: Json = {"x": [end], "y": [ceiling.mean], "size": 9, "symbol": "line-ew-open"}
        bars = Errors(whiskers(ceiling), color, 2, 5)
        lines.append(Points(**mark, errors=bars, name=name, hover="ceiling A: %{y:.3f}", **group))
    options = compute_options(first.axis, "training compute", 0.6 * least, 1.05 * end)
    of_seeds = ""
    if comparison:
        of_seeds = (
            " Thick lines, bands and ceilings are those of the recipes, as compared: with the scatter of seeds, but "
            "without improbable later rises. Thin lines are runs."
        )
    caption = (
        f"Dots are {dots_of([curve for _, curve, _ in runs])}. Lines are the fitted law with its 90% band, dashed "
        f"where it is a forecast.{of_seeds} The mark at the right end is the ceiling A of the climb, with a 90% "
        "interval. The bands have the level of each curve; one evaluation scatters around it. Click a name to hide it."
    )
    return Figure([*bands, *seeds, *points, *lines], *_axes(first), title="Curves and forecasts", caption=caption,
                  wide=True, choices={"Compute axis": options})  # fmt: skip


def _single(curve: Curve, f: Fit) -> Figure:
    """Return the figure of one run."""
    least, last, end, ceiling = _least(curve), f.last_compute, FORECAST_END * f.last_compute, f.asymptote
    grid = grid_to(least, last, end)
    levels = f.predict(grid)
    at = MULTIPLES * last
    ahead = ", ".join(f"{level:.3f} at {times:.0f}×" for level, times in zip(f.mean(at), MULTIPLES, strict=True))
    fitted, forecast = mean_lines("", grid, levels.mean, last, "@s0")
    of_ceiling: Json = {"color": "@s1", "x": np.array([last, 1.06 * end])}
    reached = f"ceiling of this climb, A = {ceiling:.3f}" + ("" if f.identified else ", not identified yet")
    series = [
        ShadedBand(low=[ceiling.low] * 2, high=[ceiling.high] * 2, **of_ceiling),
        ShadedBand(x=grid, low=levels.low, high=levels.high, color="@s0"),
        replace(fitted, name="fit with its 90% band"),
        replace(forecast, name=f"forecast, {ahead}", legend=True),
        evaluation_points(curve, "@ink", dots_of([curve]) + ("" if curve.stderr is None else " ± s.e."), legend=True),
        Points(x=at, y=f.mean(at), size=8, symbol="circle-open", color="@s0"),
        Line(y=[ceiling.mean] * 2, width=1.5, dash="dash", name=reached, legend=True, **of_ceiling),
    ]
    before = [Rule(float(curve.metric[0]), "@muted", "y", "before training")] if curve.compute[0] == 0 else []
    caption = (
        f"Dots are {dots_of([curve])}. The line is the fitted law with its 90% band, dashed where it is a forecast. "
        f"The other band is the 90% interval of the ceiling A of the climb. {band_text(f)}"
    )
    return Figure(
        series, *_axes(curve), [*before, Span(last, 1.06 * end, "@muted/0.08")], title="Curves and forecasts",
        caption=caption, wide=True,
        choices={"Compute axis": compute_options(curve.axis, "training compute", 0.6 * least, 1.06 * end)},
    )  # fmt: skip


def mean_lines(
    name: str, compute_M: Array, level_M: Array, last: float, color: str, width: float = 2.0, group: str = ""
) -> list[Line]:
    """Return the mean of a recipe up to its last compute, and its forecast; it is in the legend unless of a group."""
    style: Json = {"name": name, "group": group or name, "color": color, "width": width}
    past_M, later_M = compute_M <= last, compute_M >= last
    return [
        Line(x=compute_M[past_M], y=level_M[past_M], legend=not group, hover="%{y:.3f}", **style),
        Line(x=compute_M[later_M], y=level_M[later_M], dash="dash", hover="forecast<br>%{x:.4g}<br>%{y:.3f}", **style),
    ]


def seed_points(name: str, curves: Iterable[tuple[str, Curve]], color: str) -> list[Points]:
    """Return the points of a recipe's runs, each with its name, with a symbol for each and without standard errors."""
    return [
        evaluation_points(replace(curve, stderr=None), color, run, symbol, group=name)
        for (run, curve), symbol in zip(curves, cycle(SYMBOLS), strict=False)
    ]


def young_figure(curve: Curve) -> Figure:
    """Return the figure of the points of a run that has no fit yet."""
    dots = dots_of([curve])
    caption = f"Dots are {dots}. A curve is fitted and continued as a forecast from the fifth on."
    points = evaluation_points(curve, "@s0", curve.label)
    return Figure([points], *_axes(curve), title="Curves and forecasts", caption=caption, wide=True)


def _axes(curve: Curve) -> tuple[Axis, Axis]:
    return Axis("training compute", compute=curve.axis), Axis(metric_name(curve))


def _least(curve: Curve) -> float:
    """Return the least compute above 0."""
    return float(curve.compute[curve.compute > 0][0])


def metric_name(curve: Curve) -> str:
    """Return the metric's own name, or what it is."""
    named = f"{curve.metric_name} ({metric_kind(curve)})" if curve.training else curve.metric_name
    return named if curve.metric_name else metric_kind(curve)


def metric_kind(curve: Curve) -> str:
    """Return what the metric is: with bounds [0, 1] it is taken to be a pass rate."""
    if curve.training:
        return "training reward"
    return "held-out pass rate" if curve.bounds == (0.0, 1.0) else "held-out metric"


def frontier_figure(frontier: Frontier, runs: Sequence[tuple[Curve, Setting]]) -> Figure:
    """Return the figure of the points of runs, the curve of each setting, and the best level at each compute."""
    compute_M, settings, mean_SM, best, low_M, high_M = frontier.envelope
    names, curves = [setting_text(setting) for setting in settings], [curve for curve, _ in runs]
    last = 3 * max(frontier.budget, *(curve.last_compute for curve in curves))
    best_M, compute_M = np.array(best)[compute_M <= last], compute_M[compute_M <= last]
    leaders = list(dict.fromkeys(best_M.tolist()))
    colors = {names[s]: f"@s{i % COLORS}" for i, s in enumerate(leaders)}
    level_M = mean_SM[best_M, np.arange(len(best_M))]
    series: list[Series] = [ShadedBand(x=compute_M, low=low_M[: len(best_M)], high=high_M[: len(best_M)], color="@ink")]
    for curve, setting in runs:
        name = setting_text(setting)
        color = colors.get(name, "@muted")
        series.append(evaluation_points(replace(curve, stderr=None), f"{color}/0.25", name))
    for name, mean_M in zip(names, mean_SM, strict=True):
        style: Json = {"color": colors.get(name, "@muted/0.5"), "width": 1.2, "dash": "dot", "name": name}
        series.append(Line(x=compute_M, y=mean_M[: len(compute_M)], hover="%{y:.3f}", **style))
    for s in leaders:
        is_best_M = (best_M == s) | (np.append(best_M[0], best_M[:-1]) == s)  # to the beginning of the next stretch
        best_part: Json = {"x": compute_M, "y": np.where(is_best_M, level_M, np.nan), "color": colors[names[s]]}
        series.append(Line(width=4, name=names[s], legend=True, **best_part))
    caption = (
        f"Dots are {dots_of(curves)}, dotted lines the predicted curves of settings. The thick line is the frontier, "
        "the best level at each compute, in the color of the setting that is best there, with its 90% band."
    )
    title = "compute of one run"
    options = compute_options(curves[0].axis, title, min(map(_least, curves)), last)
    return Figure(series, Axis(title, compute=curves[0].axis), Axis(metric_name(curves[0])), title="What a budget buys",
                  caption=caption, wide=True, choices={"Compute axis": options})  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- metrics


def series_figure(series: Sequence[tuple[str, Json]], metric: Json) -> Figure:
    """Return the figure of one metric of one or more runs.

    Args:
        series: Name of each run, and its lists x, low, mean and high, as from `series.bucketed`.
        metric: Description of the metric: name, label, unit, meaning, bounds, share.
    """
    several = len(series) > 1
    unit = f" ({metric['unit']})" if metric["unit"] else ""
    drawn: list[Series] = []
    for number, (name, values) in enumerate(series):
        color, dash = f"@s{number % COLORS}", DASHES[number // COLORS % len(DASHES)]
        group: Json = {"group": str(number), "x": values["x"], "color": color}
        drawn.append(ShadedBand(low=values["low"], high=values["high"], **group))
        drawn.append(Line(y=values["mean"], width=1.7, dash=dash, name=name if several else "", legend=several,
                          hover="step %{x:.0f}: %{y:.4g}", **group))  # fmt: skip
    label, share = f"{metric['label']}{unit}", metric["share"]
    bounds = [Rule(bound, "@s1", "y") for bound in metric["bounds"] if bound > 0]
    scales = {
        "linear": FigurePart(y=Axis(label, percent=share), shapes=bounds),
        "logarithmic": FigurePart(y=Axis(label, "log", percent=share)),
    }
    meaning = metric["meaning"][:1].upper() + metric["meaning"][1:]
    caption = f"{meaning}{unit}. The band is the range over neighboring steps."
    return Figure(sorted(drawn, key=lambda one: isinstance(one, Line)), Axis("step"), Axis(label, percent=share),
                  title=metric["label"], caption=caption, wide=True, choices={"Scale": scales})  # fmt: skip


def metric_figure(runs: Sequence[tuple[str, Sequence[Json]]]) -> Figure | None:
    """Return the figure of one metric of several runs, which the reader chooses; None if they have none.

    Args:
        runs: Name of each run, and its metrics as from `FollowedRun.metrics`.
    """
    described = {metric["name"]: metric for _, metrics in runs for metric in metrics}
    options: dict[str, FigurePart] = {}
    for name in [name for name in ("pass_rate",) if name in described] + [n for n in described if n != "pass_rate"]:
        series = [(run, metric) for run, metrics in runs for metric in metrics if metric["name"] == name]
        figure = series_figure(series, described[name])
        part = FigurePart(figure.series, figure.x, figure.y, figure.choices["Scale"]["linear"].shapes)
        options[f"{described[name]['group']}: {described[name]['label']}"] = part
    if not options:
        return None
    caption = "Lines are means over neighboring steps, and bands their range. Dotted lines are healthy bounds."
    return Figure(title="One metric of all runs", caption=caption, wide=True, choices={"Metric": options})


# --------------------------------------------------------------------------------------------------- a page about runs


def curves(analysis: Analysis) -> Figure:
    """Return the figure of points, fits, bands, forecasts and ceilings of all runs."""
    sources = [run.source for run in analysis.runs]
    if analysis.comparison:
        runs = [(source.name, source.curve) for source in sources]
        return curves_figure(recipes_of(analysis.comparison, runs), analysis.comparison)
    return curves_figure([
        RecipeRuns(run.source.name, run.color, [(run.source.name, run.source.curve, run.outlook.fit)])
        for run in analysis.runs
    ])  # fmt: skip


def suites(analysis: Analysis) -> Figure | None:
    """Return the figure of the evaluation suites, with standard errors and without a fit; None if no run has any."""
    names = list(dict.fromkeys(suite.label for run in analysis.runs for suite in run.source.suites))
    if not names:
        return None
    alone = len(analysis.runs) == 1
    series = list[Series]()
    for number, run in enumerate(analysis.runs):
        for suite in run.source.suites:
            color = f"@s{names.index(suite.label) % COLORS}"
            name = suite.label if alone else f"{suite.label}, {run.source.name}"
            points = evaluation_points(suite, color, name, group=name)
            dash = DASHES[number % len(DASHES)]
            path: Json = {"x": points.x, "y": points.y, "width": 1.5, "dash": dash}
            series += [Line(color=color, name=name, group=name, legend=True, **path), points]
    several = "" if alone else " Each suite has a color, and each run a dash."
    caption = (
        "Results on suites that are only evaluated. Bars are one standard error over the prompts of the suite. Suites "
        f"have no fit and no forecast.{several}"
        f"{drawn_part([len(suite) for run in analysis.runs for suite in run.source.suites])}"
    )
    x = Axis("training compute", compute=analysis.runs[0].source.curve.axis)
    return Figure(series, x, Axis("mean pass rate"), title="Evaluation suites", caption=caption, wide=True)


def slopes(analysis: Analysis) -> Figure:
    """Return the figure of all runs as straight lines at the common ceiling."""
    lines = [run.slope for run in analysis.runs]
    unit = common_unit(lines)
    by_line = defaultdict[tuple[str, str], list[Slope]](list)  # a line for each run, or for each recipe
    for run in analysis.runs:
        name = analysis.comparison.names[run.side] if analysis.comparison else run.source.name
        by_line[name, run.color].append(replace(run.slope, label=name))
    series = [one for (_, color), members in by_line.items() for one in straight_lines(members, unit, color)]
    caption = f"Each run is fitted again with its ceiling fixed at the common A = {analysis.ceiling:.3f}. {STRAIGHT}"
    caption += without_level(lines) + (" A line is the mean of a recipe's runs." if analysis.comparison else "")
    if analysis.comparison and analysis.comparison.verdict == "higher ceiling":
        caption += " Here the ceilings differ, so the common one fits neither side: do not rely on these slopes."
    axes = slope_axes(lines, unit, analysis.axis)
    return Figure(series, *axes, title="Steepness B at one ceiling", caption=caption, wide=True)


def ceilings(analysis: Analysis) -> Figure:
    """Return the figure of A with intervals, by run and by recipe."""
    axis, about = "ceiling A of the climb", ""
    if analysis.sides:
        axis = "where the climb ends, as compared"
        about = " All are from the draws that the comparison uses, which leave out improbable later rises."
    return _estimates(analysis, "asymptote", "Ceiling A of each climb", axis, about)


def steepness(analysis: Analysis) -> Figure:
    """Return the figure of B with intervals, by run and by recipe; at the common ceiling if recipes are compared."""
    at = f"B at the common A = {analysis.ceiling:.3f}" if analysis.sides else "steepness B"
    return _estimates(analysis, "efficiency", "Steepness B", at)


def _estimates(analysis: Analysis, quantity: str, title: str, axis: str, about: str = "") -> Figure:
    """Return a figure with a row for each run; if recipes are compared, with a thick row above the runs of each."""
    rows: list[tuple[str, Estimate, str, bool]] = []
    for number, side in enumerate(analysis.sides.get(quantity, ())):
        recipe = analysis.comparison.names[number] if analysis.comparison else ""
        rows.append((f"{recipe}, recipe", side.recipe, f"@s{number}", True))
        names = [run.source.name for run in analysis.runs if run.side == number]
        rows += [(run, estimate, f"@s{number}", False) for run, estimate in zip(names, side.runs, strict=True)]
    if not rows:
        rows = [(run.source.name, getattr(run.outlook.fit, quantity), run.color, False) for run in analysis.runs]
    series = [intervals([e], [-i], [name], color, bold=bold) for i, (name, e, color, bold) in enumerate(rows)]
    recipes = " Thick lines are recipes and include the scatter of seeds." if analysis.sides else ""
    caption, height = f"Lines are 90% intervals.{about}{recipes}", 140 + 32 * len(rows)
    return Figure(series, Axis(axis), name_axis([row[0] for row in rows]), height=height, title=title, caption=caption)


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
    axes = _axes(analysis.runs[0].source.curve)
    title = "Backtest: earlier forecasts"
    return Figure((), *axes, title=title, caption=caption, wide=True, choices={"Run": choices})


def _earlier_forecasts(run: RunAnalysis) -> FigurePart:
    """Return every earlier forecast, each in a frame.

    The name of a forecast says how many of the evaluations after it are in its band.
    """
    curve, series, frames = run.source.curve, list[Series](), list[str]()
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
        shared: Json = {"x": band.compute, "color": "@s0", "group": str(number), "frame": number}
        series += [
            ShadedBand(low=band.low, high=band.high, **shared),
            Line(y=band.mean, name=name, legend=True, hover="%{x:.4g}<br>%{y:.3f}", **shared),
        ]
        frames.append(f"{share:.0%}")
    points = evaluation_points(replace(curve, stderr=None), "@ink", "evaluations", legend=True)
    return FigurePart([*series, points], frames=frames)


FIGURES: dict[str, Callable[[Analysis], Figure | None]] = {
    "curves": curves, "suites": suites, "ceilings": ceilings, "steepness": steepness, "slopes": slopes,
    "backtests": backtests,
}  # fmt: skip
"""The figures in the order of the page."""
