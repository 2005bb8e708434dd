"""The figures of a study's page as plotly JSON: forest plots, curves, slopes, ceilings.

No palette is large enough for thirty arms. The reference is blue, the arm that the reader chooses orange, and the
others gray. If all arms are drawn the same way, the color shows the effect.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from scalerl.scaling import Curve, Estimate
from scalerl.scaling.compare import MARGIN
from scalerl.scaling.curve import UNITS
from scalerl.study.results import EFFECTS, ArmResult, StudyResult
from scalerl.view.drawing import Figure, Json, compute_axes, cut, plain, rounded, whiskers
from scalerl.view.figures import metric_name
from scalerl.view.page_figures import STRAIGHT, slope_layout, slope_line, slope_points, without_level
from scalerl.view.quantities import Slope, common_unit, slope_at

REFERENCE, CHOSEN, OTHERS = EFFECTS["reference"].color, "@s1", "@muted/0.4"
"""Colors of the reference, of the arm that the reader chose, and of all others."""

AHEAD = 2.0
"""End of the drawn curves of the reference and of the chosen arm, in multiples of the last compute."""

ROW = 30
"""Height of a row of a forest, pixels."""

CHOICE = "Arm next to the reference"


def differences(found: StudyResult) -> Figure | None:
    """Return a forest plot of A of every arm minus A of the reference; None if no arm can be compared."""
    arms = _compared(found)
    if not arms:
        return None
    estimates = [arm.comparison.asymptote_difference for arm in arms if arm.comparison]
    margin = MARGIN * float(np.ptp(_curves(found)[0].bounds))
    low, high = _span(estimates, margin)
    data, layout = _forest(arms, estimates)
    layout["xaxis"] = {"title": {"text": "A minus the reference's A"}, "range": plain([low, high])}
    layout["shapes"] = [
        {"type": "rect", "yref": "paper", "x0": -margin, "x1": margin, "y0": 0, "y1": 1, "layer": "below",
         "fillcolor": "@muted/0.13", "line": {"width": 0}},
        _equal_line(0),
    ]  # fmt: skip
    caption = (
        f"Ceiling of each arm minus the ceiling of {found.reference}, with 90% intervals that include the scatter "
        f"between seeds. If an interval lies right of the line, the arm's ceiling is higher. Ceilings within the gray "
        f"band (±{margin:g}) count as the same. {_absent(found)}"
    )
    return Figure("Which arm has the higher ceiling?", caption, data, layout)


def ratios(found: StudyResult) -> Figure | None:
    """Return a forest plot of B relative to the reference, or of the compute needed for one level."""
    arms = _compared(found)
    if not arms:
        return None
    options: dict[str, Json] = {}
    for name, quantity in RATIOS.items():
        estimates = [getattr(arm.comparison, quantity) for arm in arms]
        data, layout = _forest(arms, estimates)
        logs = [Estimate(*np.log([e.mean, e.mean, e.low, e.high])) for e in estimates]
        low, high = _span(logs, 0.05)
        ticks = _ratio_ticks(low, high)
        span = plain(np.array([low, high]) / np.log(10))
        axis = {"type": "log", "title": {"text": "ratio to the reference"}, "range": span}
        layout["xaxis"] = {**axis, "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
        options[name] = {"data": data, "layout": {**layout, "shapes": [_equal_line(1)]}}
    caption = (
        "Steepness B with one ceiling for both, and the compute needed for a level that both have nearly reached, each "
        "divided by the value of the reference. Right of 1 the arm is steeper, or needs more compute. If the ceilings "
        "differ, do not rely on B."
    )
    return Figure("Which arm is more efficient?", caption, [], {}, {"Ratio": options})


RATIOS = {"steepness B": "efficiency_ratio", "compute for the same level": "compute_ratio"}
"""Quantities shown as a ratio to the reference, by label; attributes of `Comparison`."""


def curves(found: StudyResult) -> Figure | None:
    """Return the figure of points and mean curves: all arms in gray, the reference and one other in color."""
    fitted = [arm for arm in found.arms if arm.fits]
    if not fitted:
        return None
    last = max(fit.last_compute for arm in fitted for fit in arm.fits)
    first = min(float(curve.compute[curve.compute > 0][0]) for curve in _curves(found))
    grid = np.unique(np.concatenate([np.linspace(0, AHEAD * last, 81), np.geomspace(first / 2, AHEAD * last, 80)]))
    means = {arm.name: _mean(arm, grid) for arm in fitted}
    data = [_line(arm, grid, means[arm.name], OTHERS, 1.2) for arm in fitted if arm.name != found.reference]
    reference = found.arm(found.reference)
    if reference.fits:
        data += _highlighted(reference, grid, means[reference.name], REFERENCE)
    options: dict[str, Json] = {
        arm.name: {"data": _highlighted(arm, grid, means[arm.name], CHOSEN)} for arm in found.ranked() if arm.fits
    }
    unit = UNITS.get(found.axis, found.axis)
    layout = {
        "xaxis": {"title": {"text": f"training compute ({unit})"}},
        "yaxis": {"title": {"text": metric_name(_curves(found)[0])}},
    }
    caption = (
        "Dots are held-out evaluations, with a shape for each seed. Lines are the mean of an arm's fits, dashed where "
        "they are a forecast. All other arms are gray: point at a line to see its name."
    )
    choices = {CHOICE: options, "Compute axis": compute_axes(0.6 * first, 1.05 * AHEAD * last)}
    return Figure("Curves", caption, data, layout, {name: each for name, each in choices.items() if each})


def slopes(found: StudyResult) -> Figure | None:
    """Return all arms as straight lines at the common ceiling, the reference and one other with their points."""
    if found.common_asymptote is None:
        return None
    ceiling = found.common_asymptote
    by_arm = {arm.name: [slope_at(fit.curve, ceiling, arm.name) for fit in arm.fits] for arm in found.arms if arm.fits}
    every = [slope for listed in by_arm.values() for slope in listed]
    unit = common_unit(every)
    data: list[Json] = [
        {**slope_line(_together(by_arm[name]), unit, OTHERS), "showlegend": False, "name": name}
        for name in by_arm if name != found.reference
    ]  # fmt: skip
    if found.reference in by_arm:
        data += _straight(by_arm[found.reference], unit, REFERENCE)
    options: dict[str, Json] = {
        arm.name: {"data": _straight(by_arm[arm.name], unit, CHOSEN)} for arm in found.ranked() if arm.name in by_arm
    }
    caption = (
        f"Each run is fitted again with its ceiling fixed at the common A = {ceiling:.3f}. {STRAIGHT}"
        f"{without_level(every)} A line is the mean of an arm over its seeds. If an arm's own ceiling differs from the "
        f"common one, its slope is biased."
    )
    unit_name = UNITS.get(found.axis, found.axis)
    return Figure("Steepness B at one ceiling", caption, data, slope_layout(every, unit, unit_name), {CHOICE: options})


def ceilings(found: StudyResult) -> Figure | None:
    """Return the figure of A of every arm and of each of its runs."""
    arms = [arm for arm in (found.arm(found.reference), *found.ranked()) if arm.asymptote is not None]
    if not arms:
        return None
    data: list[Json] = []
    for place, arm in enumerate(arms):
        color, name = EFFECTS[arm.effect].color, html.escape(arm.name)
        runs = [(run.key.seed, run.fit) for run in arm.runs if run.fit is not None]
        estimates = [arm.asymptote, *(fit.asymptote for _, fit in runs)] if arm.asymptote else []
        known = [True, *(fit.identified for _, fit in runs)]
        below = [0.0, *(0.22 + 0.5 * (i + 1) / (len(runs) + 1) for i in range(len(runs)))]
        labels = [f"<b>{name}</b>", *(f"{name}, seed {seed}" for seed, _ in runs)]
        for i, estimate in enumerate(estimates):
            data.append({
                "mode": "markers", "showlegend": False,
                "x": [rounded(estimate.mean)], "y": [rounded(-place - below[i])],
                "marker": {"color": color, "size": 6 if i else 10, "symbol": "circle" if known[i] else "circle-open"},
                "error_x": {**whiskers(estimate), "color": color, "thickness": 1 if i else 3, "width": 0},
                "hovertemplate": f"{estimate}<extra>{labels[i]}</extra>",
            })  # fmt: skip
    seeds = max(len(arm.runs) for arm in arms)
    layout = {
        "xaxis": {"title": {"text": "ceiling A"}, "range": plain(_around(arms))},
        "yaxis": {**_names(arms), "range": [-len(arms) + 0.1, 0.5]},
        "height": 120 + len(arms) * (18 + 7 * seeds),
    }
    caption = (
        "Thick lines are the arms and include the scatter between seeds; thin lines below them are their runs. Lines "
        "are 90% intervals and may extend beyond the figure. An open circle is a ceiling that is not identified yet."
    )
    return Figure("Ceiling A, by arm and seed", caption, data, layout)


FIGURES: dict[str, Callable[[StudyResult], Figure | None]] = {
    "differences": differences,
    "ratios": ratios,
    "curves": curves,
    "slopes": slopes,
    "ceilings": ceilings,
}
"""The figures in the order of the page; None if there is nothing to draw."""


def _compared(found: StudyResult) -> list[ArmResult]:
    """Return the arms with a comparison, the highest ceiling first."""
    arms = [(arm.comparison.asymptote_difference.mean, arm) for arm in found.arms if arm.comparison]
    return [arm for _, arm in sorted(arms, key=lambda pair: -pair[0])]


def _curves(found: StudyResult) -> list[Curve]:
    return [run.curve for arm in found.arms for run in arm.runs if run.curve is not None]


def _absent(found: StudyResult) -> str:
    absent = [arm.name for arm in found.arms if arm.effect == "unknown"]
    return f"Not drawn, because not measured yet: {', '.join(absent)}." if absent else ""


def _forest(arms: Sequence[ArmResult], estimates: Sequence[Estimate]) -> tuple[list[Json], Json]:
    """Return one row for each arm and one trace for each effect, so that the legend explains the colors."""
    data: list[Json] = []
    for name, effect in EFFECTS.items():
        rows = [i for i, arm in enumerate(arms) if arm.effect == name]
        if not rows:
            continue
        color, shown = effect.color, [estimates[i] for i in rows]
        data.append({
            "mode": "markers", "name": effect.words, "x": plain([e.mean for e in shown]), "y": [-i for i in rows],
            "marker": {"color": color, "size": 10}, "showlegend": True,
            "error_x": {**whiskers(*shown), "color": color, "thickness": 2.5, "width": 0},
            "text": [f"<b>{html.escape(arms[i].name)}</b><br>{html.escape(str(estimates[i]))}" for i in rows],
            "hovertemplate": "%{text}<extra></extra>",
        })  # fmt: skip
    height = 175 + ROW * len(arms)
    return data, {"yaxis": {**_names(arms), "range": [-len(arms) + 0.4, 0.6]}, "height": height}


def _names(arms: Sequence[ArmResult]) -> Json:
    """Return an axis with a row for each arm."""
    names = [html.escape(cut(arm.name)) for arm in arms]
    return {"tickvals": [-i for i in range(len(arms))], "ticktext": names, "showgrid": False}


def _equal_line(value: float) -> Json:
    """Return a line at the value where an arm equals the reference."""
    line = {"color": "@ink", "width": 1, "dash": "dot"}
    return {"type": "line", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1, "layer": "below", "line": line}


def _span(estimates: Sequence[Estimate], least: float) -> tuple[float, float]:
    """Return a range around 0 for a forest plot, so that one very wide interval does not compress all others."""
    halves = [(e.high - e.low) / 2 for e in estimates]
    most = max([2 * least, *(abs(e.mean) for e in estimates)]) + 3 * float(np.median(halves))
    low, high = min(e.low for e in estimates), max(e.high for e in estimates)
    pad = 0.06 * (high - low)
    return max(min(low - pad, -1.3 * least), -most), min(max(high + pad, 1.3 * least), most)


def _around(arms: Sequence[ArmResult]) -> tuple[float, float]:
    """Return a range for ceilings that shows every arm's interval, but cuts very wide ones of single runs."""
    known = [arm.asymptote for arm in arms if arm.asymptote is not None]
    low, high = min(e.low for e in known), max(e.high for e in known)
    return low - 0.25 * (high - low), high + 0.25 * (high - low)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return ticks at round ratios, including 1, for a range in logarithms; plotly's own ticks are not round."""
    least, most = float(np.exp(low)), float(np.exp(high))
    for step in (0.05, 0.1, 0.2, 0.5):
        if (most - least) / step < MOST_TICKS:
            return [round(step * i, 2) for i in range(int(np.ceil(least / step)), int(most / step) + 1) if i]
    powers = range(int(np.ceil(low / np.log(10))), int(high / np.log(10)) + 1)
    if len(powers) < MOST_TICKS / 3:
        return [tick for tick in (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100) if least <= tick <= most]
    every = -(-len(powers) // MOST_TICKS)
    return [10.0**power for power in powers if power % every == 0]


MOST_TICKS = 8
"""Largest number of labels on an axis."""


def _mean(arm: ArmResult, grid_M: np.ndarray) -> np.ndarray:
    """Return the mean of the curves of an arm's runs, shape (M,)."""
    return np.asarray(np.mean([fit.predict(grid_M).mean for fit in arm.fits], axis=0))


def _line(arm: ArmResult, grid_M: np.ndarray, mean_M: np.ndarray, color: str, width: float) -> Json:
    """Return an arm's mean curve up to its last compute."""
    seen_M = grid_M <= max(fit.last_compute for fit in arm.fits)
    return {
        "mode": "lines", "name": html.escape(arm.name), "showlegend": False, "x": plain(grid_M[seen_M]),
        "y": plain(mean_M[seen_M]), "line": {"color": color, "width": width},
        "hovertemplate": "%{y:.3f}<extra>" + html.escape(arm.name) + "</extra>",
    }  # fmt: skip


def _highlighted(arm: ArmResult, grid_M: np.ndarray, mean_M: np.ndarray, color: str) -> list[Json]:
    """Return an arm's mean curve with its forecast, and the points of every seed."""
    name = html.escape(arm.name)
    ahead_M = grid_M >= max(fit.last_compute for fit in arm.fits)
    group: Json = {"legendgroup": name, "name": name, "showlegend": False}
    forecast = {"mode": "lines", "hoverinfo": "skip", "line": {"color": color, "width": 2, "dash": "dash"}}
    traces: list[Json] = [
        {**group, **forecast, "x": plain(grid_M[ahead_M]), "y": plain(mean_M[ahead_M])},
        {**_line(arm, grid_M, mean_M, color, 2.5), **group, "showlegend": True},
    ]
    for symbol, run in enumerate(arm.runs):
        if run.curve is not None:
            traces.append({
                **group, "mode": "markers", "x": plain(run.curve.compute), "y": plain(run.curve.metric),
                "marker": {"color": f"{color}/0.7", "size": 6, "symbol": symbol % 8},
                "hovertemplate": f"%{{x:.4g}}<br>%{{y:.3f}}<extra>{name}, seed {run.key.seed}</extra>",
            })  # fmt: skip
    return traces


def _together(slopes: Sequence[Slope]) -> Slope:
    """Return the line of an arm: its slope is the geometric mean of B over its runs."""
    spans = np.stack([slope.span for slope in slopes])
    efficiency = float(np.exp(np.mean([np.log(slope.efficiency) for slope in slopes])))
    return replace(slopes[0], efficiency=efficiency, span=np.array([spans[:, 0].min(), spans[:, 1].max()]))


def _straight(slopes: Sequence[Slope], unit: float, color: str) -> list[Json]:
    """Return an arm's line and the points of its seeds."""
    mean = _together(slopes)
    group: Json = {"legendgroup": mean.label, "name": f"{html.escape(mean.label)}: B = {mean.efficiency:.2f}"}
    points = [
        {**slope_points(slope, unit, color, mean.label, symbol), **group, "showlegend": False}
        for symbol, slope in enumerate(slopes)
    ]
    return [{**slope_line(mean, unit, color), **group, "showlegend": True}, *points]
