"""Shows a run while it trains: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.core.printable import printable
from scalerl.core.types import EvalPoint
from scalerl.core.working import Working
from scalerl.reading.curves.estimate import percent, with_error
from scalerl.reading.pages.outlook import Outlook
from scalerl.reading.pages.run import RunView
from scalerl.reading.pages.terminal import tell
from scalerl.training.config import RunConfig
from scalerl.training.loop.run_info import run_info
from scalerl.training.loop.warnings import occupancy


class RunDisplay:
    """Displays a run: on a terminal it redraws a table, elsewhere it prints lines."""

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        """Prepare for a run; without a console, print to standard output."""
        self.console = console or Console(force_jupyter=False)  # which adds an output for every line
        self._config, self._view = config, RunView(run_info(config))
        self._every = max(1, config.steps // 50)
        self._outlooks: dict[str, Outlook] = {}
        self._live: Live | None = None
        self._table: Group = Group()
        self._started, self._phase = False, "starting"
        self._working = Working("starting", self._still, draws=False)

    def configured(self, config: RunConfig) -> None:
        """Use the configuration with the sizes that were chosen for this machine."""
        self._config, self._view.info = config, run_info(config)

    def belongs_to(self, path: Path) -> None:
        """Set the run directory, for commands in the advice."""
        self._view.directory = path

    def start(self) -> None:
        """Start the live table, if the console is a terminal."""
        if self._started:
            return
        self._started = True
        self._table = self._render()
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._alive, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        self._working.__enter__()

    def phase(self, phase: str) -> None:
        """Show a phase of the run, a key of `status.PHASES`."""
        self._phase = phase
        self._now()

    def _now(self) -> None:
        """Set what the sign of life says: the phase, and the step that is made."""
        done = self._view.rows[-1]["step"] if self._view.rows else 0
        self._working.on(f"step {done + 1}/{self._view.steps}" if self._phase == "training" else self._phase)

    def _still(self, line: str) -> None:
        """Print what is done, if nothing was printed for long; on a terminal the live table shows it."""
        if self._live is None:
            self.note(line)

    def _alive(self) -> Group:
        """Return the table with a line that shows what is done, and for how long."""
        return Group(self._table, Text(self._working.line, style="dim"))

    def stop(self) -> None:
        """Print the last state and restore the terminal."""
        if self._started:
            self._working.__exit__()
        self._started = False
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._view.rows:
                self.console.print(self._render())

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._working.note_output()
        tell(self.console, text)

    def step(self, row: dict[str, Any]) -> None:
        """Show a training step."""
        self._view.rows.append(row)
        self._now()
        if self._live is not None:
            self._table = self._render()
        elif row["step"] % self._every == 0 or row["step"] == self._view.steps:
            self.note(self._line(row))

    def point(self, points: Sequence[EvalPoint], forecasts: bool = True) -> None:
        """Show the curve of each task so far, with a forecast from its fifth evaluation on.

        Args:
            points: Evaluations of the run.
            forecasts: Whether to make new forecasts, which takes about a tenth of a second.
        """
        self._view.evaluated(points)
        if forecasts:
            self._outlooks = self._view.outlooks()
        if self._live is not None:
            self._table = self._render()
            return
        for task, last, of_task in self._last():
            text = f"evaluation at step {last.step}{of_task}: pass rate {with_error(last.pass_rate, last.stderr)}"
            ahead = self._outlooks.get(task) if forecasts else None
            self.note(f"{text}; {_forecast_line(ahead)}" if ahead else text)

    def _last(self) -> list[tuple[str, EvalPoint, str]]:
        """Return each task with its last evaluation and, if there are several, its name as the end of a phrase."""
        several = len(self._view.points) > 1
        return [(task, own[-1], f", {printable(task)}" * several) for task, own in self._view.points.items()]

    def _line(self, row: dict[str, Any]) -> str:
        return (
            f"step {row['step']}/{self._view.steps}  pass {with_error(row['pass_rate'])}  "
            f"truncated {percent(row['truncation_rate'])}  "
            f"stale {row['staleness_mean']:.1f} (max {row['staleness_max']:.0f})  "
            f"tok/s {row['generator_tokens_per_s']:.0f} | {row['trainer_tokens_per_s']:.0f}  "
            f"slots {percent(row['occupancy'])}  idle {row['generator_idle']:.0%} | {row['trainer_idle']:.0%}"
        )

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for style in ("dim", "", "dim", ""):
            table.add_column(style=style, no_wrap=True)
        for cells in _cells(self._view, self._config) if self._view.rows else ():
            table.add_row(*cells)
        lines: list[RenderableType] = [Text.from_markup("[bold]scalerl[/bold]"), table]
        for task, last, of_task in self._last():
            rate = f"{with_error(last.pass_rate, last.stderr)} at step {last.step}"
            lines.append(Text(f"held-out pass rate{of_task} {rate}"))
            if task in self._outlooks:
                lines.append(Text(_forecast_line(self._outlooks[task]), style="bold"))
                lines.append(Text(f"advice{of_task}: {self._outlooks[task].advice}"))
        return Group(*lines)


def _cells(view: RunView, config: RunConfig) -> list[tuple[str, str, str, str]]:
    """Return two labels and values per line, short enough for a terminal of 80 columns."""
    row, steps, busy = view.rows[-1], view.steps, occupancy(list(view.rows), config.recipe.off_policy.max_lag)
    done = int(12 * row["step"] / steps)
    bar = "━" * done + "─" * (12 - done)
    return [
        ("step", f"{row['step']}/{steps} {bar}", "pass rate", f"{with_error(row['pass_rate'])} (batch)"),
        (
            "generator", f"{row['generator_tokens_per_s']:,.0f} tok/s, {row['generator_idle']:.0%} idle",
            "trainer", f"{row['trainer_tokens_per_s']:,.0f} tok/s, {row['trainer_idle']:.0%} idle",
        ),
        (
            "staleness", f"{row['staleness_mean']:.1f} updates, max {row['staleness_max']:.0f}",
            "truncated", f"{percent(row['truncation_rate'])}, interrupted {percent(row['interruption_rate'])}",
        ),
        (
            "kept prompts", f"{row['kept_prompts']}/{row['prompts']}, busy slots {percent(busy)}",
            "entropy", f"{row['entropy']:.3f} nats, capped {percent(row['capped_share'])}",
        ),
        ("retired", f"{row['retired_prompts']} prompts, epoch {row['epoch']}", "", ""),
    ]  # fmt: skip


def _forecast_line(ahead: Outlook) -> str:
    twice, four = ahead.forecast.at
    known = "" if ahead.fit.identified else " (ceiling of this climb not identified yet)"
    return f"forecast 2x {twice:.3f}, 4x {four:.3f}{known}"
