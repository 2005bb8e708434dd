"""What a notebook shows of a fit, a forecast, a comparison or a run: the decision, a small table and a picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from scalerl.scaling import Comparison, CurveError, Fit, Forecast, advise
from scalerl.scaling.estimate import Estimate
from scalerl.scaling.forecast import band_text, evaluation_text
from scalerl.scaling.units import range_text
from scalerl.view.drawing import draw, png, with_scale
from scalerl.view.figure import Figure
from scalerl.view.page_figures import Recipe, curves_figure, recipes_of

WIDTH = 6.4
"""Width of a picture, inches."""


@singledispatch
def html_of(shown: Any) -> str:
    """Return what a notebook shows of a record, as HTML."""
    return f"<pre>{html.escape(str(shown))}</pre>"


@html_of.register
def _(shown: Fit) -> str:
    middle = shown.midpoint
    suffix = "" if shown.identified else ", not identified yet"
    rows = [
        (f"ceiling of this climb, A{suffix}", f"{shown.asymptote:.3f}"),
        ("steepness B", f"{shown.efficiency:.2f}"),
        ("midpoint C_mid", range_text(middle.mean, middle.low, middle.high, shown.curve.axis)),
        ("last point", f"{shown.curve.metric[-1]:.3f} at {shown.curve.text(shown.last_compute)}"),
    ]
    notes = [band_text(shown), *shown.warnings]
    return joined(strong(str(advise(shown))), table(rows), picture(of_fit(shown)), *map(quiet, notes))


@html_of.register
def _(shown: Forecast) -> str:
    curve = shown.fit.curve
    evaluation = evaluation_text(curve, shown.mean_of)
    rows = [("now", f"{Estimate.__format__(shown.now, '.3f')}", "")]
    rows += [
        (f"at {curve.text(level.compute)}", f"{level:.3f}", f"{single.low:.3f} to {single.high:.3f}")
        for level, single in zip(shown.at, shown.evaluations, strict=True)
    ]
    head = ("", "level of the curve", evaluation)
    advice = strong(str(advise(shown.fit)))
    return joined(advice, table(rows, head), picture(of_fit(shown.fit)), *map(quiet, shown.notes()))


@html_of.register
def _(shown: Comparison) -> str:
    curve = shown.sides[0][0].curve
    rows = [
        (
            f"lead of {shown.names[0]} measured at {curve.text(shown.measured.compute)}",
            f"{shown.measured.difference:.3f}",
        ),
        (f"forecast at {curve.text(shown.forecast.compute)}", f"{shown.forecast.difference:.3f}"),
        (f"ratio of compute needed to {shown.level:.3f}", f"{shown.compute_ratio:.2f}"),
        ("difference of the climbs' ceilings", f"{shown.asymptote_difference:.3f}"),
        *((f"next gain of {name}", str(gain)) for name, gain in zip(shown.names, shown.next_gains, strict=True)),
    ]
    advice = [quiet(shown.advice)] if shown.advice else []
    return joined(strong(shown.sentence), *advice, table(rows), picture(curves_figure(recipes_of(shown), shown)))


def run_html(run: Any) -> str:
    """Return what a notebook shows of a run directory: its state, and the fit of its first task.

    Args:
        run: An `api.Run`.
    """
    state = f"{run.path}: step {run.step} of {run.info.steps}{', finished' if run.finished else ''}"
    head = joined(strong(run.info.title), quiet(state))
    try:
        fits = [run.fit(task=task) for task in run.info.tasks]
    except CurveError as error:
        return joined(head, quiet(f"No forecast yet: {error}."))
    return joined(head, *(html_of(f) for f in fits))


# -------------------------------------------------------------------------------------------------------------- parts


def joined(*parts: str) -> str:
    """Return parts of a page below each other."""
    return f"<div>{''.join(parts)}</div>"


def strong(text: str) -> str:
    """Return a sentence that stands out."""
    return f"<p><b>{html.escape(text)}</b></p>"


def quiet(text: str) -> str:
    """Return a sentence in small print."""
    return f"<p><small>{html.escape(text)}</small></p>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows of text as a table; the first cell of a row is its heading."""
    top = f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>" if head else ""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f"<table>{top}{body}</table>"


def of_fit(shown: Fit) -> Figure:
    """Return the figure of curves of a fit."""
    return curves_figure([Recipe(shown.curve.label, "@s0", [(shown.curve.label, shown.curve, shown)])])


def picture(figure: Figure) -> str:
    """Return a figure as an image in the page."""
    image = png([lambda axes: draw(axes, with_scale(figure, "log"))], (WIDTH, 0.6 * WIDTH), 110)
    data = base64.b64encode(image).decode("ascii")
    return f'<img alt="{html.escape(figure.title)}" style="max-width:100%" src="data:image/png;base64,{data}">'
