"""Prints a study's results on a terminal or in a log: the verdicts, then two tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalerl.reading.curves import Estimate
from scalerl.reading.curves.curve import UNITS
from scalerl.reading.curves.estimate import one_power
from scalerl.reading.pages.study_results import EFFECTS, StudyResult
from scalerl.reading.pages.terminal import tell

RULE = Box("    \n    \n -- \n    \n -- \n    \n    \n    \n", ascii=True)
"""A line of dashes below the headings, and no other lines. ASCII, so that any program shows a log correctly."""


class Column(NamedTuple):
    """A column of the tables of arms, on the page and on a terminal."""

    heading: str
    """Heading on the page."""
    short: str
    """Heading on a terminal; empty: only on the page."""
    quantity: str
    """Argument of `ArmResult.quantity`."""
    pattern: str
    """Format of its numbers; empty: with powers of ten."""


ESTIMATES = (
    Column("Ceiling A", "A", "asymptote", ".3f"),
    Column("Difference in A", "difference in A", "asymptote_difference", "+.3f"),
    Column("B at the common A", "B", "efficiency", ".2f"),
    Column("Ratio of B", "", "efficiency_ratio", ".2f"),
    Column("Midpoint C_mid", "C_mid", "midpoint", ""),
    Column("Ratio of compute", "", "compute_ratio", ".2f"),
)
MEANS = (
    Column("Truncated", "truncated", "truncation_rate", ".1%"),
    Column("Staleness", "staleness", "staleness_mean", ".2f"),
    Column("Entropy", "entropy", "entropy", ".2f"),
    Column("Tokens per completion", "", "completion_tokens_mean", ".0f"),
    Column("Tokens per run", "tokens", "tokens", ".2e"),
    Column("Device-hours per run", "device-h", "device_hours", ".3g"),
)
"""Means of metrics over an arm's runs."""


def print_results(results: StudyResult, console: Console | None = None) -> None:
    """Print a study's verdicts, its notes, and two tables with a row for each arm."""
    console = console or Console()
    _print_lines(console, *([results.about] if results.about else []), *results.headlines())
    _print_lines(console, *(f"note: {note}" for note in results.notes))
    if results.frontier:
        _print_lines(console, *str(results.frontier).split("\n")[1:])
    if results.predicted:
        console.print(_table(predicted_columns(results)))
    arms = [results.arm(results.reference), *results.ranked()]
    arms_with_gain = [arm for arm in arms if arm.next_gain]
    if arms_with_gain:
        _print_lines(
            console, "What the next gain costs:", *(f"  {arm.name}: {arm.next_gain}" for arm in arms_with_gain)
        )
    names = {"arm": [f"{arm.name}\n{EFFECTS[arm.effect].short}\n" for arm in arms]}
    measured = {c.short: [_text(arm.quantity(c.quantity), c.pattern) for arm in arms] for c in ESTIMATES if c.short}
    means = {c.short: [_text(arm.quantity(c.quantity), c.pattern) for arm in arms] for c in MEANS if c.short}
    spent = {name: cells for name, cells in means.items() if any(cells)}
    spent["seeds"] = [f"{arm.done}/{len(arm.runs)}" for arm in arms]
    console.print(_table({**names, **measured}))
    console.print(_table({"arm": [arm.name for arm in arms], **spent}))
    if results.common_asymptote is not None:
        unit = UNITS.get(results.axis, results.axis)
        _print_lines(console, f"B is fitted at the common ceiling A = {results.common_asymptote:.3f}; C_mid in {unit}.")


def predicted_columns(results: StudyResult) -> dict[str, list[str]]:
    """Return the table of predicted against observed levels; empty if no held-out run is finished."""
    names = [name for name in (results.predicted or ({},))[0] if name != "compute"]
    return {name: [_of_run(row[name]) for row in results.predicted] for name in names}


def _of_run(value: float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.3f}"


def _print_lines(console: Console, *lines: str) -> None:
    for line in lines:
        tell(console, line)
    console.print()


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=RULE, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in columns:
        table.add_column(Text(heading), overflow="fold", no_wrap=heading != "arm")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell or "-") for cell in cells))
    return table


def _text(value: Estimate | float | None, pattern: str) -> str:
    """Return a number; that of an estimate is above its 90% interval, with the same power of ten."""
    if not isinstance(value, Estimate):
        return "" if value is None else format(value, pattern)
    power, (mean, low, high) = (0, (value.mean, value.low, value.high)) if pattern else one_power(value)
    pattern = pattern or (".2f" if power else ".3g")
    times = f"e{power:+03d}" if power else ""
    return f"{mean:{pattern}}{times}\n{low:{pattern}} to {high:{pattern}}"
