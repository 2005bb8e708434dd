"""One self-contained page about runs: findings in, HTML out. Words, table and frame are made here; it judges nothing.

The figures are drawn by plotly.js, taken from the ``plotly`` package: of what pip installs it is the one library of
figures that is well kept and comes with its script, without a server (Bokeh) or a compiler of 33 MB (Vega), and its SVG
keeps text as text. The price is a page of 5 MB.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from string import Template
from typing import NamedTuple

import scalerl
from scalerl.parts import ConfigError
from scalerl.report.findings import Findings, RunFindings
from scalerl.report.page_figures import FIGURES, Figure, number_html, style_of
from scalerl.scaling import Estimate

TERMS = {
    "A, the ceiling": "the level the run would end at with unlimited compute.",
    "B, the steepness": "how sharply it climbs: the larger B, the less compute lies between slow start and ceiling.",
    "C<sub>mid</sub>, the midpoint": "the compute at which half of the climb is done: the smaller, the earlier.",
    "Identified": "whether the points pin the ceiling down yet. If not, A is a range and not a result.",
    "90 % interval": "in nine cases of ten the true value lies within it.",
}
"""What a newcomer needs, a line each."""


WIDE = {"curves", "backtests"}
"""Figures as wide as the page."""


class Cell(NamedTuple):
    """A cell of the table: what it shows, as HTML, and what it is sorted by."""

    html: str
    key: str | float


def page(findings: Findings) -> str:
    """Return the page as one HTML document that needs no network.

    Raises:
        ConfigError: the ``plotly`` package is not installed.
    """
    figures = {name: figure for name, make in FIGURES.items() if (figure := make(findings)) is not None}
    count = len(findings.runs)
    title = "Comparison of two recipes" if findings.comparison else ("Run report" if count == 1 else f"{count} runs")
    drawings = {
        name: {"data": figure.data, "layout": figure.layout, "choices": figure.choices}
        for name, figure in figures.items()
    }
    return Template(_asset("page.html")).substitute(
        version=scalerl.__version__,
        title=title,
        subtitle=f"Held-out results against compute ({html.escape(findings.axis)}), and what more of it would bring.",
        css=_asset("page.css"),
        js=_asset("page.js"),
        comparison=_comparison(findings),
        cards="\n".join(_card(findings, number) for number in range(count)),
        terms="\n".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in TERMS.items()),
        table=_table(findings),
        figures="\n".join(_figure(name, figure) for name, figure in figures.items()),
        plotly=_plotly(),
        # inside a script element "<" could end it
        json=json.dumps(drawings, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def _asset(name: str) -> str:
    return (files("scalerl.report") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("the page needs the plotly package: pip install 'scalerl[report]'") from error
    return str(get_plotlyjs())


def _comparison(findings: Findings) -> str:
    found = findings.comparison
    if found is None:
        return ""
    sides = "".join(
        f"<p>{_swatch(f'@s{side}')}The {name}: "
        + ", ".join(html.escape(run.name) for run in findings.runs if run.side == side)
        + "</p>"
        for side, name in enumerate(("first", "second"))
    )
    numbers = (
        f"Ceilings differ by {found.asymptote_difference}; the first is higher with probability "
        f"{found.probability_higher:.2f}. At the common ceiling {found.common_asymptote:.3f} the ratio of the "
        f"steepness B is {found.efficiency_ratio}. For the level {found.level:.3f} the first needs "
        f"{found.compute_ratio} times the compute of the second. "
        f"Scatter between seeds: {found.seed_sd:.4f} ({found.seed_source})."
    )
    advice = f"<p>{html.escape(found.advice)}</p>" if found.advice else ""
    sentence = f'<p class="sentence">{html.escape(found.sentence)}</p>'
    return f'<div class="card verdict">{sentence}{sides}{advice}<p class="muted">{html.escape(numbers)}</p></div>'


def _card(findings: Findings, number: int) -> str:
    run = findings.runs[number]
    found, ahead = run.outlook.fit, run.outlook.forecast
    level = _level_format(run)
    now = ahead.now.mean
    twice, four = (f"{level(at.mean)} ({level(at.low)} to {level(at.high)})" for at in ahead.at)
    ceiling = f"{level(found.asymptote.mean)} ({level(found.asymptote.low)} to {level(found.asymptote.high)})"
    lines = [
        f"Now at {level(now)} (last evaluation {level(float(run.curve.metric[-1]))}). Twice the compute should bring "
        f"{twice}, four times {four}.",
        f"The ceiling A is {ceiling}." if found.identified else
        f"The ceiling is not known yet: {ceiling} is a range and not a result, because {html.escape(found.reason)}.",
    ]  # fmt: skip
    if run.backtest is not None:
        half = run.backtest.splits[1]
        simple = html.escape(min(half.baselines, key=lambda name: half.baselines[name].rmse))
        lines.append(
            f"Tested on itself: its first half predicted the rest to {half.forecast.rmse:.3f} (root mean square), "
            f"{half.forecast.coverage:.0%} within the band; the best naive forecast, {simple}, to "
            f"{half.baselines[simple].rmse:.3f}."
        )
    else:
        lines.append(f"Not tested on itself: {html.escape(run.untested)}.")
    word, rest = _advice(run)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in run.notes)
    return (
        f'<article class="card"><h3>{_swatch(style_of(findings, number)[0])}{html.escape(run.name)}</h3>'
        f'<p><span class="word">{word}</span> {rest}</p>'
        + "".join(f"<p>{line}</p>" for line in lines)
        + (
            f'<ul class="warnings" aria-label="What to know about {html.escape(run.name)}">{notes}</ul>'
            if notes
            else ""
        )
        + "</article>"
    )


def _swatch(color: str) -> str:
    return f'<span class="swatch" style="background: var(--{color[1:]})" aria-hidden="true"></span>'


def _advice(run: RunFindings) -> tuple[str, str]:
    """The advice as a word and a sentence."""
    advice = run.outlook.advice
    if advice is None:
        return "No advice.", html.escape(run.outlook.fit.reason)
    sure = "above 0.99" if advice.probability > 0.99 else "below 0.01"
    chance = f"{advice.probability:.2f}" if 0.01 <= advice.probability <= 0.99 else sure
    gain = f"With probability {chance}, twice the compute gains more than {advice.min_gain:g}."
    if advice.action != "not identified yet":
        return advice.action.capitalize() + ".", gain
    reach = advice.train_to if math.isfinite(advice.train_to) else 30 * run.outlook.fit.last_compute
    far = "at least" if math.isfinite(advice.train_to) else "further than"
    where = f"{number_html(reach)} {html.escape(run.curve.unit)}"
    return "Not identified yet.", f"Train {far} to {where} and ask again. {gain}"


def _level_format(run: RunFindings) -> Callable[[float], str]:
    """Thousandths of a pass rate, and the same share of any other metric's range."""
    low, high = run.curve.bounds
    decimals = max(0, 3 - round(math.log10(high - low)))
    return lambda value: f"{value:.{decimals}f}"


