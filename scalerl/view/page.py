"""Pages as self-contained HTML documents: the skeleton that all pages share, and the page about runs.

The figures are drawn by plotly.js from the `plotly` package, which includes the script. Unlike Bokeh it needs no
server, unlike Vega no compiler of 33 MB, and its SVG keeps text as text. It adds 5 MB to a page.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

import scalerl
from scalerl.core.errors import ConfigError
from scalerl.core.files import write_whole
from scalerl.scaling import Curve, CurveError, Estimate, Frontier
from scalerl.scaling.estimate import one_power, short
from scalerl.scaling.settings import Setting, setting_text
from scalerl.view.analysis import Analysis, RunAnalysis
from scalerl.view.page_figures import FIGURES, Figure, frontier_figure

TERMS = {
    "A, the ceiling": "the level that the run would reach with unlimited compute.",
    "B, the steepness": "how steep the climb is: the larger B, the less compute the climb takes from start to end.",
    "C<sub>mid</sub>, the midpoint": "the compute at which half of the climb is complete.",
    "90% interval": "contains the true value in nine of ten cases.",
}
"""Terms that every page explains."""


class Cell(NamedTuple):
    """A cell of the table: its HTML, and the key it is sorted by; an empty key comes last."""

    html: str
    key: str | float


UNKNOWN = Cell("–", "")


def html_page(
    *,
    title: str,
    subtitle: str,
    verdicts: str,
    terms: Mapping[str, str],
    table: str,
    figures: Mapping[str, Figure],
) -> str:
    """Return a page as one HTML document that needs no network. All text is HTML: escape untrusted text.

    Args:
        title: Title of the page.
        subtitle: Line below the title.
        verdicts: The first section.
        terms: How to read the numbers.
        table: From `table`.
        figures: Figures by name; the name is used in element ids.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    drawn = ("data", "layout", "choices")
    drawings = {name: {part: getattr(figure, part) for part in drawn} for name, figure in figures.items()}
    return Template(_asset("page.html")).substitute(
        version=scalerl.__version__,
        title=title,
        subtitle=subtitle,
        css=_asset("page.css"),
        js=_asset("theme.js") + _asset("page.js"),
        verdicts=verdicts,
        terms="\n".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in {**TERMS, **terms}.items()),
        table=table,
        figures="\n".join(_figure(name, figure) for name, figure in figures.items()),
        plotly=plotly_script(),
        # inside a script element "<" could end it
        json=json.dumps(drawings, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    )


def write_page(path: Path, page: str) -> None:
    """Write a page to a file atomically; bytes of file names that are not UTF-8 are shown as escapes.

    Raises:
        CurveError: The path cannot be written.
    """
    try:
        write_whole(path, page.encode("utf-8", "backslashreplace").decode())
    except OSError as error:
        raise CurveError(
            f"the page cannot be written to {path}: {error.strerror}; give another path with -o"
        ) from error


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


def _asset(name: str) -> str:
    return (files("scalerl.view") / "assets" / name).read_text(encoding="utf-8")


def _figure(name: str, figure: Figure) -> str:
    selects = "".join(
        _select(name, number, choice, options) for number, (choice, options) in enumerate(figure.choices.items())
    )
    chosen = f'<p class="choices">{selects}</p>' if selects else ""
    width = ' class="wide"' if figure.wide else ""
    return (
        f'<figure{width} aria-labelledby="title-{name}">'
        f'<figcaption><h3 id="title-{name}">{figure.title}</h3><p>{html.escape(figure.caption)}</p></figcaption>'
        f'{chosen}<div class="plot" id="plot-{name}" role="img" aria-labelledby="title-{name}"></div></figure>'
    )


def _select(name: str, number: int, choice: str, options: Mapping[str, object]) -> str:
    listed = "".join(f"<option>{html.escape(option)}</option>" for option in options)
    quoted, own = html.escape(choice), f"choose-{name}-{number}"
    select = f'<select id="{own}" data-figure="{name}" data-choice="{quoted}">{listed}</select>'
    return f'<span><label for="{own}">{quoted}</label> {select}</span>'


