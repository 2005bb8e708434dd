"""The picture of curves with matplotlib, for files, trackers, notebooks, scripts and papers.

Colors, sizes and the place of the legend follow the axes: the same function draws a column of a paper and a page.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from scalerl.scaling.notebook import Scale
from scalerl.scaling.units import UNITS, number_text, scale_of
from scalerl.view.palette import DARK, LIGHT, Palette

if TYPE_CHECKING:
    from scalerl.scaling import Curve, Fit

BLUE, ORANGE, INK, GRAY = LIGHT.series[0], LIGHT.series[1], LIGHT.ink, "#8a8f98"

FORECAST_END = 4.0
"""End of the drawn forecasts, in multiples of the last point's compute."""

MULTIPLES = np.array([2.0, FORECAST_END])
"""Where the forecast is marked and its level is given, in multiples of the last point's compute."""

COLUMN = 3.25
"""Width of a column of a paper, inches."""

NARROW = 4.6
"""Width of axes below which text is as small as a paper's, inches."""

FOR_PAPERS = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Fonts that publishers take: TrueType instead of Type 3, and text as text."""


class Drawn(NamedTuple):
    """One fit on some axes."""

    fit_result: Fit
    name: str


class _State(NamedTuple):
    """What was drawn on some axes, so that another curve can be added to them."""

    fits: list[Drawn]
    artists: list[Any]


_STATES: WeakKeyDictionary[Any, _State] = WeakKeyDictionary()


def plot_curve(
    axes: Any, fit_result: Fit, *, note: str = "", scale: Scale = "log", name: str = "", dark: bool = False
) -> Any:
    """Draw points, fitted curve with its 90% band, the forecast beyond the last point, and the ceiling.

    A second curve on the same axes gets another color, and both share one legend with their names.

    Args:
        axes: matplotlib Axes.
        fit_result: The fit.
        note: A line under the title, for example about the data.
        scale: Scale of the compute axis, "log" or "linear". A log axis cannot show the point at compute 0; its level
            is drawn as a line.
        name: Name of the run; by default the label of its curve.
        dark: Whether colors are for a dark background.
    """
    state = _STATES.get(axes, _State([], []))
    for artist in state.artists:
        artist.remove()
    # points with error bars have no artist of their own, only a container for the legend
    axes.containers[:] = [container for container in axes.containers if container[0] not in state.artists]
    state.artists.clear()
    state.fits.append(Drawn(fit_result, name or fit_result.curve.label or f"run {len(state.fits) + 1}"))
    _STATES[axes] = state
    with _new_artists(axes, state.artists):
        _draw(axes, state.fits, note, scale, DARK if dark else LIGHT, titled=bool(name or fit_result.curve.label))
    return axes


def plot(
    shown: Curve | Fit, axes: Any = None, *, name: str = "", note: str = "", scale: Scale = "log", dark: bool = False
) -> Any:
    """Draw a curve or a fit, as `plot_curve`; of a curve with too few points for a fit, the points alone.

    Args:
        shown: The curve or its fit.
        axes: matplotlib Axes; None: new ones of pyplot.
        name: Name of the run; by default the label of its curve.
        note: As in `plot_curve`.
        scale: Scale of the compute axis.
        dark: Whether colors are for a dark background.

    Returns:
        The axes.
    """
    from scalerl.scaling import CurveError, Fit, fit

    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    try:
        fit_result = shown if isinstance(shown, Fit) else fit(shown)
    except CurveError:
        return _plot_points(axes, shown, scale, DARK if dark else LIGHT)
    return plot_curve(axes, fit_result, note=note, name=name, scale=scale, dark=dark)


def _plot_points(axes: Any, curve: Any, scale: Scale, palette: Palette) -> Any:
    text, drawn_N = _text_size(axes), curve.compute > 0 if scale == "log" else np.full(len(curve), True)
    axes.plot(curve.compute[drawn_N], curve.metric[drawn_N], "o", color=palette.ink, ms=text / 2.6)
    axes.set_xscale(scale)
    unit = compute_ticks(axes, curve.axis, curve.last_compute, scale)
    axes.set_xlabel(f"training compute ({unit})", fontsize=text, color=palette.ink)
    axes.set_ylabel(metric_name(curve), fontsize=text, color=palette.ink)
    dress(axes, palette, text)
    return axes


@contextmanager
def _new_artists(axes: Any, artists: list[Any]) -> Iterator[None]:
    """Add the artists that the body draws on axes to a list."""
    before = {id(artist) for artist in axes.get_children()}
    yield
    legend = axes.get_legend()
    artists += [item for item in (*axes.lines, *axes.collections, *axes.patches, *axes.texts)
                if id(item) not in before and item is not legend]  # fmt: skip


def _draw(axes: Any, fits: Sequence[Drawn], note: str, scale: Scale, palette: Palette, *, titled: bool) -> None:
    alone, text = len(fits) == 1, _text_size(axes)
    starts = [float(f.curve.compute[f.curve.compute > 0].min()) for f, _ in fits]
    last = max(f.last_compute for f, _ in fits)
    start = min(starts) * 0.6 if scale == "log" else 0.0
    # a smooth line on both scales
    spaced = np.linspace(start, last * FORECAST_END, 200), np.geomspace(min(starts) * 0.6, last * FORECAST_END, 200)
    compute_M = np.unique(np.concatenate(spaced))
    shown: list[tuple[Any, Any]] = []
    for number, (fit_result, name) in enumerate(fits):
        end, color = fit_result.last_compute * FORECAST_END, palette.series[number % len(palette.series)]
        grid_M = np.unique(np.append(compute_M[(compute_M >= start) & (compute_M <= end)], fit_result.last_compute))
        shown += _draw_run(axes, fit_result, name, grid_M, color, palette, text, scale, alone=alone)
    axes.set_ylabel(metric_name(fits[0].fit_result.curve), fontsize=text, color=palette.ink)
    label = f"{fits[0].name}   " if titled else ""
    a, b = fits[0].fit_result.asymptote.mean, fits[0].fit_result.efficiency.mean
    title = (
        f"{label}A\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{a:.3f}, B\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{b:.2f}"
        if alone
        else ""
    )
    _head(axes, title, note, palette, text)
    _style(axes, fits, scale, palette, text, (start, last * FORECAST_END * (1.06 if alone else 1.15)))
    _place_legend(axes, fits, text, shown, palette)


def _draw_run(
    axes: Any, fit_result: Fit, name: str, grid_M: Any, color: str, palette: Palette, text: float, scale: Scale, *,
    alone: bool,
) -> list[tuple[Any, Any]]:  # fmt: skip
    """Draw one run; return what the legend must not cover, as pairs of x and y."""
    curve, last = fit_result.curve, fit_result.last_compute
    band, seen_M = fit_result.predict(grid_M), grid_M <= last
    if alone:
        axes.axvspan(last, grid_M[-1] * 1.06, color=palette.muted, alpha=0.08, lw=0)
    axes.fill_between(grid_M, band.low, band.high, color=color, alpha=0.2 if alone else 0.13, lw=0,
                      label="90% band of the curve" if alone else None)  # fmt: skip
    axes.plot(grid_M[seen_M], band.mean[seen_M], color=color, lw=text / 5, label="fit" if alone else name)
    axes.plot(grid_M[grid_M >= last], band.mean[grid_M >= last], color=color, lw=text / 5, ls=(0, (4, 2)),
              label=_forecast_name(fit_result) if alone else None)  # fmt: skip
    drawn_N = curve.compute > 0 if scale == "log" else np.full(len(curve), True)
    axes.errorbar(
        curve.compute[drawn_N], curve.metric[drawn_N], yerr=None if curve.stderr is None else curve.stderr[drawn_N],
        fmt="o", ms=text / 2.6, color=palette.ink if alone else color, ecolor=palette.muted if alone else color,
        elinewidth=0.8, alpha=1.0 if alone else 0.75, zorder=3, capsize=0, lw=0,
        label=points_name(curve) if alone else None,
    )  # fmt: skip
    _draw_ceiling(axes, fit_result, grid_M[-1], palette, color, alone=alone)
    if alone:
        _draw_multiples(axes, fit_result, color, palette, text)
        before_N = curve.compute == 0
        if before_N.any() and scale == "log":
            level = float(curve.metric[before_N][0])
            axes.axhline(level, color=palette.muted, lw=0.8, ls=":")
            axes.annotate("before RL", (0.99, level), xycoords=("axes fraction", "data"), xytext=(0, 2),
                          textcoords="offset points", ha="right", color=palette.muted, fontsize=text - 1)  # fmt: skip
    covered = [(grid_M, band.mean), (grid_M, band.high), (grid_M, band.low)]
    if alone and scale == "log":
        covered += [(grid_M, np.full(len(grid_M), level)) for level in curve.metric[curve.compute == 0]]
    return [*covered, (curve.compute[drawn_N], curve.metric[drawn_N])]


def _draw_ceiling(axes: Any, fit_result: Fit, end: float, palette: Palette, color: str, *, alone: bool) -> None:
    """Draw A with its interval: beyond the last point for a single run, and as a mark at its end among several."""
    ceiling = fit_result.asymptote
    if not alone:
        error = [[ceiling.mean - ceiling.low], [ceiling.high - ceiling.mean]]
        axes.errorbar([end * 1.05], [ceiling.mean], yerr=error, fmt="_", color=color, capsize=2, lw=1)
        return
    second = palette.series[1]
    words = f"ceiling of this climb, A = {ceiling:.3f}" + ("" if fit_result.identified else ", not identified yet")
    x = [fit_result.last_compute, end * 1.06]
    axes.fill_between(x, ceiling.low, ceiling.high, color=second, alpha=0.14, lw=0)
    axes.plot(x, [ceiling.mean] * 2, color=second, lw=1, ls="--", label=words)


def _draw_multiples(axes: Any, fit_result: Fit, color: str, palette: Palette, text: float) -> None:
    at_M = MULTIPLES * fit_result.last_compute
    axes.plot(at_M, fit_result.mean(at_M), "o", ms=text / 2, mfc=palette.paper, mec=color, zorder=3)


def _forecast_name(fit_result: Fit) -> str:
    """Return the name of the forecast with its levels; beside the line, they would lie on it or on the points."""
    levels = fit_result.mean(MULTIPLES * fit_result.last_compute)
    text = ", ".join(f"{level:.3f} at {at:.0f}×" for level, at in zip(levels, MULTIPLES, strict=True))
    return f"forecast, {text}"


def _text_size(axes: Any) -> float:
    """Return the size of text for the width of the axes, points."""
    return 7.0 if axes.get_window_extent().width / axes.figure.dpi < NARROW else 9.0


def _style(
    axes: Any,
    fits: Sequence[Drawn],
    scale: Scale,
    palette: Palette,
    text: float,
    span: tuple[float, float],
) -> None:
    curve = fits[0].fit_result.curve
    axes.set_xscale(scale)
    axes.set_xlim(*span)
    unit = compute_ticks(axes, curve.axis, span[1], scale)
    words = f"training compute ({unit}{', log scale' if scale == 'log' else ''})"
    axes.set_xlabel(words, fontsize=text, color=palette.ink)
    low, high = curve.bounds
    least, most = axes.get_ylim()
    axes.set_ylim(max(least, low - 0.02 * (high - low)), min(most, high + 0.02 * (high - low)))
    dress(axes, palette, text)


def dress(axes: Any, palette: Palette, text: float) -> None:
    """Set the colors and sizes of ticks, spines and background."""
    axes.set_facecolor(palette.paper)
    axes.figure.set_facecolor(palette.paper)
    axes.tick_params(which="both", labelsize=text - 0.5, colors=palette.muted, width=0.6)
    for spine in axes.spines.values():
        spine.set(color=palette.muted, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def compute_ticks(axes: Any, axis: str, most: float, scale: Scale) -> str:
    """Label a compute axis in the unit in which people give such amounts, and return the unit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    size, unit = scale_of(most, axis) if axis in ("flops", "tokens") else (1.0, UNITS.get(axis, axis))
    if scale == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    else:
        least = axes.get_xlim()[0]
        decades = np.log10(most / least)
        subs = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value / size) if value else "0"))
    return unit


