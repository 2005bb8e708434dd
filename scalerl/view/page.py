"""The page about runs: turns an analysis into HTML, with verdicts, a table and figures."""

from __future__ import annotations

import html
import math
from collections.abc import Callable

from scalerl.scaling import Estimate
from scalerl.view.analysis import Analysis, RunAnalysis
from scalerl.view.html import (
    TERMS,
    Cell,
    PageContent,
    html_page,
    interval_cell,
    power_cell,
    swatch,
    text_cell,
    warnings,
)
from scalerl.view.html import table as sortable
from scalerl.view.page_figures import FIGURES, style_of

WIDE = frozenset({"curves", "suites", "backtests"})
"""Figures as wide as the page."""

IDENTIFIED = "whether the ceiling is known. If not, A is a range and not a result."


def page(analysis: Analysis) -> str:
    """Return the page as one HTML document that needs no network.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    count = len(analysis.runs)
    cards = "\n".join(_card(analysis, number) for number in range(count))
    axis = html.escape(analysis.axis)
    title = "Comparison of two recipes" if analysis.comparison else ("Run report" if count == 1 else f"{count} runs")
    return html_page(
        PageContent(
            title=title,
            subtitle=f"Held-out results against compute ({axis}), and forecasts at more compute.",
            verdicts=f'{_comparison(analysis)}\n<div class="cards">\n{cards}\n</div>',
            terms={**TERMS, "Identified": IDENTIFIED},
            table_title="Runs side by side",
            table=_table(analysis),
            figures={name: figure for name, make in FIGURES.items() if (figure := make(analysis)) is not None},
            wide=WIDE,
        )
    )


def _comparison(analysis: Analysis) -> str:
    found = analysis.comparison
    if found is None:
        return ""
    sides = "".join(
        f"<p>{swatch(f'@s{side}')}The {name}: "
        + ", ".join(html.escape(run.name) for run in analysis.runs if run.side == side)
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


def _card(analysis: Analysis, number: int) -> str:
    run = analysis.runs[number]
    found, ahead = run.outlook.fit, run.outlook.forecast
    level = _level_format(run)
    now = ahead.now.mean
    twice, four = (f"{level(at.mean)} ({level(at.low)} to {level(at.high)})" for at in ahead.at)
    ceiling = f"{level(found.asymptote.mean)} ({level(found.asymptote.low)} to {level(found.asymptote.high)})"
    lines = [
        f"The level is {level(now)} now (last evaluation {level(float(run.curve.metric[-1]))}). The forecast is "
        f"{twice} at twice the compute and {four} at four times.",
        f"The ceiling A is {ceiling}." if found.identified else
        f"The ceiling A is not identified yet: {ceiling} is a range and not a result, because "
        f"{html.escape(found.reason)}.",
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
    word, rest = _advice(run)
    return (
        f'<article class="card"><h3>{swatch(style_of(analysis, number)[0])}{html.escape(run.name)}</h3>'
        f'<p><span class="word">{word}</span> {rest}</p>'
        + "".join(f"<p>{line}</p>" for line in lines)
        + warnings(run.notes, run.name)
        + "</article>"
    )


def _advice(run: RunAnalysis) -> tuple[str, str]:
    """Return the advice as a word and a sentence."""
    advice = run.outlook.advice
    if advice is None:
        return "No advice.", html.escape(run.outlook.fit.reason)
    return advice.action.capitalize() + ".", html.escape(advice.reason[0].upper() + advice.reason[1:])


def _level_format(run: RunAnalysis) -> Callable[[float], str]:
    """Return a formatter of levels: three decimals for a pass rate, the same relative precision for other metrics."""
    low, high = run.curve.bounds
    decimals = max(0, 3 - round(math.log10(high - low)))
    return lambda value: f"{value:.{decimals}f}"


def _level(run: RunAnalysis, estimate: Estimate) -> Cell:
    """Return a cell for a value of the metric."""
    level = _level_format(run)
    return interval_cell(level(estimate.mean), f"{level(estimate.low)} to {level(estimate.high)}", estimate.mean)


def _steepness(run: RunAnalysis) -> Cell:
    b = run.outlook.fit.efficiency
    return interval_cell(f"{b.mean:.2f}", f"{b.low:.2f} to {b.high:.2f}", b.mean)


def _last(run: RunAnalysis) -> Cell:
    value = float(run.curve.metric[-1])
    return Cell(f"{value:.3f}", value)


COLUMNS: dict[str, Callable[[RunAnalysis], Cell]] = {
    "Run": lambda run: text_cell(run.name),
    "Recipe": lambda run: text_cell(("first", "second")[run.side]),
    "Last value": _last,
    "Ceiling A": lambda run: _level(run, run.outlook.fit.asymptote),
    "Steepness B": _steepness,
    "Midpoint C<sub>mid</sub>": lambda run: power_cell(run.outlook.fit.midpoint),
    "At 2×": lambda run: _level(run, run.outlook.forecast.at[0]),
    "At 4×": lambda run: _level(run, run.outlook.forecast.at[1]),
    "Identified": lambda run: text_cell("yes" if run.outlook.fit.identified else "not yet"),
    "Advice": lambda run: text_cell(run.outlook.advice.action if run.outlook.advice else "none"),
}
"""Columns of the table, by heading."""


def _table(analysis: Analysis) -> str:
    columns = {name: cell for name, cell in COLUMNS.items() if name != "Recipe" or analysis.comparison}
    return sortable(list(columns), [[cell(run) for cell in columns.values()] for run in analysis.runs])
