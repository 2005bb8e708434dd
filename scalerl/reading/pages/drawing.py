"""Draws figures with matplotlib: `draw_figure` on axes, `plot` a curve or a fit in scripts, `picture` as a PNG.

Sizes follow the width of the axes, so that the same figure fits a column of a paper and a page.
"""

from __future__ import annotations

import math
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from scalerl.reading.curves.forecast import band_text
from scalerl.reading.curves.notebook import Scale
from scalerl.reading.curves.units import UNITS, number_text, scale_of
from scalerl.reading.pages.analysis import COLORS
from scalerl.reading.pages.figure import (
    TINT,
    Axis,
    Errors,
    Figure,
    FigurePart,
    Line,
    Points,
    Rule,
    Series,
    ShadedBand,
    Span,
)
from scalerl.reading.pages.page_figures import RecipeRuns, curves_figure, young_figure
from scalerl.reading.pages.palette import DARK, LIGHT, Palette

if TYPE_CHECKING:
    from scalerl.reading.curves import Curve, Fit

TEXT_POINTS = 7.0
"""Size of text on narrow axes, points; sizes of lines and points are for it."""

WIDE_TEXT = 9.0
"""Size of text on wide axes, points."""

NARROW = 4.6
"""Width of axes below which text is as small as a paper's, inches."""

DRAWING = threading.Lock()
"""Matplotlib draws in one thread at a time."""

