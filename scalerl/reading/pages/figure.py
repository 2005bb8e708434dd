"""A figure as one record: series of points, lines and bands on two axes. Pages and files draw the same record.

`to_plotly` returns it as plotly JSON for a page; `drawing.draw_figure` draws it with matplotlib. A color is a name of
the palette such as "@s0", or "@s0/0.2" with an opacity; text is plain. plotly is not imported.

Axes in names: N points of a series.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalerl.reading.curves.notebook import Scale
from scalerl.reading.curves.units import UNITS

Json = dict[str, Any]


class Errors(NamedTuple):
    """Error bars of points.

    Example: `Errors([0.01, 0.02], "@s0/0.5")`
    """

    size: ArrayLike
    """Length on both sides, shape (N,), or below and above, shape (2, N)."""
    color: str
    thickness: float = 1.0
    cap: float = 0.0
    """Length of the line across each end, pixels."""
    along: Literal["x", "y"] = "y"


@dataclass(frozen=True, kw_only=True)
class Series:
    """What every series has."""

    x: ArrayLike
    """Shape (N,)."""
    color: str
    name: str = ""
    group: str = ""
    """Series of one group are shown and hidden together."""
    legend: bool = False
    """Whether its name is in the legend."""
    hover: str = ""
    """plotly's template of what a pointed-at place shows, "%{x:.3g}"; empty: nothing."""
    frame: int | None = None
    """Number of the frame in which it is shown; None: in all."""


@dataclass(frozen=True, kw_only=True)
class Line(Series):
    """A line; it has gaps where y is NaN."""

    y: ArrayLike
    width: float = 2.0
    """Pixels on a page."""
    dash: str = "solid"
    """solid, dash, dot or dashdot."""


@dataclass(frozen=True, kw_only=True)
class Points(Series):
    """Points with optional error bars."""

    y: ArrayLike
    size: float = 6.0
    """Pixels on a page."""
    symbol: str | Sequence[str] = "circle"
    """One of `drawing.MATPLOTLIB_SYMBOLS`, or one for each point."""
    errors: Errors | None = None
    texts: Sequence[str] = ()
    """What each point shows when it is pointed at, in place of `hover`."""


@dataclass(frozen=True, kw_only=True)
class ShadedBand(Series):
    """The area between two lines, in a light tint of its color that covers what lies below."""

    low: ArrayLike
    high: ArrayLike
    edges: bool = False
    """Whether its edges are drawn, so that a band that another covers can be seen."""


class Rule(NamedTuple):
    """A dotted line across the figure at one value of an axis, above the series."""

    at: float
    color: str
    along: Literal["x", "y"]
    """The axis of the value."""
    label: str = ""


class Span(NamedTuple):
    """A shaded range of x, behind the series."""

    low: float
    high: float
    color: str


@dataclass(frozen=True)
class Axis:
    """One axis.

    Example: `Axis("training compute", "log", compute="flops", limits=(1e12, 4e15))`
    """

    title: str = ""
    scale: Scale = "linear"
    compute: str = ""
    """Column of the amounts of compute that it shows, such as flops; the title is followed by its unit."""
    limits: tuple[float, float] | None = None
    """Both ends, in the unit of the axis; None: from the values."""
    ticks: Mapping[float, str] | None = None
    """Labels by their places; None: round numbers."""
    percent: bool = False
    """Whether values are shares, which begin at 0 and are shown in percent."""

    @property
    def is_rows(self) -> bool:
        """Whether it has a row for each of its labels, and no grid."""
        return self.ticks is not None and self.scale == "linear"


@dataclass(frozen=True)
class FigurePart:
    """What a figure draws, or what an option of the reader draws in addition or instead."""

    series: Sequence[Series] = ()
    """Drawn in this order; those of an option are drawn in addition."""
    x: Axis | None = None
    y: Axis | None = None
    shapes: Sequence[Rule | Span] = ()
    height: int = 0
    """Pixels on a page; 0: as other figures."""
    frames: Sequence[str] = ()
    """Labels of frames, of which the reader chooses one with a slider; the middle one is shown first."""

    @property
    def first_frame(self) -> int:
        """Number of the frame that is shown first."""
        return len(self.frames) // 2


@dataclass(frozen=True)
class Figure(FigurePart):
    """One figure with its words.

    Example: `Figure([Line(x=[1], y=[2], color="@s0")], Axis("compute"), Axis("reward"), title="Curve", caption="...")`
    """

    title: str = ""
    caption: str = ""
    wide: bool = False
    """Whether it is as wide as the page."""
    choices: Mapping[str, Mapping[str, FigurePart]] = field(default_factory=dict)
    """Choices for the reader, by name, with the effect of each option. The first option is the default."""

    def with_part(self, part: FigurePart) -> Figure:
        """Return the figure with an option."""
        changes = {name: value for name, value in vars(part).items() if value and name != "series"}
        return replace(self, **{**changes, "series": [*self.series, *part.series]})


# ------------------------------------------------------------------------------------------------------------ on a page


def to_plotly(figure: FigurePart) -> Json:
    """Return a figure or a part of one as JSON with plotly's traces and layout; infinite and NaN become None."""
    data, frame_of_traces = list[Json](), list[int | None]()
    for series in figure.series:
        made = _traces(series)
        if series.frame is not None:
            made = [{**trace, "visible": series.frame == figure.first_frame} for trace in made]
        data += made
        frame_of_traces += [series.frame] * len(made)
    layout: Json = {}
    for name, axis in (("xaxis", figure.x), ("yaxis", figure.y)):
        if axis is not None:
            layout[name] = _axis(axis, name)
    if figure.shapes:
        layout["shapes"] = list(map(_shape, figure.shapes))
    if figure.height:
        layout["height"] = figure.height
    if figure.frames:
        layout["sliders"] = [_slider(figure, frame_of_traces)]
    return {"data": data, "layout": layout}


