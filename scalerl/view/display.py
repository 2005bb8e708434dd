"""Shows a run while it trains: a live table on a terminal, one line per step elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.config import RunConfig
from scalerl.core.printable import indented, printable
from scalerl.scaling import CurveError
from scalerl.types import EvalPoint
from scalerl.view.falling import FallWatch
from scalerl.view.occupancy import OccupancyWatch
from scalerl.view.outlook import Outlook, curve_of, points_by_task, run_outlook

WARN_TRUNCATION, UNSTABLE_TRUNCATION = 0.05, 0.10
"""Shares of truncated rollouts above which a warning is shown; above the second, the paper's runs became unstable."""


def truncation_warning(rate: float) -> str | None:
    """Return a warning about a share of truncated rollouts; None if it is low."""
    if rate > UNSTABLE_TRUNCATION:
        return f"{rate:.0%} of the rollouts are truncated: above 10% training usually becomes unstable"
    if rate > WARN_TRUNCATION:
        return f"{rate:.0%} of the rollouts are truncated: training may become unstable if the share exceeds 10%"
    return None


def tell(console: Console, text: str) -> None:
    """Print a message, safe for a terminal; in a log it is not wrapped, so that it can be searched."""
    console.print(indented(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class RunDisplay:
    """Displays a run: on a terminal it redraws a table, elsewhere it prints lines."""

    def __init__(self, config: RunConfig, axis: str, console: Console | None = None) -> None:
        """Prepare for a run.

        Args:
            config: Configuration of the run; gives the number of steps.
            axis: Compute axis of the forecast.
            console: Console to print to; None: standard output.
        """
        self.console = console or Console()
        self._steps, self._every, self._axis = config.steps, max(1, config.steps // 50), axis
        self._row: dict[str, Any] = {}
        self._last: dict[str, EvalPoint] = {}
        self._suites = set(config.tasks) - set(config.main_tasks)
        self._outlooks: dict[str, Outlook] = {}
        self._warned: set[str] = set()
        self._occupancy = OccupancyWatch(config)
        self._falling = FallWatch()
        self._live: Live | None = None

    def start(self) -> None:
        """Start the live table, if the console is a terminal."""
        if self.console.is_terminal and self._live is None:
            self._live = Live(self._render(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def stop(self) -> None:
        """Print the last state and restore the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._row:
                self.console.print(self._render())

    def note(self, text: str) -> None:
        """Print a line above the table."""
        tell(self.console, text)

    def step(self, row: dict[str, Any]) -> None:
        """Show a training step."""
        self._row = row
        self._falling.add(row)
        warning = truncation_warning(row["truncation_rate"])
        if warning is not None:
            kind = warning.partition(":")[2]
            if kind not in self._warned:
                self._warned.add(kind)
                self.note(f"step {row['step']}: {warning}")
        empty = self._occupancy.warning(row)
        if empty is not None:
            self.note(f"step {row['step']}: {empty}")
        self._show_step(row)

    def _show_step(self, row: dict[str, Any]) -> None:
        if self._live is not None:
            self._live.update(self._render())
        elif row["step"] % self._every == 0 or row["step"] == self._steps:
            self.note(self._line(row))

    def point(self, points: Sequence[EvalPoint]) -> None:
        """Show the curve of each task so far, with a forecast from its fifth evaluation on."""
        self._outlooks = {}
        for task, own in points_by_task(points).items():
            self._last[task] = own[-1]
            if task in self._suites:
                continue
            with suppress(CurveError):  # too few points, or no progress yet; the run continues
                self._outlooks[task] = run_outlook(own, self._axis)
                falling = self._falling.warning(curve_of(own, self._axis))
                if falling is not None:
                    self.note(f"evaluation at step {own[-1].step}: {falling}")
        self._show_points()

    def _show_points(self) -> None:
        if self._live is not None:
            self._live.update(self._render())
            return
        for task, last in self._last.items():
            of_task = f", {printable(task)}" if len(self._last) > 1 else ""
            text = f"evaluation at step {last.step}{of_task}: pass rate {last.pass_rate:.3f} ± {last.stderr:.3f}"
            ahead = self._outlooks.get(task)
            self.note(f"{text}; {_forecast_line(ahead)}" if ahead else text)

    def _line(self, row: dict[str, Any]) -> str:
        return (
            f"step {row['step']}/{self._steps}  pass {row['pass_rate']:.3f}  truncated {row['truncation_rate']:.1%}  "
            f"stale {row['staleness_mean']:.1f} (max {row['staleness_max']:.0f})  "
            f"tok/s {row['generator_tokens_per_s']:.0f} | {row['trainer_tokens_per_s']:.0f}  "
            f"slots {_share(row['occupancy'])}  idle {row['generator_idle']:.0%} | {row['trainer_idle']:.0%}"
        )

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for style in ("dim", "", "dim", ""):
            table.add_column(style=style, no_wrap=True)
        for cells in _cells(self._row, self._steps, self._occupancy.mean()) if self._row else ():
            table.add_row(*cells)
        lines: list[RenderableType] = [Text.from_markup("[bold]scalerl[/bold]"), table]
        for task, last in self._last.items():
            of_task = f", {printable(task)}" if len(self._last) > 1 else ""
            lines.append(
                Text(f"held-out pass rate{of_task} {last.pass_rate:.3f} ± {last.stderr:.3f} at step {last.step}")
            )
            if task in self._outlooks:
                lines.append(Text(_forecast_line(self._outlooks[task]), style="bold"))
                lines.append(Text(f"advice{of_task}: {self._outlooks[task].advice}"))
        return Group(*lines)


def _cells(row: dict[str, Any], steps: int, occupancy: float | None) -> list[tuple[str, str, str, str]]:
    """Return two labels and values per line, short enough for a terminal of 80 columns."""
    done = int(12 * row["step"] / steps)
    bar = "━" * done + "─" * (12 - done)
    return [
        ("step", f"{row['step']}/{steps} {bar}", "pass rate", f"{row['pass_rate']:.3f} (batch)"),
        (
            "generator", f"{row['generator_tokens_per_s']:,.0f} tok/s, {row['generator_idle']:.0%} idle",
            "trainer", f"{row['trainer_tokens_per_s']:,.0f} tok/s, {row['trainer_idle']:.0%} idle",
        ),
        (
            "staleness", f"{row['staleness_mean']:.1f} updates, max {row['staleness_max']:.0f}",
            "truncated", f"{row['truncation_rate']:.1%}, interrupted {row['interruption_rate']:.1%}",
        ),
        (
            "kept prompts", f"{row['kept_prompts']}/{row['prompts']}, busy slots {_share(occupancy)}",
            "entropy", f"{row['entropy']:.3f} nats, capped {row['capped_share']:.2%}",
        ),
        ("retired", f"{row['retired_prompts']} prompts, epoch {row['epoch']}", "", ""),
    ]  # fmt: skip


def _share(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.0%}"


def _forecast_line(ahead: Outlook) -> str:
    twice, four = ahead.forecast.at
    known = "" if ahead.fit.identified else " (ceiling not identified yet)"
    return (
        f"forecast 2x {twice.mean:.3f} ({twice.low:.3f} to {twice.high:.3f}), "
        f"4x {four.mean:.3f} ({four.low:.3f} to {four.high:.3f}){known}"
    )