FONTS = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Fonts that publishers take: TrueType instead of Type 3, and text as text."""

MATPLOTLIB_DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (4, 1.5, 1, 1.5))}
"""Dashes of lines as those of matplotlib."""

MATPLOTLIB_SYMBOLS = {
    "circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X", "triangle-up": "^", "triangle-down": "v",
    "triangle-left": "<", "circle-open": "o", "line-ew-open": "_",
}  # fmt: skip
"""Symbols of points as those of matplotlib; "-open" are hollow."""


def draw_figure(axes: Any, figure: FigurePart, palette: Palette = LIGHT, *, title: str = "") -> Any:
    """Draw a figure on axes, with its legend and a title above them; return the axes."""
    x, y = figure.x or Axis(), figure.y or Axis()
    text = TEXT_POINTS if axes.get_window_extent().width / axes.figure.dpi < NARROW else WIDE_TEXT
    axes.set_xscale(x.scale)
    axes.set_yscale(y.scale)
    legend: dict[str, Any] = {}
    for shape in figure.shapes:
        _draw_shape(axes, shape, palette, text)
    for series in figure.series:
        if series.frame in (None, figure.first_frame):
            handle = _draw_series(axes, series, palette, text / TEXT_POINTS)
            if series.legend:
                legend.setdefault(series.name, handle)
    _set_axis(axes, axes.xaxis, x, palette, text)
    _set_axis(axes, axes.yaxis, y, palette, text)
    axes.set_facecolor(palette.paper)
    axes.figure.set_facecolor(palette.paper)
    axes.tick_params(which="both", labelsize=text - 0.5, colors=palette.muted, width=0.6)
    for spine in axes.spines.values():
        spine.set(color=palette.muted, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if y.is_rows:
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    if title or len(legend) > 1:
        _legend_above(axes, legend, palette, text, title)
    return axes


def _draw_series(axes: Any, series: Series, palette: Palette, size: float) -> Any:
    """Draw one series; return its handle for the legend. All have one height: a later one lies on an earlier one."""
    color, opacity = palette.color(series.color)
    x = np.asarray(series.x, float)
    if isinstance(series, ShadedBand):
        if series.edges:
            for y in (series.low, series.high):
                axes.plot(x, y, color=color, alpha=0.5, lw=0.4 * size, zorder=2)
        shade = palette.mixed(series.color, TINT)
        return axes.fill_between(x, series.low, series.high, color=shade, lw=0, zorder=2)
    if isinstance(series, Line):
        style = {"lw": 0.6 * size * series.width, "ls": MATPLOTLIB_DASHES[series.dash]}
        return axes.plot(x, series.y, color=color, alpha=opacity, zorder=2, **style)[0]
    assert isinstance(series, Points), series
    y = np.asarray(series.y, float)
    if series.errors:
        _draw_errors(axes, x, y, series.errors, palette, size)
    symbols = np.broadcast_to(np.asarray(series.symbol), x.shape)
    handles = []
    for symbol in dict.fromkeys(symbols.tolist()):
        at_N, hollow = symbols == symbol, symbol.endswith("-open")
        face = "none" if hollow else color
        shape = {
            "marker": MATPLOTLIB_SYMBOLS[symbol],
            "ms": 0.45 * size * series.size,
            "mfc": face,
            "mew": 0.8 if hollow else 0,
        }
        handles += axes.plot(x[at_N], y[at_N], ls="", color=color, alpha=opacity, zorder=2, **shape)
    return handles[0] if handles else axes.plot([], [], color=color)[0]


def _draw_errors(axes: Any, x: Any, y: Any, errors: Errors, palette: Palette, size: float) -> None:
    color, opacity = palette.color(errors.color)
    lengths = {f"{errors.along}err": np.maximum(np.asarray(errors.size, float), 0.0)}
    axes.errorbar(x, y, **lengths, fmt="none", ecolor=color, alpha=opacity, elinewidth=0.6 * size * errors.thickness,
                  capsize=0.4 * size * errors.cap, capthick=0.6 * size, zorder=2)  # fmt: skip


def _draw_shape(axes: Any, shape: Rule | Span, palette: Palette, text: float) -> None:
    color, opacity = palette.color(shape.color)
    if isinstance(shape, Span):
        axes.axvspan(shape.low, shape.high, color=color, alpha=opacity, lw=0, zorder=1)
        return
    line = axes.axvline if shape.along == "x" else axes.axhline
    line(shape.at, color=color, lw=0.6, ls=MATPLOTLIB_DASHES["dot"], zorder=3)
    if shape.label:
        axes.annotate(shape.label, (0.99, shape.at), xycoords=("axes fraction", "data"), xytext=(0, 2),
                      textcoords="offset points", ha="right", color=color, fontsize=text - 1)  # fmt: skip


def _set_axis(axes: Any, axis: Any, wanted: Axis, palette: Palette, text: float) -> None:
    """Set the ends, the ticks and the title of an axis; amounts of compute are in the unit that people use."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

    limits = axes.set_xlim if axis is axes.xaxis else axes.set_ylim
    if wanted.limits:
        limits(*wanted.limits)
    low, high = sorted(axis.get_view_interval())
    title, name = wanted.title, wanted.compute
    size, unit = scale_of(high, name) if name in ("flops", "tokens") else (1.0, UNITS.get(name, name))
    decades = math.log10(high / low) if wanted.scale == "log" else 0.0
    if wanted.ticks is not None:
        axis.set_ticks(list(wanted.ticks), [_plain(label) for label in wanted.ticks.values()])
        axis.set_minor_locator(NullLocator())
    elif wanted.scale == "log":
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if wanted.percent:
        axis.set_major_formatter(PercentFormatter(1.0))
    elif name:
        axis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value / size) if value else "0"))
        title = f"{title} ({unit})"
    elif wanted.ticks is None and 0 < decades < 5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_label_text(_plain(title), fontsize=text, color=palette.ink)


def _legend_above(axes: Any, legend: Mapping[str, Any], palette: Palette, text: float, title: str) -> None:
    """Draw the legend under the title, above the axes, in as many columns as fit in their width."""
    size = text - 0.5
    inches = axes.get_window_extent().width / axes.figure.dpi
    most = max(12, int(inches * 72 / size / 0.52) - 5)
    names = [textwrap.fill(_plain(name), most) for name in legend]
    longest = max((len(line) for name in names for line in name.split("\n")), default=1)
    columns = max(1, min(len(names), int(inches / ((longest * 0.5 + 4) * size / 72))))
    lines = [wrapped for line in title.split("\n") for wrapped in textwrap.wrap(_plain(line), most)]
    made = axes.legend(
        legend.values(), names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False, fontsize=size,
        labelcolor=palette.ink, handlelength=1.6, columnspacing=1.0, labelspacing=0.3, borderaxespad=0.2,
        title="\n".join(lines) or None, title_fontsize=text, alignment="left",
    )  # fmt: skip
    made.get_title().set_color(palette.ink)


