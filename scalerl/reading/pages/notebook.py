"""What a notebook shows of a fit, a forecast, a comparison or a run: the decision, the printed lines, a picture."""

from __future__ import annotations

import base64
import html
from functools import singledispatch
from typing import Any

from scalerl.reading.curves import Comparison, CurveError, Fit, Forecast, advise
from scalerl.reading.curves.forecast import band_text
from scalerl.reading.pages.drawing import draw_figure, images, with_scale
from scalerl.reading.pages.figure import Figure
from scalerl.reading.pages.page_figures import RecipeRuns, curves_figure, recipes_of

WIDTH = 6.4
"""Width of a picture, inches."""


@singledispatch
def html_of(shown: Any) -> str:
    """Return what a notebook shows of a record, as HTML."""
    return numbers(str(shown))


@html_of.register
def _(shown: Fit) -> str:
    return joined(strong(str(advise(shown))), numbers(str(shown)), picture_html(of_fit(shown)), quiet(band_text(shown)))


@html_of.register
def _(shown: Forecast) -> str:
    return joined(strong(str(advise(shown.fit))), numbers(str(shown)), picture_html(of_fit(shown.fit)))


@html_of.register
def _(shown: Comparison) -> str:
    text = str(shown).removeprefix(shown.sentence).lstrip("\n")
    return joined(strong(shown.sentence), numbers(text), picture_html(curves_figure(recipes_of(shown), shown)))


def run_html(run: Any) -> str:
    """Return what a notebook shows of a run directory: its state, and the fits of its tasks.

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


def numbers(text: str) -> str:
    """Return printed lines as they are; long ones are wrapped."""
    return f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>'


def of_fit(shown: Fit) -> Figure:
    """Return the figure of curves of a fit."""
    return curves_figure([RecipeRuns(shown.curve.label, "@s0", [(shown.curve.label, shown.curve, shown)])])


def picture_html(figure: Figure) -> str:
    """Return a figure as an image in the page."""
    made = images([lambda axes: draw_figure(axes, with_scale(figure, "log"))], (WIDTH, 0.6 * WIDTH), 110)
    data = base64.b64encode(made["png"]).decode("ascii")
    return f'<img alt="{html.escape(figure.title)}" style="max-width:100%" src="data:image/png;base64,{data}">'
