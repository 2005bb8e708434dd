"""Prints a study's results on a terminal or in a log: the verdicts, then one or two tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalerl.scaling import Estimate
from scalerl.scaling.curve import UNITS
from scalerl.scaling.estimate import one_power
from scalerl.study.results import EFFECTS, ArmResult, StudyResult
from scalerl.view.display import tell

ROOM = 150
"""Width of the terminal from which one table is printed instead of two."""

RULE = Box("    \n    \n -- \n    \n -- \n    \n    \n    \n", ascii=True)
"""A line of dashes below the headings, and no other lines. ASCII, so that any program shows a log correctly."""


def print_results(result: StudyResult, console: Console | None = None) -> None:
    """Print a study's verdicts, its notes, and a table with a row for each arm."""
    console = console or Console()
    _say(console, *([result.about] if result.about else []), *result.headlines())
    _say(console, *(f"note: {note}" for note in result.notes))
    spent = {name: cell for name, cell in SPENT.items() if any(cell(arm) for arm in result.arms)}
    if console.width >= ROOM:
        console.print(_table(result, {"arm": _arm, **MEASURED, **spent}))
    else:
        console.print(_table(result, {"arm": _arm, **MEASURED}))
        console.print(_table(result, {"arm": lambda arm: arm.name, **spent}))
    if result.common_asymptote is not None:
        unit = UNITS.get(result.axis, result.axis)
        _say(console, f"B is fitted at the common ceiling A = {result.common_asymptote:.3f}; C_mid in {unit}.")


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        tell(console, line)
    console.print()


Columns = Mapping[str, Callable[[ArmResult], str]]


def _table(result: StudyResult, columns: Columns) -> Table:
    """Return a table with the reference in the first row."""
    table = Table(box=RULE, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in columns:
        table.add_column(Text(heading), overflow="fold", no_wrap=heading != "arm")
    for arm in (result.arm(result.reference), *result.ranked()):
        table.add_row(*(Text(cell(arm) or "-") for cell in columns.values()))
    return table


def _arm(arm: ArmResult) -> str:
    return f"{arm.name}\n{EFFECTS[arm.effect].short}\n"


def _midpoint(arm: ArmResult) -> str:
    """Return C_mid with its interval in the same power of ten."""
    estimate = arm.midpoint
    if estimate is None:
        return ""
    power, (mean, low, high) = one_power(estimate)
    if not power:
        return f"{mean:.3g}\n{low:.3g} to {high:.3g}"
    return f"{mean:.2f}e{power:+03d}\n{low:.2f} to {high:.2f}"


def _stacked(estimate: Estimate | None, pattern: str) -> str:
    """Return a number above its 90% interval."""
    if estimate is None:
        return ""
    return f"{estimate.mean:{pattern}}\n{estimate.low:{pattern}} to {estimate.high:{pattern}}"


def _metric(name: str, pattern: str) -> Callable[[ArmResult], str]:
    def cell(arm: ArmResult) -> str:
        value = arm.metric(name)
        return "" if value is None else format(value, pattern)

    return cell


MEASURED: Columns = {
    "A": lambda arm: _stacked(arm.asymptote, ".3f"),
    "difference in A": lambda arm: _stacked(getattr(arm.comparison, "asymptote_difference", None), "+.3f"),
    "B": lambda arm: _stacked(arm.efficiency, ".2f"),
    "C_mid": _midpoint,
}

SPENT: Columns = {
    "truncated": _metric("truncation_rate", ".1%"),
    "staleness": _metric("staleness_mean", ".2f"),
    "entropy": _metric("entropy", ".2f"),
    "tokens": _metric("tokens", ".2e"),
    "device-h": _metric("device_hours", ".3g"),
    "seeds": lambda arm: f"{arm.done}/{len(arm.runs)}",
}
"""Columns with means of metrics over an arm's runs."""
