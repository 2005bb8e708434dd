"""The page about a run, runs or a study as JSON: `scalerl watch` serves it, and `frozen.py` writes it as a file.

A page is a title and blocks, which assets/page.js draws from top to bottom. All text is plain, never HTML.

    {"title": "quick", "subtitle": "...", "blocks": [
        {"kind": "verdict", "sentence": "The first has the higher ceiling ...", "lines": ["..."], "notes": ["..."]},
        {"kind": "cards", "cards": [{"title": "Advice", "big": "continue", "lines": ["..."]}]},
        {"kind": "groups", "groups": [{"title": "...", "items": [{"name": "dapo", "text": " lowers the ceiling"}]}]},
        {"kind": "table", "title": "Side by side", "columns": ["Run"], "rows": [[{"text": "quick", "key": "quick"}]]},
        {"kind": "figures", "figures": [{"name": "curves", "title": "...", "data": [], "layout": {}, "choices": {}}]},
        {"kind": "metrics", "metrics": [{"name": "loss", "label": "Loss", "x": [1], "mean": [0.1]}]},
        {"kind": "terms", "terms": {"B, the steepness": "..."}},
        {"kind": "fields", "title": "Configuration", "about": "All fields", "fields": {"steps": "400"}}]}
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from scalerl.reading.curves import Advice, Curve, CurveError, Estimate, Frontier
from scalerl.reading.curves.comparison import MARGIN, Comparison
from scalerl.reading.curves.curve import UNITS
from scalerl.reading.curves.estimate import one_power, short_number
from scalerl.reading.curves.fit import CEILING
from scalerl.reading.curves.forecast import evaluation_text
from scalerl.reading.curves.settings import Setting, setting_text
from scalerl.reading.pages.analysis import Analysis, RunAnalysis, analyze
from scalerl.reading.pages.figure import SUPERSCRIPTS, Figure, Json, figure_json, powers_text
from scalerl.reading.pages.following import ENDED, GONE
from scalerl.reading.pages.outlook import Source, curve_of
from scalerl.reading.pages.page_figures import (
    FIGURES,
    frontier_figure,
    metric_figure,
    metric_kind,
    series_figure,
    young_figure,
)
from scalerl.reading.pages.run import FollowedRun
from scalerl.reading.pages.state import ALIVE
from scalerl.reading.pages.study_figures import STUDY_FIGURES
from scalerl.reading.pages.study_results import EFFECTS, NO_DIFFERENCE, ArmResult, StudyResult
from scalerl.reading.pages.study_tables import ESTIMATES, MEANS, predicted_columns

SPARK = 120
"""Points of a small figure of a metric."""

LARGE_FIGURE_POINTS = 400
"""Points of a large figure of a metric."""

COMPARED = 60
"""Points of a metric of one run in a figure of several runs."""

Analyses = Mapping[str, Analysis | str]
"""The analysis of each task of a run, or the reason why there is none."""


def page(
    subject: FollowedRun | Analysis | StudyResult,
    analyses: Analyses | None = None,
    metrics: Sequence[Json] | None = None,
) -> Json:
    """Return the page about a run directory, about curves, or about a study.

    Args:
        subject: What the page is about.
        analyses: Of the tasks of a run directory.
        metrics: Small figures of the metrics of a run directory; None: they are read here.
    """
    if isinstance(subject, StudyResult):
        return study_page(subject)
    if isinstance(subject, Analysis):
        return runs_page(subject)
    return run_page(subject, analyses or {}, subject.metrics(SPARK) if metrics is None else metrics)


def _page(title: str, subtitle: str, *blocks: Json | None, kind: str = "") -> Json:
    return {"title": title, "subtitle": subtitle, "kind": kind, "blocks": [block for block in blocks if block]}


# ------------------------------------------------------------------------------------------------------------- blocks

TERMS = {
    "A, the ceiling of this climb": (
        "the level that the climb would reach with unlimited compute. A rise that has not begun is not in it"
    ),
    "B, the steepness": "how steep the climb is: the larger B, the less compute the climb takes from start to end",
    "C_mid, the midpoint": "the compute at which half of the climb is complete",
    "90% interval": "contains the true value in nine of ten cases",
}
"""Terms that every page explains."""


def terms(extra: Mapping[str, str]) -> Json:
    """Return the block that explains terms, with those of every page."""
    return {"kind": "terms", "terms": {**TERMS, **extra}}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Json]], about: str = "") -> Json | None:
    """Return a table that the reader can sort; the first column is the row header. None without rows."""
    if not rows:
        return None
    return {"kind": "table", "title": title, "about": about, "columns": list(columns), "rows": [list(r) for r in rows]}


def cell(text: str, key: str | float | None = None, *, small: str = "", color: str = "", words: bool = False) -> Json:
    """Return a cell of a table.

    Args:
        text: Text of the cell.
        key: What it is sorted by: a number, or a text; None: unknown, which comes last.
        small: Text below, such as an interval.
        color: Color of a dot before the text, such as "@s0"; empty: no dot.
        words: Whether the text may be wrapped.
    """
    sort_key = key if isinstance(key, str) or (key is not None and math.isfinite(key)) else None
    return {"text": text, "key": sort_key, "small": small, "color": color, "words": words}


def words_cell(words: str) -> Json:
    """Return a cell with text, sorted by it."""
    return cell(words, words, words=True)


def interval_cell(estimate: Estimate | None, pattern: str) -> Json:
    """Return a cell with a number and its interval below it; without a pattern, both have the same power of ten."""
    if estimate is None:
        return cell("–")
    power, shown = (0, (estimate.mean, estimate.low, estimate.high)) if pattern else one_power(estimate)
    mean, low, high = (format(value, pattern or (".2f" if power else ".4g")) for value in shown)
    times = f" × 10{str(power).translate(SUPERSCRIPTS)}" if power else ""
    return cell(f"{mean}{times}", estimate.mean, small=f"{low} to {high}")


def figures_block(title: str, figures: Mapping[str, Figure | None]) -> Json | None:
    """Return the block of figures by name; those that have nothing to show are left out."""
    shown = [figure_json(name, figure) for name, figure in figures.items() if figure is not None]
    return {"kind": "figures", "title": title, "figures": shown} if shown else None


def fields(title: str, about: str, values: Mapping[str, str]) -> Json:
    """Return the block of names with their values, which the reader opens."""
    return {"kind": "fields", "title": title, "about": about, "fields": dict(values)}


def messages(path: str) -> Json:
    """Return the block with commands that run another one when a condition holds, such as one that sends a message."""
    follow = f"scalerl follow {shlex.quote(path)} --until"
    return fields(
        "A message when something happens",
        "Commands that end when their condition holds; put your own in the place of COMMAND",
        {
            "little to gain": f'{follow} "gain at 2x below 0.02" && COMMAND',
            "a fall": f'{follow} "falling" && COMMAND',
        },
    )


def notes(texts: Iterable[str]) -> Json | None:
    """Return a list of warnings; None if there are none."""
    listed = list(dict.fromkeys(texts))
    return {"kind": "notes", "notes": listed} if listed else None


# ---------------------------------------------------------------------------------------------------- one run directory

RUN_TERMS = {
    "prompt, rollout, group": "a task, one sampled answer to it with its reasoning, and all rollouts of one prompt",
    "pass rate": "share of rollouts whose answer the verifier accepts",
    "held-out": "measured on prompts that the model is not trained on",
    "generator, trainer": (
        "the process that samples rollouts, and the one that updates the weights with them, at the same time"
    ),
    "staleness": "number of updates between sampling a token and training on it",
    "forecast": "expected pass rate with more compute; its interval contains the later value in nine of ten cases",
}


def run_page(run: FollowedRun, analyses: Analyses, metrics: Sequence[Json]) -> Json:
    """Return the page about a run directory: its state, forecast, figures and metrics."""
    several = len(run.tasks) > 1
    cards, warned, rows = [], [*run.warnings().values()], []
    fallen = any("has fallen by" in text for text in warned)
    for task in run.tasks:
        analysis = analyses.get(task, "fitting …")
        of_task = f" of {task}" if several else ""
        cards.append(_pass_rate(run, task, of_task))
        if isinstance(analysis, str):
            cards.append(_card(f"Forecast{of_task}", lines=[f"None yet: {analysis}."]))
            continue
        (run_analysis,) = analysis.runs
        cards += _forecast_cards(run_analysis, of_task)
        fit_warnings = run_analysis.outlook.fit.warnings
        warned += [text for text in fit_warnings if not (fallen and text.startswith("decline:"))]
        rows.append([make(run_analysis) for make in _columns(analysis).values()])
    return _page(
        run.name,
        run.info.about if run.info else "",
        {"kind": "state", "run": run.summary()},
        notes(warned),
        {"kind": "cards", "cards": cards, "size": "small"} if cards else None,
        figures_block("Curves", run_figures(run, analyses)),
        table("The fit in numbers", list(COLUMNS_ALONE), rows),
        {"kind": "metrics", "metrics": list(metrics)},
        terms(RUN_TERMS),
        messages(str(run.path)) if run.state in ALIVE else None,
        fields("Configuration", "All fields of config.toml", run.config_fields()),
        kind="run",
    )


def run_figures(run: FollowedRun, analyses: Analyses) -> dict[str, Figure | None]:
    """Return the figures of a run directory by name, those of each task."""
    figures = dict[str, Figure | None]()
    for number, task in enumerate(run.tasks):
        analysis, suffix = analyses.get(task, ""), f"-{number}" if number else ""
        if isinstance(analysis, str):
            with suppress(CurveError):  # a card has the reason, if the points are none of a curve
                figures[f"curves{suffix}"] = young_figure(curve_of(run.points[task], run.axis))
            continue
        of_task = f" of {task}" if len(run.tasks) > 1 else ""
        for name in ALONE:
            figure = figures_of(analysis)[name]
            figures[f"{name}{suffix}"] = figure and replace(figure, title=figure.title + of_task)
    return figures


def analyses_of(run: FollowedRun, curve: Curve, analysis: Analysis) -> dict[str, Analysis | str]:
    """Return the analysis of each task of a run, of which one has been made."""
    analyses: dict[str, Analysis | str] = {}
    for task in run.tasks:
        try:
            mine = len(run.tasks) == 1 or curve.label == task
            analyses[task] = analysis if mine else analyze([run.source(task, curve.axis)])
        except CurveError as error:
            analyses[task] = str(error)
    return analyses


def large_figure(run: FollowedRun, name: str, first: float = -math.inf, last: float = math.inf) -> Json:
    """Return the large figure of one metric between two steps.

    Raises:
        ValueError: The run has no such metric.
    """
    series = run.series(name, first, last, LARGE_FIGURE_POINTS)
    metric = run.described(name)
    return figure_json("large", series_figure([(metric["label"], series)], metric))


def large_figures(run: FollowedRun) -> dict[str, Json]:
    """Return the large figures of all metrics of a run, by name."""
    return {metric["name"]: large_figure(run, metric["name"]) for metric in run.metrics(1)}


ALONE = ("curves", "suites", "backtests", "slopes")
"""Figures about a single run; its ceiling and steepness are numbers."""


@lru_cache(maxsize=64)
def figures_of(analysis: Analysis) -> Mapping[str, Figure | None]:
    """Return the figures of curves by name. A live page asks for them after every step, and they take 0.3 s."""
    return {name: make(analysis) for name, make in FIGURES.items()}


def _card(title: str, big: str = "", lines: Sequence[str] = (), **more: Any) -> Json:
    return {"title": title, "big": big, "lines": list(filter(None, lines)), **more}


def _pass_rate(run: FollowedRun, task: str, of_task: str) -> Json:
    last, count = run.points[task][-1], len(run.points[task])
    error = f"± {last.stderr:.3f} (one standard error), " if math.isfinite(last.stderr) else ""
    of = f" of {last.prompts:,} prompts" if last.prompts else ""
    line = f"{error}held-out, at step {last.step}; {count} evaluations{of}"
    return _card(f"Pass rate{of_task}", f"{last.pass_rate:.3f}", [line])


def _forecast_cards(run: RunAnalysis, of_task: str) -> list[Json]:
    fit_result, forecast, advice, level = (
        run.outlook.fit,
        run.outlook.forecast,
        run.outlook.advice,
        run.source.curve.level_format,
    )
    twice, four, ceiling = forecast.at[0], forecast.at[1], fit_result.asymptote
    span = f"{ceiling.low:{level}} to {ceiling.high:{level}}"
    single = forecast.evaluations[0]
    evaluation = f"{evaluation_text(fit_result.curve)} there: {single.low:{level}} to {single.high:{level}}"
    at_four = f"{four.mean:{level}} ({four.low:{level}} to {four.high:{level}})"
    return [
        _card(
            f"Forecast{of_task} at twice the compute",
            f"{twice.mean:{level}}",
            [
                f"{twice.low:{level}} to {twice.high:{level}} with 90% probability; at four times {at_four}",
                f"{_capital(evaluation)}",
            ],
        ),
        _card(
            f"Ceiling of this climb{of_task}",
            f"{ceiling.mean:{level}}" if fit_result.identified else "not known yet",
            [
                f"{span} with 90% probability: the limit of the fitted curve. Forecasts are wider, because a run may "
                "leave its curve."
                if fit_result.identified
                else f"Only a range: {span}, because {fit_result.reason}"
            ],
        ),
        _card(f"Advice{of_task}", *_decision(advice), words=True),
        _card(f"Backtest{of_task}", lines=[_backtest(run)]),
    ]


def _backtest(run: RunAnalysis) -> str:
    if run.backtest is None:
        return f"No backtest: {run.untested}."
    half = run.backtest.splits[1]
    simple = min(half.baselines, key=lambda name: half.baselines[name].rmse)
    return (
        f"The forecast from its first half has a root mean square error of {half.forecast.rmse:.3f} on the "
        f"rest, with {half.forecast.coverage:.0%} of the points in the band; the best naive forecast ({simple}) has "
        f"{half.baselines[simple].rmse:.3f}."
    )


def _decision(advice: Advice) -> tuple[str, list[str]]:
    """Return the advice as the large words of a card, and the rest."""
    words, _, rest = advice.sentence.partition(": ")
    return words, [_capital(rest)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


# ------------------------------------------------------------------------------------------------------------- one log

LOG_STATES = {
    "following": "New rows are read when they are there.",
    "waiting": "Lacks what later rows may bring.",
    "away": "The tracker or the disk does not answer now; it is tried again.",
    "gone": "The file was deleted; its points so far are shown.",
    "problem": "Cannot be read now; its points so far are shown.",
    "ended": "The run has ended.",
}
"""States of a log, with their meanings."""


def log_page(entry: Json, source: Source | None, analysis: Analysis | str) -> Json:
    """Return the page about the log of another trainer, or about a file of points.

    Args:
        entry: The log's entry in the list.
        source: Its curve; None before it could be read.
        analysis: The analysis of the curve, or why there is none.
    """
    state = {"kind": "text", "title": "", "text": f"{_capital(entry['state'])}. {LOG_STATES[entry['state']]}"}
    texts = [entry["detail"]] if entry["detail"] else []
    if source is None:
        return _page(entry["name"], entry["path"], state, notes([*texts, *entry["conditions"]]), kind="log")
    cards, figures, rows = [_last_value(source.curve)], dict[str, Figure | None](), []
    if entry["conditions"]:
        cards.append(_card("What follow waits for", lines=entry["conditions"]))
    if isinstance(analysis, str):
        cards.append(_card("Forecast", lines=[f"None yet: {analysis}."]))
        figures["curves"] = young_figure(source.curve)
    else:
        (run_analysis,) = analysis.runs
        cards += _forecast_cards(run_analysis, "")
        texts += run_analysis.outlook.fit.warnings
        rows = [[make(run_analysis) for make in _columns(analysis).values()]]
        figures = {name: figures_of(analysis)[name] for name in ALONE}
    read = dict(line.split(maxsplit=1) for line in source.log_lines() if not line.startswith("note"))
    return _page(
        entry["name"],
        entry["path"],
        state,
        notes([*texts, *source.notes]),
        {"kind": "cards", "cards": cards, "size": "small"},
        figures_block("Curves", figures),
        table("The fit in numbers", list(COLUMNS_ALONE), rows),
        fields("The log", "What was read", read),
        messages(entry["path"]) if entry["state"] not in (GONE, ENDED) else None,
        terms({}),
        kind="log",
    )


def _last_value(curve: Curve) -> Json:
    low, high = curve.bounds
    error = math.nan if curve.stderr is None else float(curve.stderr[-1])
    pattern = curve.level_format
    lines = [f"± {error:{pattern}} (one standard error)"] if math.isfinite(error) else []
    lines.append(f"at {curve.text(curve.last_compute)}; {len(curve)} {curve.what}; bounds {low:g} to {high:g}")
    return _card(_capital(metric_kind(curve)), f"{curve.metric[-1]:{pattern}}", ["; ".join(lines)])


# --------------------------------------------------------------------------------------------------------- several runs


def runs_page(
    analysis: Analysis, directories: Sequence[FollowedRun] = (), problems: Mapping[str, str] | None = None
) -> Json:
    """Return the page about curves: verdict, forecast of each, side by side, and figures.

    Args:
        analysis: Curves, of one recipe or of two that are compared.
        directories: Run directories, of which metrics and configurations are compared too.
        problems: Why other runs are left out, by their names.
    """
    count = len(analysis.runs)
    title = "Comparison of two recipes" if analysis.comparison else "Run report" if count == 1 else f"{count} runs"
    columns = _columns(analysis)
    rows = [[make(run) for make in columns.values()] for run in analysis.runs]
    return _page(
        title,
        f"Held-out results against compute ({analysis.axis}), and forecasts at more compute.",
        _comparison(analysis),
        comparison_table(analysis.comparison),
        notes(f"{name} is left out: {reason}" for name, reason in (problems or {}).items()),
        {"kind": "cards", "cards": list(map(_run_card, analysis.runs)), "size": ""},
        table("Side by side", list(columns), rows),
        figures_block("Figures", figures_of(analysis)),
        *_of_directories(directories),
        terms({"Identified": "whether the ceiling is known. If not, A is a range and not a result"}),
        kind="runs",
    )


def young_page(runs: Sequence[FollowedRun], problems: Mapping[str, str]) -> Json:
    """Return the page about run directories none of which has a forecast yet."""
    return _page(
        f"{len(runs)} runs",
        "",
        notes(f"{name} has no forecast yet: {reason}" for name, reason in problems.items()),
        *_of_directories(runs),
        kind="runs",
    )


def metrics_figures(runs: Sequence[FollowedRun]) -> dict[str, Figure | None]:
    """Return the figure of the metrics of several run directories by its name."""
    return {"metrics": metric_figure([(run.name, run.metrics(COMPARED)) for run in runs])} if len(runs) > 1 else {}


def _of_directories(runs: Sequence[FollowedRun]) -> list[Json | None]:
    """Return the metrics of several run directories in one figure, and the differences of their configurations."""
    if len(runs) < 2:
        return []
    fields = [run.config_fields() for run in runs]
    names = dict.fromkeys(name for values in fields for name in values)
    differing = [name for name in names if len({values.get(name) for values in fields}) > 1]
    rows = [[words_cell(name), *(words_cell(values.get(name, "–")) for values in fields)] for name in differing]
    title = "Differences between their configurations"
    return [
        figures_block("Metrics", metrics_figures(runs)),
        table(title, ["Field", *(run.name for run in runs)], rows, "Fields of config.toml that are not equal.")
        or {"kind": "text", "title": title, "text": "None: the configurations are equal."},
    ]


def _comparison(analysis: Analysis) -> Json | None:
    comparison = analysis.comparison
    if comparison is None:
        return None
    names = [", ".join(run.source.name for run in analysis.runs if run.side == side) for side in (0, 1)]
    legend = [
        {"color": f"@s{side}", "text": name if name == runs else f"{name}: {runs}"}
        for side, (name, runs) in enumerate(zip(comparison.names, names, strict=True))
    ]
    lines = [comparison.advice] if comparison.advice else []
    return {"kind": "verdict", "sentence": comparison.sentence, "legend": legend, "lines": lines}


def comparison_table(comparison: Comparison | None) -> Json | None:
    """Return the numbers of a comparison as a table: each with its 90% interval and a probability."""
    if comparison is None:
        return None
    (first, second), curve = comparison.names, comparison.sides[0][0].curve
    level, lead, outlook = curve.level_format, comparison.measured, comparison.forecast
    quantities = [
        ("Lead, measured", curve.text(lead.compute), lead.difference, lead.probability),
        ("Lead, forecast", curve.text(outlook.compute), outlook.difference, outlook.probability),
        ("Ratio of compute needed", f"level {comparison.level:{level}}", comparison.compute_ratio,
         comparison.probability_less_compute),
        ("Difference of ceilings A", "", comparison.asymptote_difference, comparison.probability_higher),
        ("Ratio of steepness B", f"common A {comparison.common_asymptote:{level}}", comparison.efficiency_ratio,
         comparison.probability_more_efficient),
    ]  # fmt: skip
    rows = [
        [words_cell(name), words_cell(at), interval_cell(estimate, ".2f" if "Ratio" in name else level),
         cell(f"{probability:.2f}", probability)]
        for name, at, estimate, probability in quantities
    ]  # fmt: skip
    about = f"Scatter between seeds: {comparison.seed_sd:{level}} ({comparison.seed_source})."
    return table("Comparison", ["Quantity", "At", f"{first} against {second}", f"P({first} better)"], rows, about)


def _run_card(run: RunAnalysis) -> Json:
    fit_result, forecast, advice = run.outlook.fit, run.outlook.forecast, run.outlook.advice
    level = run.source.curve.level_format
    twice, four, ceiling = (format(estimate, level) for estimate in (*forecast.at, fit_result.asymptote))
    last, single = run.source.curve.metric[-1], forecast.evaluations[0]
    lines = [
        f"The level is {forecast.now.mean:{level}} now (last evaluation {last:{level}}). The forecast is {twice} at "
        f"twice the compute and {four} at four times; {evaluation_text(fit_result.curve)} at twice the compute is "
        f"within {single.low:{level}} to {single.high:{level}}.",
        f"{_capital(CEILING)}, A, is {ceiling}."
        if fit_result.identified
        else f"{_capital(CEILING)}, A, is not identified yet: {ceiling} is a range and not a result, because "
        f"{fit_result.reason}.",
        _backtest(run) if run.backtest is None else f"Backtest: {_lower(_backtest(run))}",
    ]
    warned = [*run.source.notes, *fit_result.warnings]
    return _card(run.source.name, lines=lines, color=run.color, strong=str(advice), notes=warned)


COLUMNS_ALONE: dict[str, Callable[[RunAnalysis], Json]] = {
    "Run": lambda run: cell(run.source.name, run.source.name, words=True, color=run.color),
    "Last value": lambda run: cell(
        f"{run.source.curve.metric[-1]:{run.source.curve.level_format}}", float(run.source.curve.metric[-1])
    ),
    "Ceiling A": lambda run: interval_cell(run.outlook.fit.asymptote, run.source.curve.level_format),
    "Steepness B": lambda run: interval_cell(run.outlook.fit.efficiency, ".2f"),
    "Midpoint C_mid": lambda run: interval_cell(run.outlook.fit.midpoint, ""),
    "At 2×": lambda run: interval_cell(run.outlook.forecast.at[0], run.source.curve.level_format),
    "At 4×": lambda run: interval_cell(run.outlook.forecast.at[1], run.source.curve.level_format),
    "Identified": lambda run: words_cell("yes" if run.outlook.fit.identified else "not yet"),
    "Advice": lambda run: words_cell(run.outlook.advice.action),
}
"""Columns of the table of runs, by heading."""


def _columns(analysis: Analysis) -> dict[str, Callable[[RunAnalysis], Json]]:
    """Return the columns of the table of runs; if recipes are compared, with the recipe after the name."""
    comparison = analysis.comparison
    if comparison is None:
        return COLUMNS_ALONE
    recipe: dict[str, Callable[[RunAnalysis], Json]] = {
        "Run": COLUMNS_ALONE["Run"],
        "Recipe": lambda run: words_cell(comparison.names[run.side]),
    }
    return {**recipe, **COLUMNS_ALONE}


# ---------------------------------------------------------------------------------------------------------------- study

GROUPS = {
    "What raises or lowers the ceiling": ("raises", "lowers"),
    "What only changes efficiency": ("more_efficient", "less_efficient", "later", "less_compute", "more_compute"),
    "What makes no difference that this much compute can show": ("none",),
    "Not measured yet": ("unknown",),
}
"""Effects that are listed under one heading, the most important heading first."""

STUDY_TERMS = {
    "Difference in A": (
        f"the ceiling of the arm's climb minus the reference's. Within ±{MARGIN:g} of the metric's range they count as "
        "the same; only then are the efficiencies compared"
    ),
    "B at the common A": "B with the ceiling fixed at one value for all arms, because B depends strongly on it",
    "Ratio of B": "B of the arm divided by B of the reference, with the ceiling fixed at one value for both",
    "Ratio of compute": (
        "compute that the arm needs for a level divided by the compute that the reference needs; above 1, the arm "
        "needs more"
    ),
}
"""Terms of a page about a study, in addition to those of every page."""


def study_page(results: StudyResult) -> Json:
    """Return the page about a study: verdicts, the arms side by side, and figures."""
    unit = UNITS.get(results.axis, results.axis)
    question = f"{results.about} " if results.about else ""
    arms = (results.arm(results.reference), *results.ranked())
    columns = ["Arm", "Effect", *(column.heading for column in (*ESTIMATES, *MEANS)), *NEXT_GAIN, "Seeds done"]
    predicted = predicted_columns(results)
    of_held_out = [[words_cell(text) for text in row] for row in zip(*predicted.values(), strict=True)]
    return _page(
        f"Study: {results.name}",
        f"{question}Every arm compared with {results.reference}; compute in {unit}.",
        {"kind": "verdict", "sentence": summary(results), "notes": list(results.notes)},
        {
            "kind": "groups",
            "groups": [group for group in (_group(results, *effects) for effects in GROUPS.items()) if group],
        },
        table("Side by side", columns, [_arm_row(arm) for arm in arms]),
        table("Predicted against observed", list(predicted), of_held_out),
        figures_block("Figures", study_figures(results)),
        {"kind": "runs"},
        terms(STUDY_TERMS),
        kind="study",
    )


def study_figures(results: StudyResult) -> dict[str, Figure | None]:
    """Return the figures of a study by name."""
    return {name: make(results) for name, make in STUDY_FIGURES.items()}


def early_page(title: str, problem: str) -> Json:
    """Return the page about a study without verdicts yet, or which cannot be read."""
    text = problem or "The verdicts are being computed …"
    return _page(title, "", {"kind": "text", "title": "", "text": text}, {"kind": "runs"}, kind="study")


def summary(results: StudyResult) -> str:
    """Return a summary of the study: what a budget buys, if the arms are a grid, and how many arms differ."""
    counts = [sum(arm.effect in effects for arm in results.arms) for effects in GROUPS.values()]
    ceiling, efficiency, none, unknown = counts
    parts = [
        f"{ceiling or 'none'} {'changes' if ceiling == 1 else 'change'} the ceiling",
        f"{efficiency or 'none'} only efficiency",
        f"{none or 'none'} {'makes' if none == 1 else 'make'} no difference that this much compute can show",
    ]
    if unknown:
        parts.append(f"{unknown} {'is' if unknown == 1 else 'are'} not measured yet")
    compared = "the one arm" if sum(counts) == 1 else f"{sum(counts)} arms"
    counted = f"Of {compared} compared with {results.reference}, {', '.join(parts[:-1])}, and {parts[-1]}."
    return " ".join([*results.of_law(), counted])


def _group(results: StudyResult, title: str, effects: Sequence[str]) -> Json | None:
    """Return the verdicts under one heading; None for an empty group of unmeasured arms."""
    arms = [arm for arm in results.ranked() if arm.effect in effects]
    if not arms and "unknown" in effects:
        return None
    text = results.exclusion() if "none" in effects else ""
    return {"title": title, "text": text, "items": list(map(_verdict, arms))}


def _verdict(arm: ArmResult) -> Json:
    text = arm.sentence.removeprefix(arm.name).removeprefix(NO_DIFFERENCE)
    problems = arm.problems if arm.fits else []  # without a fit the sentence has them
    loose = sum(not fit.identified for fit in arm.fits)
    if loose:
        problems = [f"the ceiling is not identified yet in {loose} of {len(arm.runs)} runs", *problems]
    details = [*([arm.about] if arm.about else []), *problems]
    return {"color": EFFECTS[arm.effect].color, "name": arm.name, "text": text, "details": details}


def _arm_row(arm: ArmResult) -> list[Json]:
    effect = EFFECTS[arm.effect]
    return [
        cell(arm.name, arm.name, color=effect.color),
        words_cell(effect.words),
        *(_quantity(arm.quantity(column.quantity), column.pattern) for column in (*ESTIMATES, *MEANS)),
        *_next_gain(arm),
        _seeds(arm),
    ]


NEXT_GAIN = ("Gain at 2×", "Cost of this gain")
"""Headings of what twice the compute should gain, and what it costs."""


def _next_gain(arm: ArmResult) -> list[Json]:
    """Return the cells of `NEXT_GAIN`; the cost is sorted by that of a point, if it is known."""
    gain = arm.next_gain
    if gain is None:
        return [cell("–"), cell("–")]
    return [
        interval_cell(gain.gain, ".3f"),
        cell(str(gain.cost), gain.cost.per_point, words=True, small=gain.cost.of_point()),
    ]


def _quantity(value: Estimate | float | None, pattern: str) -> Json:
    if value is None or isinstance(value, Estimate):
        return interval_cell(value, pattern)
    return cell(powers_text(value, pattern), value)


def _seeds(arm: ArmResult) -> Json:
    least = min((max(run.step, 0) for run in arm.runs), default=0)
    small = "" if arm.done == len(arm.runs) else f"at step {least} or more"
    return cell(f"{arm.done} of {len(arm.runs)}", arm.done, small=small)


# ------------------------------------------------------------------------------------------------------------- frontier


def frontier_page(frontier: Frontier, runs: Sequence[tuple[Curve, Setting]]) -> Json:
    """Return the page about what a budget buys."""
    sentence, *lines = (text.strip() for text in str(frontier).split("\n"))
    rows = [
        [
            words_cell(setting_text(option.setting)),
            interval_cell(option.level, ".3f"),
            cell(f"{option.probability_best:.2f}", option.probability_best),
        ]
        for option in frontier.options
    ]
    return _page(
        "What a budget buys",
        f"One law over {len(runs)} runs with different settings.",
        {"kind": "verdict", "sentence": sentence, "lines": lines},
        table(
            "Settings",
            ["Setting", f"Level at {short_number(frontier.budget)} {frontier.unit}", "Best with probability"],
            rows,
        ),
        figures_block("Figures", {"frontier": frontier_figure(frontier, runs)}),
        terms({}),
        kind="frontier",
    )
