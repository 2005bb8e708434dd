"""Records of a run: the rows of its directory, what its display shows, and what its loggers get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.core.run_files import EVENTS, METRICS
from scalerl.loggers.follow import Followers
from scalerl.prompts.curriculum import Curriculum, Mixture
from scalerl.rollouts.pipeline import Pipeline, RolloutBatch
from scalerl.tasks.scoring import ScoringService
from scalerl.training.display import RunDisplay
from scalerl.training.metrics import answer_row, environment_row
from scalerl.training.progress import Compute, Progress
from scalerl.training.run_dir import RunDirectory
from scalerl.training.warnings import Event, RunWarnings
from scalerl.types import EvalPoint, GeneratorStats

EVERY = 1_000
"""Number of points up to which the curves are judged at each evaluation."""

SHARE = 0.01
"""Share of new points after which longer curves are judged again: a fit reads all points."""


def is_due(points: int, judged: int) -> bool:
    """Return whether curves with so many points are judged again, so that an evaluation costs the same in any run.

    Args:
        points: Number of points.
        judged: Number of points at the last judgment.
    """
    return points <= EVERY or points - judged >= SHARE * points


@dataclass(slots=True)
class Records:
    """Writes and shows the results of a run."""

    directory: RunDirectory
    display: RunDisplay
    pipeline: Pipeline
    scoring: ScoringService
    curriculum: Curriculum | Mixture
    progress: Progress
    compute: Compute
    warnings: RunWarnings
    followers: Followers | None = None
    """The loggers of the run."""
    phase: Callable[[str], None] = lambda phase: None
    """Function that reports the current phase of the run, a key of `status.PHASES`."""
    points: list[EvalPoint] = field(default_factory=list)
    _before: GeneratorStats = field(init=False)
    _judged: int = 0
    """Number of points at the last judgment of the curves."""

    def __post_init__(self) -> None:
        self._before = self.progress.generator

    def step(self, taken: RolloutBatch, row: dict[str, Any], step_s: float) -> None:
        """Write and show one training step.

        Args:
            taken: The batch.
            row: Metrics of the rollouts and of the update.
            step_s: Duration of the step, seconds.
        """
        progress, before, now = self.progress, self._before, taken.stats
        self._before = now
        lived = max(1e-9, now.busy_s + now.idle_s - before.busy_s - before.idle_s)
        tokens, slot_steps = now.tokens - before.tokens, now.slot_steps - before.slot_steps
        environments = environment_row(taken.groups)
        if environments:
            environments["parked"] = (now.parked_s - before.parked_s) / lived
        full_row = {
            "step": progress.step,
            **row,
            **answer_row(taken.groups),
            **environments,
            # if two batches complete at the same tick, the second has no decode steps
            "occupancy": tokens / slot_steps if slot_steps else math.nan,
            "generator_tokens_per_s": tokens / lived,
            "generator_idle": (now.idle_s - before.idle_s) / lived,
            "trainer_tokens_per_s": row["trained_tokens"] / max(1e-9, step_s - taken.waited_s),
            "trainer_idle": taken.waited_s / max(1e-9, step_s),
            "scoring_wait_s": taken.scoring_s,
            "swap_ms": 1e3 * now.swap_s,
            "step_s": step_s,
            "epoch": self.curriculum.epoch,
            "retired_prompts": self.curriculum.num_retired,
            "dropped_groups": progress.dropped_groups,
            "verifier_timeouts": self.scoring.timeouts,
            "reward_failures": self.scoring.failures,
            "replay_difference": progress.replay_difference,
            "engine_restarts": now.restarts,
            "resampled": now.resampled,
            "device_hours": self.compute.device_hours,
            "flops": progress.flops,
            "tokens": now.tokens,
        }
        self.directory.append(METRICS, [full_row])
        for note in (*self.pipeline.notes(), *self.scoring.notes()):
            self.display.note(note)
        self._report(self.warnings.step(full_row), f"step {progress.step}")
        self.display.step(full_row)
        if self.followers:
            self.followers.step(full_row)

    def evaluated(self, points: Sequence[EvalPoint]) -> None:
        """Write the points of one evaluation, one for each task, and judge and show the curves if `is_due`."""
        self.points += points
        self.directory.add_points(points)
        if judged := is_due(len(self.points), self._judged):
            self._judged = len(self.points)
            self._report(self.warnings.evaluated(self.points), f"evaluation at step {points[-1].step}")
            self.display.point(self.points)
        if self.followers:
            self.followers.evaluated(self.points if judged else points, judged)

    def explain(self, notes: Mapping[str, str], events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Show notes that hold for the whole run, and write those that are new.

        Args:
            notes: Texts by key.
            events: Rows of events.jsonl so far.
        """
        known = {(event.get("key"), event.get("text")) for event in events}
        rows = [Event(self.progress.step, "note", key, text) for key, text in notes.items()]
        self.directory.append(EVENTS, [row._asdict() for row in rows if (row.key, row.text) not in known])
        for row in rows:
            self.display.note(row.text)

    def _report(self, events: Sequence[Event], when: str) -> None:
        self.directory.append(EVENTS, [event._asdict() for event in events])
        for text in self.warnings.news(events):
            self.display.note(f"{when}: {text}")

    def ended(self, state: str) -> None:
        """Report how the run ended: finished, stopped or failed; call this before `close`."""
        if self.followers:
            self.followers.ended(state)

    def close(self) -> None:
        """End the verifiers and loggers, and unlock the run directory."""
        self.scoring.close()
        if self.followers:
            self.followers.close()
        self.directory.close()