# ------------------------------------------------------------------------------------------------------------- parts


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table that is sorted by a click on a heading; the first column is the row header."""
    head = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in columns)
    body = "\n".join(_row(cells) for cells in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _row(cells: Sequence[Cell]) -> str:
    def attribute(cell: Cell) -> str:
        key = cell.key if isinstance(cell.key, str) or math.isfinite(cell.key) else ""
        return f'data-key="{html.escape(str(key))}"'

    first, *rest = cells
    others = "".join(f"<td {attribute(cell)}>{cell.html}</td>" for cell in rest)
    return f'<tr><th scope="row" {attribute(first)}>{first.html}</th>{others}</tr>'


def text_cell(words: str) -> Cell:
    """Return a cell with text."""
    return Cell(f'<span class="words">{html.escape(words)}</span>', words)


def interval_cell(estimate: Estimate | None, pattern: str) -> Cell:
    """Return a cell with a number and its interval below it; without a pattern, both have the same power of ten."""
    if estimate is None:
        return UNKNOWN
    power, shown = (0, (estimate.mean, estimate.low, estimate.high)) if pattern else one_power(estimate)
    mean, low, high = (format(value, pattern or (".2f" if power else ".4g")) for value in shown)
    times = f" × 10<sup>{power}</sup>" if power else ""
    return Cell(f"{mean}{times}<small>{low} to {high}</small>", estimate.mean)


def swatch(color: str) -> str:
    """Return a dot in a color such as "@s0"."""
    return f'<span class="swatch" style="background: var(--{color[1:]})" aria-hidden="true"></span>'


def warnings(notes: Sequence[str], about: str) -> str:
    """Return a list of warnings as HTML; both arguments are plain text."""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    label = f"Notes about {html.escape(about)}"
    return f'<ul class="warnings" aria-label="{label}">{items}</ul>' if notes else ""


# ------------------------------------------------------------------------------------------------------- page of runs


def page(analysis: Analysis) -> str:
    """Return the page about runs as one HTML document that needs no network.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    count = len(analysis.runs)
    cards = "\n".join(map(_card, analysis.runs))
    columns = {name: cell for name, cell in COLUMNS.items() if name != "Recipe" or analysis.comparison}
    return html_page(
        title="Comparison of two recipes" if analysis.comparison else "Run report" if count == 1 else f"{count} runs",
        subtitle=f"Held-out results against compute ({html.escape(analysis.axis)}), and forecasts at more compute.",
        verdicts=f'{_comparison(analysis)}\n<div class="cards">\n{cards}\n</div>',
        terms={"Identified": "whether the ceiling is known. If not, A is a range and not a result."},
        table=table(list(columns), [[cell(run) for cell in columns.values()] for run in analysis.runs]),
        figures={name: figure for name, make in FIGURES.items() if (figure := make(analysis)) is not None},
    )


def _comparison(analysis: Analysis) -> str:
    comparison = analysis.comparison
    if comparison is None:
        return ""
    sides = "".join(
        f"<p>{swatch(f'@s{side}')}The {name}: "
        + ", ".join(html.escape(run.source.name) for run in analysis.runs if run.side == side)
        + "</p>"
        for side, name in enumerate(("first", "second"))
    )
    numbers = (
        f"Ceilings differ by {comparison.asymptote_difference}; the first is higher with probability "
        f"{comparison.probability_higher:.2f}. At the common ceiling {comparison.common_asymptote:.3f} the ratio of "
        f"the steepness B is {comparison.efficiency_ratio}. For the level {comparison.level:.3f} the first needs "
        f"{comparison.compute_ratio} times the compute of the second. "
        f"Scatter between seeds: {comparison.seed_sd:.4f} ({comparison.seed_source})."
    )
    advice = f"<p>{html.escape(comparison.advice)}</p>" if comparison.advice else ""
    sentence = f'<p class="sentence">{html.escape(comparison.sentence)}</p>'
    return f'<div class="card verdict">{sentence}{sides}{advice}<p class="muted">{html.escape(numbers)}</p></div>'


