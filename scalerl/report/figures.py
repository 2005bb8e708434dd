"""Pictures of curves with matplotlib. Each function draws into the Axes it is given and returns it; none fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalerl.report.outlook import AXIS_NAMES

if TYPE_CHECKING:
    from scalerl.scaling import Fit

BLUE, GREY, ORANGE = "#2a5d9f", "#8a8f98", "#c8641e"


def plot_curve(axes: Any, found: Fit, *, ahead: float = 4.0, note: str = "") -> Any:
    """Draw points, fitted curve with its 90 % band, the forecast beyond the last point, and the ceiling.

    Args:
        axes: matplotlib Axes.
        found: the fit.
        ahead: how far to draw, in multiples of the last point's compute.
        note: one line under the title, for what a reader must know about the data.
    """
    curve = found.curve
    compute_N, metric_N = curve.compute, curve.metric
    positive_N = compute_N > 0
    first, last = float(compute_N[positive_N].min()), found.last_compute
    grid_M = np.geomspace(first * 0.6, last * ahead, 300)
    band = found.predict(grid_M)
    seen_M = grid_M <= last
    axes.axvspan(last, grid_M[-1], color=GREY, alpha=0.07, lw=0)
    axes.fill_between(grid_M, band.low, band.high, color=BLUE, alpha=0.18, lw=0, label="90 % band of the curve")
    axes.plot(grid_M[seen_M], band.mean[seen_M], color=BLUE, lw=2, label="fit")
    axes.plot(grid_M[~seen_M], band.mean[~seen_M], color=BLUE, lw=2, ls=(0, (4, 2)), label="forecast")
    error_N = None if curve.stderr is None else curve.stderr[positive_N]
    axes.errorbar(
        compute_N[positive_N], metric_N[positive_N], yerr=error_N, fmt="o", ms=4, color="#1b1f24", ecolor=GREY,
        elinewidth=0.8, capsize=0, label="held-out evaluation (s.e. over prompts)", zorder=3,
    )  # fmt: skip
    _draw_ceiling(axes, found)
    for at in (2.0, 4.0):
        if at <= ahead:
            level = found.predict([at * last])
            axes.annotate(
                f"{at:.0f}×: {float(level.mean[0]):.3f}", (at * last, float(level.mean[0])), xytext=(-6, -16),
                textcoords="offset points", ha="right", color=BLUE, fontsize=9,
            )  # fmt: skip
            axes.plot([at * last], level.mean, "o", ms=5, mfc="white", mec=BLUE, zorder=3)
    if (compute_N == 0).any():
        axes.axhline(float(metric_N[compute_N == 0][0]), color=GREY, lw=0.8, ls=":")
        axes.annotate("before RL", (0.01, float(metric_N[compute_N == 0][0])), xycoords=("axes fraction", "data"),
                      xytext=(0, 3), textcoords="offset points", color=GREY, fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(grid_M[0], grid_M[-1] * 1.05)
    axes.set_xlabel(f"training compute ({AXIS_NAMES.get(curve.axis, curve.axis)}, log scale)")
    axes.set_ylabel("held-out pass rate")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize=8.5)
    title = f"{curve.label}   A = {found.asymptote.mean:.3f}, B = {found.efficiency.mean:.2f}"
    axes.set_title(title, loc="left", fontsize=11, pad=22 if note else 8)
    if note:
        axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=8.5, color=GREY)
    return axes


def _draw_ceiling(axes: Any, found: Fit) -> None:
    ceiling = found.asymptote
    axes.axhspan(ceiling.low, ceiling.high, color=ORANGE, alpha=0.12, lw=0)
    axes.axhline(ceiling.mean, color=ORANGE, lw=1, ls="--")
    words = "ceiling A" if found.identified else "ceiling A, not identified yet"
    axes.annotate(
        f"{words} = {ceiling.mean:.3f} ({ceiling.low:.3f} to {ceiling.high:.3f})", (0.99, ceiling.mean),
        xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points", ha="right", color=ORANGE,
        fontsize=9,
    )  # fmt: skip


def save_curve(path: Path, found: Fit, note: str = "") -> None:
    """Write the picture of one fitted curve as PNG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.8), dpi=140, layout="constrained")
    plot_curve(axes, found, note=note)
    figure.savefig(path)
    plt.close(figure)
