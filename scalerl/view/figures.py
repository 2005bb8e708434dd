"""The picture of a curve with matplotlib, for files, trackers, notebooks and scripts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scalerl.scaling import Curve, Fit

BLUE, GRAY, ORANGE, INK = "#2a5d9f", "#8a8f98", "#c8641e", "#1b1f24"


AHEAD = 4.0
"""End of the drawn forecasts, in multiples of the last point's compute."""


def plot_curve(axes: Any, fitted: Fit, *, note: str = "", scale: str = "log") -> Any:
    """Draw points, fitted curve with its 90% band, the forecast beyond the last point, and the ceiling.

    Args:
        axes: matplotlib Axes.
        fitted: The fit.
        note: One line under the title, for example about the data.
        scale: Scale of the compute axis, "log" or "linear". A log axis cannot show the point at compute 0; its level
            is drawn as a line.
    """
    curve, last = fitted.curve, fitted.last_compute
    drawn_N = curve.compute > 0 if scale == "log" else np.full(len(curve), True)
    start = float(curve.compute[curve.compute > 0].min()) * 0.6 if scale == "log" else 0.0
    spaced = np.geomspace if scale == "log" else np.linspace
    grid_M = np.asarray(spaced(start, last * AHEAD, 300))
    _draw_fit(axes, fitted, grid_M)
    axes.errorbar(
        curve.compute[drawn_N], curve.metric[drawn_N], yerr=None if curve.stderr is None else curve.stderr[drawn_N],
        fmt="o", ms=4, color=INK, ecolor=GRAY, elinewidth=0.8, capsize=0, zorder=3,
        label=points_name(curve),
    )  # fmt: skip
    _draw_ceiling(axes, fitted)
    _draw_multiples(axes, fitted)
    before_N = curve.compute == 0
    if before_N.any():
        level = float(curve.metric[before_N][0])
        axes.axhline(level, color=GRAY, lw=0.8, ls=":")
        axes.annotate("before RL", (0.99, level), xycoords=("axes fraction", "data"), xytext=(0, 3),
                      textcoords="offset points", ha="right", color=GRAY, fontsize=8)  # fmt: skip
    axes.set_xscale(scale)
    axes.set_xlim(grid_M[0], grid_M[-1] * 1.05)
    axes.set_xlabel(f"training compute ({curve.unit}{', log scale' if scale == 'log' else ''})")
    axes.set_ylabel(metric_name(curve))
    axes.legend(loc="upper left" if scale == "log" else "center right", frameon=False, fontsize=8.5)
    title = f"{curve.label}   A = {fitted.asymptote.mean:.3f}, B = {fitted.efficiency.mean:.2f}"
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title.strip(), loc="left", fontsize=11, pad=22 if note else 8)
    if note:
        axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8.5, color=GRAY)
    return axes


def metric_name(curve: Curve) -> str:
    """Return the name of the metric: with bounds [0, 1] it is taken to be a pass rate."""
    if curve.training:
        return "training reward"
    return "held-out pass rate" if curve.bounds == (0.0, 1.0) else "held-out metric"


def points_name(curve: Curve) -> str:
    """Return what the points of a curve are, with their error bars."""
    if curve.training:
        return "training reward" + ("" if curve.stderr is None else " (s.e. by scatter)")
    return "held-out evaluation" + ("" if curve.stderr is None else " (s.e. over prompts)")


def picture(fits: Sequence[Fit], note: str = "") -> bytes:
    """Return a PNG with one panel for each fitted curve, because tasks may differ in level and compute.

    Args:
        fits: Fits to draw, at least one.
        note: As in `plot_curve`.
    """
    from matplotlib.figure import Figure  # pyplot has global state, and loggers draw in threads

    drawn = BytesIO()
    with _DRAWING:
        figure = Figure(figsize=(8 * len(fits), 4.8), dpi=140, layout="constrained")
        for axes, fitted in zip(figure.subplots(1, len(fits), squeeze=False)[0], fits, strict=True):
            plot_curve(axes, fitted, note=note)
        figure.savefig(drawn, format="png")
    return drawn.getvalue()


_DRAWING = threading.Lock()
"""Matplotlib draws in one thread at a time."""


def _draw_fit(axes: Any, fitted: Fit, grid_M: Any) -> None:
    band = fitted.predict(grid_M)
    seen_M = grid_M <= fitted.last_compute
    axes.axvspan(fitted.last_compute, grid_M[-1], color=GRAY, alpha=0.07, lw=0)
    axes.fill_between(grid_M, band.low, band.high, color=BLUE, alpha=0.18, lw=0, label="90% band of the curve")
    axes.plot(grid_M[seen_M], band.mean[seen_M], color=BLUE, lw=2, label="fit")
    axes.plot(grid_M[~seen_M], band.mean[~seen_M], color=BLUE, lw=2, ls=(0, (4, 2)), label="forecast")


def _draw_multiples(axes: Any, fitted: Fit) -> None:
    for at in (2.0, AHEAD):
        level = float(fitted.predict([at * fitted.last_compute]).mean[0])
        axes.annotate(
            f"{at:.0f}×: {level:.3f}", (at * fitted.last_compute, level), xytext=(-6, -9 - 7 * at),
            textcoords="offset points", ha="right", color=BLUE, fontsize=9,
            bbox={"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 0.5},
        )  # fmt: skip
        axes.plot([at * fitted.last_compute], [level], "o", ms=5, mfc="white", mec=BLUE, zorder=3)


def _draw_ceiling(axes: Any, fitted: Fit) -> None:
    ceiling = fitted.asymptote
    words = "ceiling A" if fitted.identified else "ceiling A, not identified yet"
    axes.axhspan(ceiling.low, ceiling.high, color=ORANGE, alpha=0.12, lw=0)
    words += f" = {ceiling:.3f}"
    axes.axhline(ceiling.mean, color=ORANGE, lw=1, ls="--")
    axes.annotate(
        words, (0.99, ceiling.mean), xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points",
        ha="right", color=ORANGE, fontsize=9,
    )  # fmt: skip