CORNERS = ("upper left", "lower right", "upper right", "lower left", "center right")
"""Places of the legend, the first empty one is taken."""


def _place_legend(
    axes: Any, fits: Sequence[Drawn], text: float, shown: Sequence[tuple[Any, Any]], palette: Palette
) -> None:
    """Draw the legend in the corner with the fewest points, and make room above them if none is empty."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = axes.get_legend_handles_labels()
    if len(fits) > 1:
        names = [f"{name}, A = {f.asymptote.mean:.3f}" for f, name in fits]
        handles = handles[: len(fits)]
        handles += [Line2D([], [], color=palette.muted, ls=(0, (4, 2))), Patch(color=palette.muted, alpha=0.25, lw=0)]
        names += ["forecast", "90% band"]
    figure = axes.figure.figure  # of a subfigure, the whole figure
    if figure.get_layout_engine() is not None:  # titles and labels take room from the axes
        figure.get_layout_engine().execute(figure)
    extent = axes.get_window_extent()
    inches = extent.width / figure.dpi, extent.height / figure.dpi
    size = text - 0.5
    width = min(0.97, (max(map(len, names), default=1) * 0.52 + 4) * size / 72 / inches[0])
    height = min(0.8, (len(names) * 1.5 + 1.0) * size / 72 / inches[1])
    to_axes = axes.transData + axes.transAxes.inverted()
    points = np.concatenate([to_axes.transform(np.column_stack([x, y])) for x, y in shown])
    points = points[np.isfinite(points).all(axis=1)]
    boxes = {
        "upper left": (0, 1 - height), "upper right": (1 - width, 1 - height), "lower left": (0, 0),
        "lower right": (1 - width, 0), "center right": (1 - width, 0.5 - height / 2),
    }  # fmt: skip
    inside = {
        corner: int(((points >= box) & (points <= np.add(box, (width, height)))).all(axis=1).sum())
        for corner, box in boxes.items()
    }
    corner = min(CORNERS, key=lambda place: inside[place])
    if inside[corner]:  # room above everything
        corner, (low, high) = "upper left", axes.get_ylim()
        axes.set_ylim(low, low + (high - low) / (1 - height))
    legend = axes.legend(handles, names, loc=corner, frameon=False, fontsize=size, labelcolor=palette.ink,
                         borderaxespad=0.3, handlelength=1.8, labelspacing=0.3)  # fmt: skip
    legend.set_zorder(4)


def _head(axes: Any, title: str, note: str, palette: Palette, text: float) -> None:
    """Write the title and the note above the axes, in as many lines as their width takes."""
    columns = max(20, int(axes.get_window_extent().width / axes.figure.dpi * 72 / (0.5 * text)))
    notes = textwrap.wrap(note, columns)
    titles = textwrap.wrap(title, int(columns * text / (text + 1)))
    if notes:
        axes.annotate("\n".join(notes), (0, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points",
                      fontsize=text - 0.5, color=palette.muted, va="bottom")  # fmt: skip
    axes.set_title("\n".join(titles), loc="left", fontsize=text + 1, color=palette.ink,
                   pad=6 + 1.3 * text * len(notes))  # fmt: skip


def metric_name(curve: Curve) -> str:
    """Return the name of the metric: with bounds [0, 1] it is taken to be a pass rate."""
    if curve.training:
        return "training reward"
    return "held-out pass rate" if curve.bounds == (0.0, 1.0) else "held-out metric"


def points_name(curve: Curve) -> str:
    """Return what the points of a curve are, with their error bars."""
    if curve.training:
        return "training reward" + ("" if curve.stderr is None else " ± s.e. by scatter")
    of = f" of {curve.prompts:,} prompts" if curve.prompts else ""
    return f"held-out evaluation{of}" + ("" if curve.stderr is None else " ± s.e.")


def picture(fits: Sequence[Fit], note: str = "") -> bytes:
    """Return a PNG with one panel for each fitted curve, because tasks may differ in level and compute.

    Under the panels stands what their bands mean.

    Args:
        fits: Fits to draw, at least one.
        note: As in `plot_curve`.
    """
    from matplotlib.figure import Figure  # pyplot has global state, and loggers draw in threads

    from scalerl.scaling.forecast import band_text

    drawn = BytesIO()
    with DRAWING:
        figure = Figure(figsize=(8 * len(fits), 5.2), dpi=140, layout="constrained")
        for axes, fit_result in zip(figure.subplots(1, len(fits), squeeze=False)[0], fits, strict=True):
            plot_curve(axes, fit_result, note=note)
            caption = textwrap.fill(band_text(fit_result), 120)
            axes.annotate(caption, (0, 0), xycoords="axes fraction", xytext=(0, -38), textcoords="offset points",
                          fontsize=8, color=LIGHT.muted, va="top")  # fmt: skip
        figure.savefig(drawn, format="png")
    return drawn.getvalue()


DRAWING = threading.Lock()
"""Matplotlib draws in one thread at a time."""