def _card(run: RunAnalysis) -> str:
    fitted, ahead, advice = run.outlook.fit, run.outlook.forecast, run.outlook.advice
    level = _pattern(run)
    twice, four, ceiling = (format(estimate, level) for estimate in (*ahead.at, fitted.asymptote))
    last = run.source.curve.metric[-1]
    lines = [
        f"The level is {ahead.now.mean:{level}} now (last evaluation {last:{level}}). The forecast is {twice} at twice "
        f"the compute and {four} at four times.",
        f"The ceiling A is {ceiling}." if fitted.identified else
        f"The ceiling A is not identified yet: {ceiling} is a range and not a result, because "
        f"{html.escape(fitted.reason)}.",
    ]  # fmt: skip
    if run.backtest is not None:
        half = run.backtest.splits[1]
        simple = html.escape(min(half.baselines, key=lambda name: half.baselines[name].rmse))
        lines.append(
            f"Backtest: the forecast from its first half has a root mean square error of {half.forecast.rmse:.3f} on "
            f"the rest, with {half.forecast.coverage:.0%} of the points in the band; the best naive forecast "
            f"({simple}) has {half.baselines[simple].rmse:.3f}."
        )
    else:
        lines.append(f"No backtest: {html.escape(run.untested)}.")
    return (
        f'<article class="card"><h3>{swatch(run.style[0])}{html.escape(run.source.name)}</h3>'
        f'<p><span class="word">{advice.headline.partition(":")[0]}.</span> '
        f"{html.escape(advice.explanation[0].upper() + advice.explanation[1:])}</p>"
        + "".join(f"<p>{line}</p>" for line in lines)
        + warnings([*run.source.notes, *fitted.warnings], run.source.name)
        + "</article>"
    )


def _pattern(run: RunAnalysis) -> str:
    """Return the format of levels: three decimals for a pass rate, the same relative precision for other metrics."""
    low, high = run.source.curve.bounds
    return f".{max(0, 3 - round(math.log10(high - low)))}f"


COLUMNS: dict[str, Callable[[RunAnalysis], Cell]] = {
    "Run": lambda run: text_cell(run.source.name),
    "Recipe": lambda run: text_cell(("first", "second")[run.side]),
    "Last value": lambda run: Cell(f"{run.source.curve.metric[-1]:.3f}", float(run.source.curve.metric[-1])),
    "Ceiling A": lambda run: interval_cell(run.outlook.fit.asymptote, _pattern(run)),
    "Steepness B": lambda run: interval_cell(run.outlook.fit.efficiency, ".2f"),
    "Midpoint C<sub>mid</sub>": lambda run: interval_cell(run.outlook.fit.midpoint, ""),
    "At 2×": lambda run: interval_cell(run.outlook.forecast.at[0], _pattern(run)),
    "At 4×": lambda run: interval_cell(run.outlook.forecast.at[1], _pattern(run)),
    "Identified": lambda run: text_cell("yes" if run.outlook.fit.identified else "not yet"),
    "Advice": lambda run: text_cell(run.outlook.advice.action),
}
"""Columns of the table, by heading."""


def frontier_page(found: Frontier, runs: Sequence[tuple[Curve, Setting]]) -> str:
    """Return the page about what a budget buys as one HTML document that needs no network.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    sentence, *lines = (html.escape(text.strip()) for text in str(found).split("\n"))
    rows = [
        [text_cell(setting_text(option.setting)), interval_cell(option.level, ".3f"),
         Cell(f"{option.probability_best:.2f}", option.probability_best)]
        for option in found.options
    ]  # fmt: skip
    told = "".join(f"<p>{text}</p>" for text in lines)
    return html_page(
        title="What a budget buys",
        subtitle=f"One law over {len(runs)} runs with different settings.",
        verdicts=f'<div class="card verdict"><p class="sentence">{sentence}</p>{told}</div>',
        terms={},
        table=table(["Setting", f"Level at {short(found.budget)} {found.unit}", "Best with probability"], rows),
        figures={"frontier": frontier_figure(found, runs)},
    )
