"""A run in progress: the objects that the loop steers, its prompts, and new weights for the generators.

The recipe is in loop.py. due.py evaluates, saved.py makes checkpoints, records.py writes and shows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any

from scalerl.core.types import GeneratorStats, Visit
from scalerl.training.config import RunConfig
from scalerl.training.engines.coordinator import NewVersion
from scalerl.training.engines.pipeline import Pipeline, RolloutBatch
from scalerl.training.learner.base import Learner
from scalerl.training.learner.batch import RolloutTensors
from scalerl.training.learner.checkpoint import CheckpointStore
from scalerl.training.loop.evaluator import Evaluator, HeldOut
from scalerl.training.loop.progress import Progress, RunCompute
from scalerl.training.loop.records import Records
from scalerl.training.models.sizes import ModelSizes
from scalerl.training.models.text import TokenText
from scalerl.training.prompts.curriculum import Curriculum, Mixture
from scalerl.training.rewards.scoring import ScoringService

IDLE_SHARE = 0.02
"""Minimum idle share of the generators' time at which helpers of the trainer are worth the cores they take."""


@dataclass(slots=True)
class Run:
    """The objects of a run; functions of loop.py, due.py and saved.py steer them."""

    config: RunConfig
    first_visits: int
    """Prompts that are drawn for the first weights."""
    sizes: ModelSizes
    """Sizes of the policy, for its FLOPs."""
    text: TokenText
    held_out: HeldOut
    """What the evaluations sample."""
    curriculum: Curriculum | Mixture
    scoring: ScoringService
    pipeline: Pipeline
    learner: Learner
    progress: Progress
    compute: RunCompute
    records: Records
    store: CheckpointStore
    inputs: Mapping[str, Any]
    """Digests of what a resume reads again (inputs.py)."""
    stop_requested: Callable[[], bool]
    evaluator: Evaluator | None = None
    """The evaluation process; None: training pauses for evaluations."""
    saves: dict[int, Future[None]] = field(default_factory=dict)
    """The learner's part of each checkpoint that is not committed yet, by step."""
    saved_by_generator: set[int] = field(default_factory=set)
    """Those of these steps whose generator part is complete."""
    saved_at: float = field(default_factory=time.monotonic)
    """When the last checkpoint was begun, or the run; seconds of the monotonic clock."""
    recent_stats: deque[GeneratorStats] = field(default_factory=lambda: deque(maxlen=8))
    """The generators' counters at the last batches."""

    @property
    def finished(self) -> bool:
        """Whether all updates are done, every prompt is solved and retired, or a condition of `stop_when` holds."""
        progress = self.progress
        return progress.step >= self.config.steps or progress.exhausted or bool(progress.stopped_by)

    @property
    def generators_idle(self) -> bool:
        """Whether the generators waited for the trainer during the last batches."""
        return waited(self.recent_stats[0], self.recent_stats[-1])

    def is_due(self, every: int) -> bool:
        """Return whether something that happens every so many steps, and at the end, happens now."""
        return self.progress.step % every == 0 or self.finished

    def close(self) -> None:
        """End the processes of generator, learner, verifiers and loggers, and unlock the run directory."""
        self.pipeline.close()
        if self.evaluator is not None:
            self.evaluator.close()
        wait_for(self.saves.values())  # nothing writes into the run directory any more
        self.learner.close()
        self.scoring.close()
        self.records.close()


def draw_first(run: Run) -> tuple[Visit, ...]:
    """Draw the prompts that may be started with the first weights."""
    return _draw(run, run.first_visits)


def _draw(run: Run, n: int) -> tuple[Visit, ...]:
    visits = run.curriculum.draw(n)
    run.progress.drawn_groups += len(visits)
    run.progress.closed = len(visits) < n
    return tuple(visits)


def record_pass_rates(run: Run, taken: RolloutBatch, rollouts: RolloutTensors) -> None:
    """Record in the curriculum the pass rates of the trained prompts and which prompts have none.

    Args:
        run: The run.
        taken: The batch.
        rollouts: The same rollouts as tensors; the rate of a prompt is over those with a reward.
    """
    passes_P, counts_P = rollouts.passed_PG.sum(dim=1).tolist(), rollouts.counted_PG.sum(dim=1).tolist()
    for scored, passes, count in zip(taken.groups, passes_P, counts_P, strict=True):
        if count:
            run.curriculum.record(scored.group.visit, passes / count)
        else:
            run.curriculum.forget(scored.group.visit)
    for visit in taken.dropped:
        run.curriculum.forget(visit)
    run.progress.trained_groups += len(taken.groups)
    run.progress.dropped_groups += len(taken.dropped)
    run.progress.generator = taken.stats
    run.recent_stats.append(taken.stats)


def publish(run: Run, taken: RolloutBatch) -> None:
    """Send the new weights, and as many new prompts as `taken` trained and dropped, to the generators."""
    recipe, step = run.config.recipe, run.progress.step
    wanted = recipe.prompts_per_step + len(taken.dropped)
    visits = _draw(run, wanted) if not run.progress.closed else ()
    update = NewVersion(step, recipe.off_policy.samples_with(step), visits, run.progress.closed)
    run.pipeline.publish(update, run.learner.send)


def waited(before: GeneratorStats, now: GeneratorStats) -> bool:
    """Return whether the generators waited for the trainer between two readings of their counters."""
    return now.idle_s - before.idle_s > IDLE_SHARE * (now.busy_s - before.busy_s)
