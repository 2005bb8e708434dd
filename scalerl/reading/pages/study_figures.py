"""The figures of a study's page: forest plots, curves, slopes, ceilings.

No palette is large enough for thirty arms. The reference is blue, the arm that the reader chooses orange, and the
others gray. If all arms are drawn the same way, the color shows the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scalerl.reading.curves import Curve, Estimate
from scalerl.reading.curves.comparison import MARGIN
from scalerl.reading.curves.curve import UNITS
from scalerl.reading.curves.law import Array
from scalerl.reading.pages.analysis import common_unit, slope_at
from scalerl.reading.pages.figure import Axis, Figure, FigurePart, Line, Points, Rule, Series, Span
from scalerl.reading.pages.page_figures import (
    STRAIGHT,
    compute_options,
    frontier_figure,
    grid_to,
    intervals,
    mean_lines,
    metric_name,
    name_axis,
    seed_points,
    slope_axes,
    straight_lines,
    without_level,
)
from scalerl.reading.pages.study_results import EFFECTS, ArmResult, StudyResult

REFERENCE, SELECTED, OTHERS = EFFECTS["reference"].color, "@s1", "@muted/0.4"
"""Colors of the reference, of the arm that the reader selects, and of all others."""

STUDY_FORECAST_END = 2.0
"""End of the drawn curves of the reference and of the selected arm, in multiples of the last compute."""

ROW_PIXELS = 30
"""Height of a row of a forest, pixels."""

CHOICE = "Arm next to the reference"


def study_frontier(results: StudyResult) -> Figure | None:
    """Return the figure of what a budget buys; None without a law over the settings."""
    if results.frontier is None:
        return None
    runs = [(run.curve, results.settings[arm.name]) for arm in results.arms for run in arm.runs if run.curve]
    return frontier_figure(results.frontier, runs)


def differences(results: StudyResult) -> Figure | None:
    """Return a forest plot of A of every arm minus A of the reference; None if no arm can be compared."""
    arms = _compared(results)
    if not arms:
        return None
    estimates = [arm.comparison.asymptote_difference for arm in arms if arm.comparison]
    margin = MARGIN * float(np.ptp(_curves(results)[0].bounds))
    x = Axis("A minus the reference's A", limits=_span(estimates, margin))
    shapes: list[Rule | Span] = [Span(-margin, margin, "@muted/0.13"), Rule(0, "@ink", "x")]
    forest = _forest(arms, estimates, x, shapes)
    caption = (
        f"Ceiling of each arm's climb minus that of {results.reference}, with 90% intervals that include the scatter "
        f"between seeds. If an interval lies right of the line, the arm's ceiling is higher. Ceilings within the gray "
        f"band (±{margin:g}) count as the same. {_absent(results)}"
    )
    return Figure(**vars(forest), title="Which arm has the higher ceiling?", caption=caption)


def ratios(results: StudyResult) -> Figure | None:
    """Return a forest plot of B relative to the reference, or of the compute needed for one level."""
    arms = _compared(results)
    if not arms:
        return None
    options: dict[str, FigurePart] = {}
    for name, quantity in RATIOS.items():
        estimates = [getattr(arm.comparison, quantity) for arm in arms]
        logs = [Estimate(*np.log([e.mean, e.mean, e.low, e.high])) for e in estimates]
        low, high = _span(logs, 0.05)
        ticks = {tick: f"{tick:g}" for tick in _ratio_ticks(low, high)}
        x = Axis("ratio to the reference", "log", limits=(float(np.exp(low)), float(np.exp(high))), ticks=ticks)
        options[name] = _forest(arms, estimates, x, [Rule(1, "@ink", "x")])
    caption = (
        "Steepness B with one ceiling for both, and the compute needed for a level that both have nearly reached, each "
        "divided by the value of the reference. Right of 1 the arm is steeper, or needs more compute. If the ceilings "
        "differ, do not rely on B."
    )
    return Figure(title="Which arm is more efficient?", caption=caption, choices={"Ratio": options})


RATIOS = {"steepness B": "efficiency_ratio", "compute for the same level": "compute_ratio"}
"""Quantities shown as a ratio to the reference, by label; attributes of `Comparison`."""


def study_curves(results: StudyResult) -> Figure | None:
    """Return the figure of points and mean curves: all arms in gray, the reference and one other in color."""
    fitted_arms = [arm for arm in results.arms if arm.fits]
    if not fitted_arms:
        return None
    last = max(fit.last_compute for arm in fitted_arms for fit in arm.fits)
    first = min(float(curve.compute[curve.compute > 0][0]) for curve in _curves(results))
    grid = grid_to(first, last, STUDY_FORECAST_END * last)
    others = [arm for arm in fitted_arms if arm.name != results.reference]
    series: list[Series] = [_curve(arm, grid, OTHERS, 1.2, arm.name)[0] for arm in others]
    if results.arm(results.reference).fits:
        series += _highlighted(results.arm(results.reference), grid, REFERENCE)
    options = {arm.name: FigurePart(_highlighted(arm, grid, SELECTED)) for arm in results.ranked() if arm.fits}
    caption = (
        "Dots are held-out evaluations, with a shape for each seed. Lines are the mean of an arm's fits, dashed where "
        "they are a forecast. All other arms are gray: point at a line to see its name."
    )
    title = "training compute"
    axes = Axis(title, compute=results.axis), Axis(metric_name(_curves(results)[0]))
    spans = compute_options(results.axis, title, 0.6 * first, 1.05 * STUDY_FORECAST_END * last)
    choices = {**({CHOICE: options} if options else {}), "Compute axis": spans}
    return Figure(series, *axes, title="Curves", caption=caption, wide=True, choices=choices)


def study_slopes(results: StudyResult) -> Figure | None:
    """Return all arms as straight lines at the common ceiling, the reference and one other with their points."""
    if results.common_asymptote is None:
        return None
    ceiling = results.common_asymptote
    by_arm = {
        arm.name: [slope_at(fit.curve, ceiling, arm.name) for fit in arm.fits] for arm in results.arms if arm.fits
    }
    lines = [slope for listed in by_arm.values() for slope in listed]
    unit = common_unit(lines)
    series = [
        straight_lines(runs, unit, OTHERS, legend=False)[0]
        for name, runs in by_arm.items()
        if name != results.reference
    ]
    if results.reference in by_arm:
        series += straight_lines(by_arm[results.reference], unit, REFERENCE, 2.5)
    options = {
        arm.name: FigurePart(straight_lines(by_arm[arm.name], unit, SELECTED, 2.5))
        for arm in results.ranked()
        if arm.name in by_arm
    }
    caption = (
        f"Each run is fitted again with its ceiling fixed at the common A = {ceiling:.3f}. {STRAIGHT}"
        f"{without_level(lines)} A line is the mean of an arm over its seeds. If an arm's own ceiling differs from the "
        f"common one, its slope is biased."
    )
    axes = slope_axes(lines, unit, UNITS.get(results.axis, results.axis))
    title = "Steepness B at one ceiling"
    return Figure(series, *axes, title=title, caption=caption, wide=True, choices={CHOICE: options})


def study_ceilings(results: StudyResult) -> Figure | None:
    """Return the figure of A of every arm and of each of its runs."""
    arms = [results.arm(results.reference), *results.ranked()]
    estimates = {arm: arm.asymptote for arm in arms if arm.asymptote is not None}
    if not estimates:
        return None
    series: list[Series] = []
    for place, (arm, asymptote) in enumerate(estimates.items()):
        color = EFFECTS[arm.effect].color
        runs = [(run.key.seed, run.fit) for run in arm.runs if run.fit is not None]
        below = [-place - 0.22 - 0.5 * (i + 1) / (len(runs) + 1) for i in range(len(runs))]
        names = [f"{arm.name}, seed {seed}" for seed, _ in runs]
        symbols = ["circle" if fit.identified else "circle-open" for _, fit in runs]
        seeds = intervals([fit.asymptote for _, fit in runs], below, names, color, symbol=symbols)
        series += [intervals([asymptote], [-place], [arm.name], color, bold=True), seeds]
    low, high = min(e.low for e in estimates.values()), max(e.high for e in estimates.values())
    pad = 0.25 * (high - low)  # shows every arm's interval, but cuts very wide ones of single runs
    x = Axis("ceiling A of the climb", limits=(low - pad, high + pad))
    height = 120 + len(estimates) * (18 + 7 * max(len(arm.runs) for arm in estimates))
    caption = (
        "Thick lines are the arms and include the scatter between seeds; thin lines below them are their runs. Lines "
        "are 90% intervals and may extend beyond the figure. An open circle is a ceiling that is not identified yet."
    )
    return Figure(series, x, name_axis([arm.name for arm in estimates], 0.9), height=height, caption=caption,
                  title="Ceiling A of each climb, by arm and seed", wide=True)  # fmt: skip


STUDY_FIGURES: dict[str, Callable[[StudyResult], Figure | None]] = {
    "frontier": study_frontier, "differences": differences, "ratios": ratios, "curves": study_curves,
    "slopes": study_slopes, "ceilings": study_ceilings,
}  # fmt: skip
"""The figures in the order of the page; None if there is nothing to draw."""


def _compared(results: StudyResult) -> list[ArmResult]:
    """Return the arms with a comparison, the highest ceiling first."""
    arms = [(arm.comparison.asymptote_difference.mean, arm) for arm in results.arms if arm.comparison]
    return [arm for _, arm in sorted(arms, key=lambda pair: -pair[0])]


def _curves(results: StudyResult) -> list[Curve]:
    return [run.curve for arm in results.arms for run in arm.runs if run.curve is not None]


def _absent(results: StudyResult) -> str:
    absent = [arm.name for arm in results.arms if arm.effect == "unknown"]
    return f"Not drawn, because not measured yet: {', '.join(absent)}." if absent else ""


def _forest(
    arms: Sequence[ArmResult], estimates: Sequence[Estimate], x: Axis, shapes: Sequence[Rule | Span]
) -> FigurePart:
    """Return one row for each arm and one series for each effect, so that the legend explains the colors."""
    series: list[Points] = []
    for name, effect in EFFECTS.items():
        rows = [i for i, arm in enumerate(arms) if arm.effect == name]
        if rows:
            shown, names = [estimates[i] for i in rows], [arms[i].name for i in rows]
            heights = [-i for i in rows]
            series.append(intervals(shown, heights, names, effect.color, bold=True, name=effect.words, legend=True))
    return FigurePart(series, x, name_axis([arm.name for arm in arms]), shapes, height=175 + ROW_PIXELS * len(arms))


def _span(estimates: Sequence[Estimate], least: float) -> tuple[float, float]:
    """Return a range around 0 for a forest plot, so that one very wide interval does not compress all others."""
    halves = [(e.high - e.low) / 2 for e in estimates]
    most = max([2 * least, *(abs(e.mean) for e in estimates)]) + 3 * float(np.median(halves))
    low, high = min(e.low for e in estimates), max(e.high for e in estimates)
    pad = 0.06 * (high - low)
    return max(min(low - pad, -1.3 * least), -most), min(max(high + pad, 1.3 * least), most)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return ticks at round ratios, including 1, for a range in logarithms; plotly's own ticks are not round."""
    even = [step * np.arange(1, 9 * MOST_TICKS) for step in (0.05, 0.1, 0.2, 0.5)]
    powers = [10.0 ** np.arange(-300, 301, decades) for decades in (1, 2, 5, 10, 20, 50, 100)]
    scales = [*even, np.array([0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100]), *powers]
    inside = (ticks[(ticks >= np.exp(low)) & (ticks <= np.exp(high))].tolist() for ticks in scales)
    return next(ticks for ticks in inside if len(ticks) <= MOST_TICKS)


MOST_TICKS = 8
"""Largest number of labels on an axis."""


def _curve(arm: ArmResult, grid_M: Array, color: str, width: float, group: str = "") -> list[Line]:
    """Return the mean curve of an arm's runs, and its forecast, as `mean_lines`."""
    mean_M = np.mean([fit.predict(grid_M).mean for fit in arm.fits], axis=0)
    return mean_lines(arm.name, grid_M, mean_M, max(fit.last_compute for fit in arm.fits), color, width, group)


def _highlighted(arm: ArmResult, grid_M: Array, color: str) -> list[Series]:
    """Return an arm's mean curve with its forecast, and the points of every seed."""
    seeds = [(f"{arm.name}, seed {run.key.seed}", run.curve) for run in arm.runs if run.curve is not None]
    return [*_curve(arm, grid_M, color, 2.5), *seed_points(arm.name, seeds, f"{color}/0.7")]