def _plain(text: str) -> str:
    """Return text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


# ---------------------------------------------------------------------------------------------------- curves and fits


class _Kept(NamedTuple):
    """What was drawn on some axes, so that another curve can be added to them."""

    runs: list[tuple[str, Curve, Fit]]
    artists: list[Any]


_KEPT: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()


def plot(
    shown: Curve | Fit, axes: Any = None, *, name: str = "", note: str = "", scale: Scale = "log", dark: bool = False
) -> Any:
    """Draw the figure of curves of a curve or its fit; of a curve with too few points for a fit, the points alone.

    A second curve on the same axes gets another color. Matplotlib's `set_title` would lie on the legend: give `name`.

    Args:
        shown: The curve or its fit.
        axes: matplotlib Axes; None: new ones of pyplot.
        name: Name of the run; by default the label of its curve.
        note: A line under the title, for example about the data.
        scale: Scale of the compute axis, "log" or "linear".
        dark: Whether colors are for a dark background.

    Returns:
        The axes.
    """
    from scalerl.reading.curves import Curve, CurveError, Fit, fit

    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    palette = DARK if dark else LIGHT
    try:
        f = shown if isinstance(shown, Fit) else fit(shown)
    except CurveError:
        return draw_figure(axes, young_figure(shown if isinstance(shown, Curve) else shown.curve), palette, title=name)
    kept = _KEPT.setdefault(axes, _Kept([], []))
    for artist in kept.artists:
        artist.remove()
    before = set(axes.get_children())
    named, number = name or f.curve.label or "run", len(kept.runs) + 1
    kept.runs.append((f"{named} ({number})" if named in (run[0] for run in kept.runs) else named, f.curve, f))
    recipes = [RecipeRuns(run[0], f"@s{at % COLORS}", [run]) for at, run in enumerate(kept.runs)]
    alone = f"{name or f.curve.label}   A = {f.asymptote.mean:.3f}, B = {f.efficiency.mean:.2f}".strip()
    title = f"{alone if len(recipes) == 1 else ''}\n{note}".strip()
    draw_figure(axes, with_scale(curves_figure(recipes), scale), palette, title=title)
    kept.artists[:] = set(axes.get_children()) - before - {axes.get_legend()}
    return axes


def with_scale(figure: Figure, scale: Scale) -> Figure:
    """Return a figure with the scale of its compute axis."""
    options = figure.choices.get("Compute axis")
    return figure.with_part(options["logarithmic" if scale == "log" else "linear"]) if options else figure


def images(
    panels: Sequence[Callable[[Any], Any]], size: tuple[float, float], dpi: int, formats: Sequence[str] = ("png",)
) -> dict[str, bytes]:
    """Return a picture in some formats; it has panels side by side, each drawn on its axes."""
    import matplotlib
    from matplotlib.figure import Figure  # pyplot has global state, and loggers draw in threads

    contents = {}
    with DRAWING, matplotlib.rc_context(FONTS):
        figure = Figure(figsize=size, layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel(axes)
        for kind in formats:
            file = BytesIO()
            figure.savefig(file, format=kind, dpi=dpi)
            contents[kind] = file.getvalue()
    return contents


def picture(fits: Sequence[Fit], note: str = "") -> bytes:
    """Return a PNG with one panel for each fitted curve, because tasks may differ in level and compute.

    Under the panels stands what their bands mean.

    Args:
        fits: Fits to draw, at least one.
        note: As in `plot`.
    """

    def panel(axes: Any, f: Fit) -> None:
        plot(f, axes, note=note)
        caption = textwrap.fill(band_text(f), 120)
        axes.annotate(caption, (0, 0), xycoords="axes fraction", xytext=(0, -38), textcoords="offset points",
                      fontsize=8, color=LIGHT.muted, va="top")  # fmt: skip

    return images([partial(panel, f=f) for f in fits], (8 * len(fits), 5.2), 140)["png"]
