"""Builds a page as one self-contained HTML document, from text, a table and figures.

The figures are drawn by plotly.js from the `plotly` package, which includes the script. Unlike Bokeh it needs no
server, unlike Vega no compiler of 33 MB, and its SVG keeps text as text. It adds 5 MB to a page.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

import scalerl
from scalerl.core.errors import ConfigError
from scalerl.core.files import write_whole
from scalerl.scaling import CurveError, Estimate
from scalerl.scaling.estimate import one_power
from scalerl.view.drawing import Figure

TERMS = {
    "A, the ceiling": "the level that the run would reach with unlimited compute.",
    "B, the steepness": "how steep the climb is: the larger B, the less compute the climb takes from start to end.",
    "C<sub>mid</sub>, the midpoint": "the compute at which half of the climb is complete.",
    "90% interval": "contains the true value in nine of ten cases.",
}
"""Terms that every page explains."""


@dataclass(frozen=True)
class PageContent:
    """The parts of a page. All text is HTML: escape untrusted text."""

    title: str
    subtitle: str
    verdicts: str
    terms: Mapping[str, str]
    """How to read the numbers."""
    table_title: str
    table: str
    """From `table`."""
    figures: Mapping[str, Figure]
    """By name; the name is used in element ids."""
    wide: frozenset[str] = frozenset()
    """Figures as wide as the page."""
    more: str = ""
    """Sections after the figures."""


class Cell(NamedTuple):
    """A cell of the table: its HTML, and the key it is sorted by; an empty key comes last."""

    html: str
    key: str | float


def html_page(content: PageContent) -> str:
    """Return the page as one HTML document that needs no network.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    drawings = {
        name: {"data": figure.data, "layout": figure.layout, "choices": figure.choices}
        for name, figure in content.figures.items()
    }
    return Template(_asset("page.html")).substitute(
        version=scalerl.__version__,
        title=content.title,
        subtitle=content.subtitle,
        css=_asset("page.css"),
        js=_asset("theme.js") + _asset("page.js"),
        verdicts=content.verdicts,
        terms="\n".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in content.terms.items()),
        table_title=content.table_title,
        table=content.table,
        figures="\n".join(_figure(name, figure, name in content.wide) for name, figure in content.figures.items()),
        more=content.more,
        plotly=plotly_script(),
        # inside a script element "<" could end it
        json=json.dumps(drawings, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def write_page(path: Path, page: str) -> None:
    """Write a page to a file atomically.

    Raises:
        CurveError: The path cannot be written.
    """
    try:
        write_whole(path, page)
    except OSError as error:
        raise CurveError(
            f"the page cannot be written to {path}: {error.strerror}; give another path with -o"
        ) from error


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table that is sorted by a click on a heading; the first column is the row header."""
    head = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in columns)
    body = "\n".join(_row(cells) for cells in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def text_cell(words: str) -> Cell:
    """Return a cell with text."""
    return Cell(f'<span class="words">{html.escape(words)}</span>', words)


def interval_cell(value: str, interval: str, key: float) -> Cell:
    """Return a cell with a number and its interval below it."""
    return Cell(f"{value}<small>{interval}</small>", key)


def power_cell(estimate: Estimate) -> Cell:
    """Return a cell with an amount of compute and its interval, both with the same power of ten."""
    power, shown = one_power(estimate)
    mean, low, high = (f"{value:.2f}" if power else f"{value:.4g}" for value in shown)
    if not power:
        return interval_cell(mean, f"{low} to {high}", estimate.mean)
    return interval_cell(f"{mean} × 10<sup>{power}</sup>", f"{low} to {high}", estimate.mean)


def swatch(color: str) -> str:
    """Return a dot in a color such as "@s0"."""
    return f'<span class="swatch" style="background: var(--{color[1:]})" aria-hidden="true"></span>'


def warnings(notes: Sequence[str], about: str) -> str:
    """Return a list of warnings as HTML; both arguments are plain text."""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    label = f"Notes about {html.escape(about)}"
    return f'<ul class="warnings" aria-label="{label}">{items}</ul>' if notes else ""


def _row(cells: Sequence[Cell]) -> str:
    def attribute(cell: Cell) -> str:
        key = cell.key if isinstance(cell.key, str) or math.isfinite(cell.key) else ""
        return f'data-key="{html.escape(str(key))}"'

    first, *rest = cells
    others = "".join(f"<td {attribute(cell)}>{cell.html}</td>" for cell in rest)
    return f'<tr><th scope="row" {attribute(first)}>{first.html}</th>{others}</tr>'


def _figure(name: str, figure: Figure, wide: bool) -> str:
    selects = "".join(
        _select(name, number, choice, options) for number, (choice, options) in enumerate(figure.choices.items())
    )
    chosen = f'<p class="choices">{selects}</p>' if selects else ""
    width = ' class="wide"' if wide else ""
    return (
        f'<figure{width} aria-labelledby="title-{name}">'
        f'<figcaption><h3 id="title-{name}">{figure.title}</h3><p>{html.escape(figure.caption)}</p></figcaption>'
        f'{chosen}<div class="plot" id="plot-{name}" role="img" aria-labelledby="title-{name}"></div></figure>'
    )


def _select(name: str, number: int, choice: str, options: Mapping[str, object]) -> str:
    listed = "".join(f"<option>{html.escape(option)}</option>" for option in options)
    quoted = html.escape(choice)
    own = f"choose-{name}-{number}"
    select = f'<select id="{own}" data-figure="{name}" data-choice="{quoted}">{listed}</select>'
    return f'<span><label for="{own}">{quoted}</label> {select}</span>'


def _asset(name: str) -> str:
    return (files("scalerl.view") / "assets" / name).read_text(encoding="utf-8")


def plotly_script() -> str:
    """Return plotly.js.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("the page needs the plotly package: pip install 'scalerl[report]'") from error
    return str(get_plotlyjs())