def figure_json(name: str, figure: Figure) -> Json:
    """Return a figure as a page has it: with its name, its words, and the effects of the reader's choices."""
    choices = {
        choice: {option: to_plotly(part) for option, part in options.items()}
        for choice, options in figure.choices.items()
    }
    words = {"title": figure.title, "caption": figure.caption, "wide": figure.wide}
    return {"name": name, **words, **to_plotly(figure), "choices": choices}


def plain(values: ArrayLike | Iterable[float]) -> list[float | None]:
    """Return numbers rounded to six digits; infinite and NaN become None, which plotly leaves out."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).ravel()]


def powers_text(value: float, pattern: str = ".3g") -> str:
    """Return a number such as `4.2e+11` as text, with the power of ten as superscript characters."""
    digits, e, power = format(value, pattern).partition("e")
    return f"{digits} × 10{str(int(power)).translate(SUPERSCRIPTS)}" if e else digits


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Characters of powers by those of numbers."""


def _text(text: str) -> str:
    return html.escape(text, quote=False).replace("\n", "<br>")


def _traces(series: Series) -> list[Json]:
    """Return one trace, of a band two."""
    name = _text(series.name)
    trace: Json = {"mode": "lines", "x": plain(series.x), "showlegend": series.legend}
    if name:
        trace["name"] = name
    if series.group:
        trace["legendgroup"] = series.group
    trace |= {"hovertemplate": f"{series.hover}<extra>{name}</extra>"} if series.hover else {"hoverinfo": "skip"}
    if isinstance(series, ShadedBand):
        edge = {"line": {"color": f"{series.color}/0.5", "width": 0.8 if series.edges else 0}}
        area = {"fill": "tonexty", "fillcolor": f"{series.color}~{TINT}"}
        return [{**trace, **edge, "y": plain(series.low)}, {**trace, **edge, **area, "y": plain(series.high)}]
    if isinstance(series, Line):
        style = {"color": series.color, "width": series.width, "dash": series.dash}
        return [{**trace, "y": plain(series.y), "line": style}]
    assert isinstance(series, Points), series
    marker = {"color": series.color, "size": series.size, "symbol": series.symbol}
    trace |= {"mode": "markers", "y": plain(series.y), "marker": marker}
    if series.texts:
        del trace["hoverinfo"]
        trace |= {"text": list(map(_text, series.texts)), "hovertemplate": "%{text}<extra></extra>"}
    if series.errors:
        bars = np.asarray(series.errors.size, float)
        sides = {"array": plain(bars)} if bars.ndim == 1 else {"arrayminus": plain(bars[0]), "array": plain(bars[1])}
        style = {"color": series.errors.color, "thickness": series.errors.thickness, "width": series.errors.cap}
        trace[f"error_{series.errors.along}"] = {"symmetric": bars.ndim == 1, **sides, **style}
    return [trace]


TINT = 0.16
"""Share of its color in the tint of a band; the rest is the background."""


def _axis(axis: Axis, name: str) -> Json:
    unit = f" ({UNITS.get(axis.compute, axis.compute)})" if axis.compute else ""
    made: Json = {"title": {"text": _text(axis.title + unit)}, "type": axis.scale}
    if axis.scale == "log" and axis.ticks is None and name == "xaxis":
        made |= {"dtick": "D2", "exponentformat": "power" if axis.compute else "none"}  # labels at 1, 2 and 5
    if axis.limits:
        made["range"] = plain(np.log10(axis.limits) if axis.scale == "log" else axis.limits)
    if axis.ticks is not None:
        made |= {"tickvals": list(axis.ticks), "ticktext": list(map(_text, axis.ticks.values()))}
    if axis.is_rows:
        made["showgrid"] = False
    if axis.percent:
        made |= {"tickformat": ".1%", "rangemode": "nonnegative"}
    return made


def _shape(shape: Rule | Span) -> Json:
    if isinstance(shape, Span):
        place = {"x0": shape.low, "x1": shape.high, "y0": 0, "y1": 1, "yref": "paper"}
        return {"type": "rect", **place, "layer": "below", "fillcolor": shape.color, "line": {"width": 0}}
    at, across = shape.along, "y" if shape.along == "x" else "x"
    place = {f"{at}0": shape.at, f"{at}1": shape.at, f"{across}0": 0, f"{across}1": 1, f"{across}ref": "paper"}
    label = {"label": {"text": _text(shape.label), "textposition": "end", "font": {"color": shape.color}}}
    style = {"color": shape.color, "width": 1, "dash": "dot"}
    return {"type": "line", **place, "line": style, **(label if shape.label else {})}


def _slider(figure: FigurePart, frame_of_traces: Sequence[int | None]) -> Json:
    steps = [
        {"label": label, "method": "restyle",
         "args": [{"visible": [frame in (None, number) for frame in frame_of_traces]}]}
        for number, label in enumerate(figure.frames)
    ]  # fmt: skip
    return {
        "active": figure.first_frame, "steps": steps, "pad": {"t": 50},
        "currentvalue": {"prefix": "as of ", "xanchor": "left"}, "bgcolor": "@line", "activebgcolor": "@s0",
        "bordercolor": "@line", "tickcolor": "@line",
    }  # fmt: skip
