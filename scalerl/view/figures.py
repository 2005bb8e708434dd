"""Figures of curves with matplotlib. Each function draws into the given Axes and returns it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalerl.core.files import whole
from scalerl.scaling.curve import UNITS
from scalerl.scaling.estimate import Estimate, shown
from scalerl.view.quantities import (
    MASSES,
    QUANTITIES,
    Slope,
    common_unit,
    forecast_of_rest,
    height_range,
    joint_density,
)

if TYPE_CHECKING:
    from scalerl.scaling import Comparison, Curve, Fit

BLUE, GRAY, ORANGE, INK = "#2a5d9f", "#8a8f98", "#c8641e", "#1b1f24"
SERIES = (BLUE, ORANGE, "#2f8f6b", "#a3477f", "#7a6a1d", "#4aa3c7", "#6b4fa0", "#b23a3a")
"""Colors of the runs; they also differ in lightness, for readers with any kind of color vision."""

FIRST_LEVEL = "before RL"


def plot_curve(axes: Any, found: Fit, *, ahead: float = 4.0, note: str = "", scale: str = "log") -> Any:
    """Draw points, fitted curve with its 90% band, the forecast beyond the last point, and the ceiling.

    Args:
        axes: matplotlib Axes.
        found: The fit.
        ahead: End of the compute axis, in multiples of the last point's compute.
        note: One line under the title, for example about the data.
        scale: Scale of the compute axis, "log" or "linear". A log axis cannot show the point at compute 0; its level
            is drawn as a line.
    """
    curve, last = found.curve, found.last_compute
    drawn_N = curve.compute > 0 if scale == "log" else np.full(len(curve), True)
    start = float(curve.compute[curve.compute > 0].min()) * 0.6 if scale == "log" else 0.0
    spaced = np.geomspace if scale == "log" else np.linspace
    grid_M = np.asarray(spaced(start, last * ahead, 300))
    _draw_fit(axes, found, grid_M)
    axes.errorbar(
        curve.compute[drawn_N], curve.metric[drawn_N], yerr=None if curve.stderr is None else curve.stderr[drawn_N],
        fmt="o", ms=4, color=INK, ecolor=GRAY, elinewidth=0.8, capsize=0, zorder=3,
        label="held-out evaluation" + ("" if curve.stderr is None else " (s.e. over prompts)"),
    )  # fmt: skip
    _draw_ceiling(axes, found)
    _draw_multiples(axes, found, ahead)
    before_N = curve.compute == 0
    if before_N.any():
        level = float(curve.metric[before_N][0])
        axes.axhline(level, color=GRAY, lw=0.8, ls=":")
        axes.annotate(FIRST_LEVEL, (0.99, level), xycoords=("axes fraction", "data"), xytext=(0, 3),
                      textcoords="offset points", ha="right", color=GRAY, fontsize=8)  # fmt: skip
    axes.set_xscale(scale)
    axes.set_xlim(grid_M[0], grid_M[-1] * 1.05)
    axes.set_xlabel(f"training compute ({curve.unit}{', log scale' if scale == 'log' else ''})")
    axes.set_ylabel(metric_name(curve))
    axes.legend(loc="upper left" if scale == "log" else "center right", frameon=False, fontsize=8.5)
    title = f"{curve.label}   A = {found.asymptote.mean:.3f}, B = {found.efficiency.mean:.2f}"
    return _finish(axes, title.strip(), note)


def plot_slopes(axes: Any, slopes: Sequence[Slope], *, unit: float | None = None) -> Any:
    """Draw runs as straight lines of slope B: log F(R) against log C at a common ceiling (arXiv 2510.13786, figure 7).

    Args:
        axes: matplotlib Axes.
        slopes: From `slope_at`, all at one ceiling.
        unit: Unit of compute, as a multiple of the axis' unit; None takes the geometric mean of the midpoints, so that
            the lines pass near each other.
    """
    unit = common_unit(slopes) if unit is None else unit
    for slope, color in zip(slopes, _colors(len(slopes)), strict=True):
        axes.plot(slope.span / unit, slope.line(slope.span, unit), color=color, lw=1.8)
        axes.plot(
            slope.compute / unit, slope.level(unit), "o", ms=3.5, color=color, alpha=0.75,
            label=f"{slope.label}: B = {slope.efficiency:.2f}",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_log_ticks(axes.xaxis)
    axes.set_ylim(*height_range(slopes, unit))
    counted = "" if unit == 1 else f", in units of {unit:.3g}"
    axes.set_xlabel(f"training compute ({UNITS.get(slopes[0].axis, slopes[0].axis)}{counted}, log scale)")
    axes.set_ylabel("F(R) = C^B (log scale)")
    axes.legend(loc="upper left", frameon=False, fontsize=8.5)
    dropped = sum(slope.dropped for slope in slopes)
    note = f"not drawn, because at or above A, or at or below R0: {dropped}" if dropped else ""
    return _finish(axes, f"steepness at one ceiling, A = {slopes[0].ceiling:.3f}", note)


def plot_posterior(axes: Any, fits: Sequence[Fit], labels: Sequence[str] | None = None) -> Any:
    """Draw the joint posterior of A and B: contours contain 50% and 90% of it."""
    labels = [f.curve.label for f in fits] if labels is None else labels
    for found, label, color in zip(fits, labels, _colors(len(fits)), strict=True):
        density = joint_density(found.draws, found.curve.bounds)
        axes.plot(found.asymptote.mean, found.efficiency.mean, "o", ms=5, color=color, label=label)
        if density is not None:
            levels = [0.0, *MASSES]
            axes.contourf(*density, levels=levels, colors=[color, color], alpha=0.16)
            axes.contour(*density, levels=list(MASSES), colors=[color], linewidths=[1.6, 1.0])
    axes.set_yscale("log")
    axes.use_sticky_edges = False
    axes.margins(0.06)
    _plain_ticks(axes.yaxis)
    axes.set_xlabel("ceiling A")
    axes.set_ylabel("steepness B (log scale)")
    if any(labels):
        axes.legend(loc="best", frameon=False, fontsize=8.5)
    return _finish(axes, "A and B together", "contours contain 50% and 90% of the posterior")


def plot_comparison(
    axes: Any, found: Comparison, quantity: str = "asymptote", names: tuple[str, str] = ("first", "second")
) -> Any:
    """Draw one quantity of two recipes with 90% intervals: each recipe in bold, its runs under it.

    Args:
        axes: matplotlib Axes.
        found: Result of `compare`.
        quantity: Key of `QUANTITIES`: "asymptote" for A, "efficiency" for B at the common ceiling.
        names: Names of the recipes.
    """
    sides = QUANTITIES[quantity](found, np.random.default_rng(0))
    labels: list[str] = []
    for side, name, color in zip(sides, names, SERIES, strict=False):
        _draw_interval(axes, side.recipe, -len(labels), color, bold=True)
        labels.append(f"{name}: {shown(side.recipe.mean, side.recipe.sd)}")
        for number, run in enumerate(side.runs, 1):
            _draw_interval(axes, run, -len(labels), color, bold=False)
            labels.append(f"run {number}")
    axes.set_yticks([-i for i in range(len(labels))], labels, fontsize=8.5)
    axes.set_ylim(-len(labels) + 0.4, 0.6)
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRAY, alpha=0.25, lw=0.6)
    axes.set_xlabel(QUANTITY_NAMES[quantity].format(common=found.common_asymptote))
    return _finish(axes, found.verdict, f"scatter between seeds {found.seed_sd:.3f}, {found.seed_source}")


QUANTITY_NAMES = {
    "asymptote": "ceiling A, 90% interval",
    "efficiency": "steepness B at the common ceiling {common:.3f}, 90% interval",
}
"""Axis labels, by key of `QUANTITIES`."""


def plot_backtest(axes: Any, curve: Curve, parts: Sequence[Fit]) -> Any:
    """Draw the forecasts from the first parts of a run, with 90% bands for its evaluations.

    Args:
        axes: matplotlib Axes.
        curve: The whole run.
        parts: Fits of its first parts, from `first_parts`.
    """
    axes.plot(curve.compute, curve.metric, "o", ms=3.5, color=INK, zorder=3, label="held-out evaluation")
    for part, color in zip(parts, _colors(len(parts)), strict=True):
        band = forecast_of_rest(part, curve)
        share = part.last_compute / curve.last_compute
        axes.fill_between(band.compute, band.low, band.high, color=color, alpha=0.14, lw=0)
        axes.plot(band.compute, band.mean, color=color, lw=1.8, label=f"forecast from the first {share:.0%}")
        axes.axvline(part.last_compute, color=color, lw=0.9, ls=":")
    axes.set_xlabel(f"training compute ({curve.unit})")
    axes.set_ylabel(metric_name(curve))
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)
    return _finish(axes, f"{curve.label}   first parts predict the rest".strip(), "bands should contain 9 of 10 points")


def metric_name(curve: Curve) -> str:
    """Return the name of the metric: with bounds [0, 1] it is taken to be a pass rate."""
    return "held-out pass rate" if curve.bounds == (0.0, 1.0) else "held-out metric"


def save_curves(path: Path, fits: Sequence[Fit], note: str = "") -> None:
    """Write a PNG with one panel for each fitted curve, because tasks may differ in level and compute."""
    from matplotlib.figure import Figure  # pyplot has global state, and loggers draw in threads

    with _DRAWING:
        figure = Figure(figsize=(8 * len(fits), 4.8), dpi=140, layout="constrained")
        panels = figure.subplots(1, len(fits), squeeze=False)
        for axes, found in zip(panels[0], fits, strict=True):
            plot_curve(axes, found, note=note)
        with whole(path) as temporary:
            figure.savefig(temporary)


_DRAWING = threading.Lock()
"""Matplotlib draws in one thread at a time."""


def _draw_fit(axes: Any, found: Fit, grid_M: Any) -> None:
    band = found.predict(grid_M)
    seen_M = grid_M <= found.last_compute
    axes.axvspan(found.last_compute, grid_M[-1], color=GRAY, alpha=0.07, lw=0)
    if np.isfinite(band.low).all():  # the paper's procedure gives no band
        axes.fill_between(grid_M, band.low, band.high, color=BLUE, alpha=0.18, lw=0, label="90% band of the curve")
    axes.plot(grid_M[seen_M], band.mean[seen_M], color=BLUE, lw=2, label="fit")
    axes.plot(grid_M[~seen_M], band.mean[~seen_M], color=BLUE, lw=2, ls=(0, (4, 2)), label="forecast")


def _draw_multiples(axes: Any, found: Fit, ahead: float) -> None:
    for at in (2.0, 4.0):
        if at <= ahead:
            level = float(found.predict([at * found.last_compute]).mean[0])
            axes.annotate(
                f"{at:.0f}×: {level:.3f}", (at * found.last_compute, level), xytext=(-6, -9 - 7 * at),
                textcoords="offset points", ha="right", color=BLUE, fontsize=9,
                bbox={"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 0.5},
            )  # fmt: skip
            axes.plot([at * found.last_compute], [level], "o", ms=5, mfc="white", mec=BLUE, zorder=3)


def _draw_ceiling(axes: Any, found: Fit) -> None:
    ceiling = found.asymptote
    words = "ceiling A" if found.identified else "ceiling A, not identified yet"
    words += f" = {ceiling.mean:.3f}"
    if np.isfinite(ceiling.sd):
        axes.axhspan(ceiling.low, ceiling.high, color=ORANGE, alpha=0.12, lw=0)
        words += f" ({ceiling.low:.3f} to {ceiling.high:.3f})"
    axes.axhline(ceiling.mean, color=ORANGE, lw=1, ls="--")
    axes.annotate(
        words, (0.99, ceiling.mean), xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points",
        ha="right", color=ORANGE, fontsize=9,
    )  # fmt: skip


def _draw_interval(axes: Any, estimate: Estimate, row: int, color: str, *, bold: bool) -> None:
    axes.plot([estimate.low, estimate.high], [row, row], color=color, lw=3 if bold else 1.2, solid_capstyle="round")
    axes.plot([estimate.mean], [row], "o", ms=7 if bold else 4, color=color)


def _plain_ticks(axis: Any) -> None:
    """Label a short log axis with plain numbers: 1.5, not 1.5 x 10^0."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def _plain_log_ticks(axis: Any) -> None:
    """Label a longer log axis at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _colors(count: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(count)]


def _finish(axes: Any, title: str, note: str) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11, pad=22 if note else 8)
    if note:
        axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8.5, color=GRAY)
    return axes
