"""Shows a study in a terminal: its plan, and all arms with their forecasts while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.core.printable import printable
from scalerl.core.rows import read_points
from scalerl.core.serialization import flat
from scalerl.scaling import CurveError, fit
from scalerl.study.directory import StudyDirectory
from scalerl.study.plan import Plan, RunKey, rates_note
from scalerl.types import EvalPoint
from scalerl.view.display import tell
from scalerl.view.outlook import curve_of

MARKS = {"waiting": "·", "running": "▶", "finished": "✓", "failed": "✗", "stopped": "■"}
"""Symbol for each state of a run."""


def describe(plan: Plan) -> list[str]:
    """Return a description of a plan, line by line: arms, seeds, and derived sizes."""
    lines = [f"{plan.name}: {plan.about}" if plan.about else plan.name]
    seeds = ", ".join(map(str, plan.seeds))
    lines.append(f"{len(plan.arms)} arms x seeds {seeds} = {len(plan.arms) * len(plan.seeds)} runs")
    widest = max(len(arm.name) for arm in plan.arms)
    for arm in plan.arms:
        config = plan.config(arm, plan.seeds[0])
        size = f"{config.steps} steps x {config.recipe.prompts_per_step} x {config.recipe.generations_per_prompt}"
        changed = ", ".join(f"{name} = {value}" for name, value in flat(arm.changes).items()) or "nothing"
        role = ", the reference" if arm.name == plan.reference else ", held out" if plan.is_held_out(arm.name) else ""
        lines.append(f"  {arm.name:<{widest}}  {size:<18}  {arm.about or 'changes ' + changed}{role}")
    rates = rates_note(plan)
    lines += [f"  {rates}"] if rates else []
    lines += [f"  {line}" for line in plan.config(plan.arm(plan.reference), plan.seeds[0]).derived_sizes()]
    return lines


class StudyDisplay:
    """All arms as a live table on a terminal; elsewhere one line for each finished run."""

    def __init__(self, study: StudyDirectory, console: Console | None = None) -> None:
        self.console = console or Console()
        self._study = study
        self._points: dict[RunKey, list[EvalPoint]] = {}
        self._ceilings: dict[RunKey, tuple[int, str]] = {}  # number of evaluations that were fitted, and the ceiling
        self._told: dict[RunKey, str] = {}
        self._began = time.monotonic()
        self._drawn = 0.0
        self._live: Live | None = None

    def start(self, workers: int) -> None:
        """Print the plan, and start the live table if the console is a terminal."""
        for line in describe(self._study.plan):
            self.note(line)
        self.note(f"{workers} runs in parallel; everything is written to {self._study.path}")
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=2, transient=True)
            self._live.start()

    def stop(self) -> None:
        """Restore the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """Print a message."""
        tell(self.console, text)

    def update(self, states: Mapping[RunKey, str]) -> None:
        """Show every run's state; read the points of runs that are running or have just ended."""
        changed = [key for key, state in states.items() if self._told.get(key) != state]
        due = self._live is not None and time.monotonic() - self._drawn > REDRAW_S
        for key, state in states.items():
            if key in changed or (due and state == "running"):
                self._look(key, fitted=due or state == "finished")
        for key in changed:
            self._told[key] = states[key]
            if states[key] == "finished" and self._live is None:
                self.note(self._line(key, states))
        if self._live is not None and (due or changed):
            self._live.update(self._table(states))
            self._drawn = time.monotonic()

    def _look(self, key: RunKey, *, fitted: bool) -> None:
        """Read a run's points, and fit them if there are new ones."""
        points = read_points(self._study.run(key))
        task = self._study.task() or (points[0].task if points else "")
        points = self._points[key] = [point for point in points if point.task == task]
        if not fitted or len(points) == self._ceilings.get(key, (0, ""))[0]:
            return
        try:
            latest = fit(curve_of(points, self._study.axis()))
            text = f"{latest.asymptote:.3f}{'' if latest.identified else '?'}"
        except CurveError:  # too few points for a fit; the table shows the last value only
            text = ""
        self._ceilings[key] = (len(points), text)

    def _line(self, key: RunKey, states: Mapping[RunKey, str]) -> str:
        points, (_, ceiling) = self._points.get(key), self._ceilings.get(key, (0, ""))
        done = sum(state == "finished" for state in states.values())
        value = f"pass rate {points[-1].pass_rate:.3f}" if points else ""
        ceiling = f", A {ceiling}" if ceiling else ""
        return f"{key}: {value}{ceiling}  [{done} of {len(states)}, {self._left(states)}]"

    def _left(self, states: Mapping[RunKey, str]) -> str:
        """Time so far, and the remaining time at this speed."""
        spent = time.monotonic() - self._began
        finished = [row for row in self._study.journal() if row["code"] == 0]
        ahead = sum(state in ("waiting", "running") for state in states.values())
        words = f"{spent / 60:.0f} min"
        if finished and ahead:
            each = sum(row["seconds"] for row in finished) / len(finished)
            running = max(1, sum(state == "running" for state in states.values()))
            words += f", about {each * ahead / running / 60:.0f} more"
        return words

    def _table(self, states: Mapping[RunKey, str]) -> Table:
        plan = self._study.plan
        done = sum(state == "finished" for state in states.values())
        title = Text(printable(f"{plan.name}: {done} of {len(states)} runs, {self._left(states)}"))
        table = Table("arm", "seed", "", "step", "last", "ceiling A (? not identified)", title=title)
        for arm in plan.arms:
            for seed in plan.seeds:
                key = RunKey(arm.name, seed)
                state, points = states.get(key, "waiting"), self._points.get(key)
                if state == "waiting" and len(states) > MANY:
                    continue
                last = (str(points[-1].step), f"{points[-1].pass_rate:.3f}") if points else ("", "")
                table.add_row(arm.name, str(seed), MARKS[state], *last, self._ceilings.get(key, (0, ""))[1])
        return table


REDRAW_S = 2.0
"""Interval in seconds at which the points of running arms are read; a fit takes about 1% of it."""

MANY = 30
"""Number of runs above which waiting runs are left out of the live table."""
