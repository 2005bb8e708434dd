"""The page about a study: turns its results into HTML, with verdicts, a table and figures."""

from __future__ import annotations

import html
from collections.abc import Sequence

from scalerl.scaling import Estimate
from scalerl.scaling.compare import MARGIN
from scalerl.scaling.curve import UNITS
from scalerl.view.page import Cell, html_page, interval_cell, swatch, table, text_cell, warnings
from scalerl.view.page_figures import number_html
from scalerl.view.study_figures import FIGURES
from scalerl.view.study_results import EFFECTS, NO_DIFFERENCE, ArmResult, StudyResult
from scalerl.view.study_tables import ESTIMATES, MEANS, predicted_columns

GROUPS = {
    "What raises or lowers the ceiling": ("raises", "lowers"),
    "What only changes efficiency": ("more_efficient", "less_efficient", "later", "less_compute", "more_compute"),
    "What makes no difference that this much compute can show": ("none",),
    "Not measured yet": ("unknown",),
}
"""Effects that are listed under one heading, the most important heading first."""

STUDY_TERMS = {
    "Difference in A": (
        f"the arm's ceiling minus the reference's. Ceilings within ±{MARGIN:g} of the metric's range count as the "
        "same; only then are the efficiencies compared."
    ),
    "B at the common A": "B with the ceiling fixed at one value for all arms, because B depends strongly on it.",
    "Ratio of B": "B of the arm divided by B of the reference, with the ceiling fixed at one value for both.",
    "Ratio of compute": (
        "compute that the arm needs for a level divided by the compute that the reference needs; above 1, the arm "
        "needs more."
    ),
}
"""Terms of a page about a study, in addition to those of every page."""


def study_page(results: StudyResult) -> str:
    """Return a study's page as one HTML document that needs no network.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    unit = UNITS.get(results.axis, results.axis)
    asked = f"{html.escape(results.about)} " if results.about else ""
    return html_page(
        title=f"Study: {html.escape(results.name)}",
        subtitle=f"{asked}Every arm compared with {html.escape(results.reference)}; compute in {unit}.",
        verdicts=_verdicts(results),
        terms=STUDY_TERMS,
        table=_table(results) + _predicted(results),
        figures={name: figure for name, make in FIGURES.items() if (figure := make(results)) is not None},
    )


# ---------------------------------------------------------------------------------------------------------- in words


def _verdicts(results: StudyResult) -> str:
    groups = "\n".join(_group(results, title, effects) for title, effects in GROUPS.items())
    return (
        f'<div class="card verdict"><p class="sentence">{html.escape(summary(results))}</p>'
        f'{warnings(results.notes, results.name)}</div>\n<div class="cards groups">\n{groups}\n</div>'
    )


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


def _group(results: StudyResult, title: str, effects: Sequence[str]) -> str:
    """Return the verdicts under one heading; an empty group of unmeasured arms is left out."""
    arms = [arm for arm in results.ranked() if arm.effect in effects]
    if not arms and "unknown" in effects:
        return ""
    excluded = results.exclusion() if "none" in effects else ""
    listed = "\n".join(_verdict(arm) for arm in arms) or "<li>No arm.</li>"
    return (
        f'<article class="card"><h3>{title}</h3>'
        + (f'<p class="word">{html.escape(excluded)}</p>' if excluded else "")
        + f'<ul class="verdicts">{listed}</ul></article>'
    )


def _verdict(arm: ArmResult) -> str:
    name, rest = html.escape(arm.name), html.escape(arm.sentence.removeprefix(arm.name).removeprefix(NO_DIFFERENCE))
    about = f"<small>{html.escape(arm.about)}</small>" if arm.about else ""
    problems = arm.problems if arm.fits else []  # without a fit the sentence has them
    loose = sum(not fit.identified for fit in arm.fits)
    if loose:
        problems = [f"the ceiling is not identified yet in {loose} of {len(arm.runs)} runs", *problems]
    lines = "".join(f"<small>{html.escape(line)}</small>" for line in problems)
    return f"<li>{swatch(EFFECTS[arm.effect].color)}<b>{name}</b>{rest}{about}{lines}</li>"


# ------------------------------------------------------------------------------------------------------------- table


def _table(results: StudyResult) -> str:
    columns = (*ESTIMATES, *MEANS)
    rows = [
        [
            Cell(f"{swatch(EFFECTS[arm.effect].color)}{html.escape(arm.name)}", arm.name),
            text_cell(EFFECTS[arm.effect].words),
            *(_cell(arm.quantity(column.quantity), column.pattern) for column in columns),
            _seeds(arm),
        ]
        for arm in (results.arm(results.reference), *results.ranked())
    ]
    return table(["Arm", "Effect", *(column.heading for column in columns), "Seeds done"], rows)


def _predicted(results: StudyResult) -> str:
    """Return the table of predicted against observed levels; empty if no held-out run is finished."""
    columns = predicted_columns(results)
    rows = [[text_cell(text) for text in row] for row in zip(*columns.values(), strict=True)]
    return f"<h3>Predicted against observed</h3>{table(list(columns), rows)}" if rows else ""


def _cell(value: Estimate | float | None, pattern: str) -> Cell:
    if value is None or isinstance(value, Estimate):
        return interval_cell(value, pattern)
    return Cell(number_html(value) if pattern.endswith("e") else format(value, pattern), value)


def _seeds(arm: ArmResult) -> Cell:
    least = min(max(run.step, 0) for run in arm.runs)
    at = "" if arm.done == len(arm.runs) else f"<small>at step {least} or more</small>"
    return Cell(f"{arm.done} of {len(arm.runs)}{at}", arm.done)