def _level(run: RunFindings, estimate: Estimate) -> Cell:
    """A cell for a value of the metric."""
    level = _level_format(run)
    return _cell(level(estimate.mean), f"{level(estimate.low)} to {level(estimate.high)}", estimate.mean)


def _steepness(run: RunFindings) -> Cell:
    b = run.outlook.fit.efficiency
    return _cell(f"{b.mean:.2f}", f"{b.low:.2f} to {b.high:.2f}", b.mean)


def _midpoint(run: RunFindings) -> Cell:
    """Cmid, its interval in the same power of ten."""
    c = run.outlook.fit.midpoint
    power = math.floor(math.log10(c.mean))
    if -3 <= power < 5:
        return _cell(f"{c.mean:.4g}", f"{c.low:.4g} to {c.high:.4g}", c.mean)
    mean, low, high = (f"{value / 10.0**power:.2f}" for value in (c.mean, c.low, c.high))
    return _cell(f"{mean} × 10<sup>{power}</sup>", f"{low} to {high}", c.mean)


def _cell(value: str, interval: str, key: float) -> Cell:
    return Cell(f"{value}<small>{interval}</small>", key)


def _text(words: str) -> Cell:
    return Cell(html.escape(words), words)


def _last(run: RunFindings) -> Cell:
    value = float(run.curve.metric[-1])
    return Cell(f"{value:.3f}", value)


COLUMNS: dict[str, Callable[[RunFindings], Cell]] = {
    "Run": lambda run: _text(run.name),
    "Recipe": lambda run: _text(("first", "second")[run.side]),
    "Last value": _last,
    "Ceiling A": lambda run: _level(run, run.outlook.fit.asymptote),
    "Steepness B": _steepness,
    "Midpoint C<sub>mid</sub>": _midpoint,
    "At 2×": lambda run: _level(run, run.outlook.forecast.at[0]),
    "At 4×": lambda run: _level(run, run.outlook.forecast.at[1]),
    "Identified": lambda run: _text("yes" if run.outlook.fit.identified else "not yet"),
    "Advice": lambda run: _text(run.outlook.advice.action if run.outlook.advice else "none"),
}
"""The table, column by column."""


def _table(findings: Findings) -> str:
    columns = {name: cell for name, cell in COLUMNS.items() if name != "Recipe" or findings.comparison}
    head = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in columns)
    rows = "\n".join(_row([cell(run) for cell in columns.values()]) for run in findings.runs)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _row(cells: Sequence[Cell]) -> str:
    def attribute(cell: Cell) -> str:
        key = cell.key if isinstance(cell.key, str) or math.isfinite(cell.key) else ""
        return f'data-key="{html.escape(str(key))}"'

    first, *rest = cells
    others = "".join(f"<td {attribute(cell)}>{cell.html}</td>" for cell in rest)
    return f'<tr><th scope="row" {attribute(first)}>{first.html}</th>{others}</tr>'


def _figure(name: str, figure: Figure) -> str:
    options = "".join(f"<option>{html.escape(choice)}</option>" for choice in figure.choices)
    label = f'<label for="choose-{name}">{figure.choice_name}</label>'
    select = f'{label} <select id="choose-{name}" data-figure="{name}">{options}</select>' if options else ""
    wide = ' class="wide"' if name in WIDE else ""
    return (
        f'<figure{wide} aria-labelledby="title-{name}">'
        f'<figcaption><h3 id="title-{name}">{figure.title}</h3><p>{html.escape(figure.caption)}</p></figcaption>'
        f'{select}<div class="plot" id="plot-{name}" role="img" aria-labelledby="title-{name}"></div></figure>'
    )
