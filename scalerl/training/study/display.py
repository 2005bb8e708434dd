"""Shows a study in a terminal: its plan, and each run that finishes, with its ceiling."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console

from scalerl.core.rows import read_points
from scalerl.core.run_files import RunKey
from scalerl.core.serialization import flat
from scalerl.reading.curves import CurveError, fit
from scalerl.reading.pages.outlook import curve_of
from scalerl.reading.pages.study import rates_note
from scalerl.reading.pages.terminal import tell
from scalerl.training.placement.sizes import PromptCounts, derived_sizes
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.info import study_info
from scalerl.training.study.plan import Plan


def describe_plan(plan: Plan, pool: PromptCounts | None = None) -> list[str]:
    """Return a description of a plan, line by line: arms, seeds, and derived sizes; `pool` has its prompts if known."""
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
    rates = rates_note(study_info(plan))
    lines += [f"  {rates}"] if rates else []
    lines += [f"  {line}" for line in derived_sizes(plan.config(plan.arm(plan.reference), plan.seeds[0]), pool)]
    return lines


class StudyDisplay:
    """One line for each finished run. The page of `scalerl watch` shows all runs while they train."""

    def __init__(self, study: StudyDirectory, console: Console | None = None) -> None:
        self.console = console or Console()
        self._study = study
        self._states: dict[RunKey, str] = {}
        self._start = time.monotonic()

    def start(self, workers: int) -> None:
        """Print the plan."""
        for line in describe_plan(self._study.plan):
            self.note(line)
        self.note(f"{workers} runs in parallel; everything is written to {self._study.path}")

    def note(self, text: str) -> None:
        """Print a message."""
        tell(self.console, text)

    def update(self, states: Mapping[RunKey, str]) -> None:
        """Print a line for each run that has finished since the last call."""
        finished = [key for key, state in states.items() if state == "finished" != self._states.get(key)]
        self._states = dict(states)
        for key in finished:
            self.note(self._line(key, states))

    def _line(self, key: RunKey, states: Mapping[RunKey, str]) -> str:
        points = read_points(self._study.run(key))
        task = self._study.info.task or (points[0].task if points else "")
        points = [point for point in points if point.task == task]
        value = f"pass rate {points[-1].pass_rate:.3f}" if points else ""
        try:
            latest = fit(curve_of(points, self._study.axis()))
            ceiling = f", A {latest.asymptote:.3f}{'' if latest.identified else '?'}"
        except CurveError:  # too few points for a fit
            ceiling = ""
        done = sum(state == "finished" for state in states.values())
        return f"{key}: {value}{ceiling}  [{done} of {len(states)}, {self._times(states)}]"

    def _times(self, states: Mapping[RunKey, str]) -> str:
        """Return the time so far, and the remaining time at this speed."""
        spent = time.monotonic() - self._start
        finished = [row for row in self._study.journal() if row["code"] == 0]
        unfinished = sum(state in ("waiting", "running") for state in states.values())
        words = f"{spent / 60:.0f} min"
        if finished and unfinished:
            mean_s = sum(row["seconds"] for row in finished) / len(finished)
            running = max(1, sum(state == "running" for state in states.values()))
            words += f", about {mean_s * unfinished / running / 60:.0f} more"
        return words
