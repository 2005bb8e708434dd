"""A run in progress, as the loop steers it: prompts, updates, new weights, and when to evaluate and save.

The recipe is in loop.py. evaluation.py measures, records.py writes and shows, saved.py makes checkpoints.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scalerl.config import RunConfig
from scalerl.learner.base import BadGradient, Learner
from scalerl.learner.batch import RolloutTensors, TrainBatch
from scalerl.learner.metrics import StepStats
from scalerl.learner.policy_learner import batch_flops
from scalerl.models.sizes import ModelSizes
from scalerl.placement.choices import recomputes
from scalerl.prompts.curriculum import Curriculum, Mixture
from scalerl.rollouts.coordinator import Update
from scalerl.rollouts.pipeline import Pipeline, RolloutBatch
from scalerl.rollouts.schedule import first_visits
from scalerl.training.evaluation import Evaluations, first_to_stop
from scalerl.training.progress import Progress
from scalerl.training.records import Records
from scalerl.training.saved import Checkpoints
from scalerl.types import GeneratorStats, Visit

IDLE_SHARE = 0.02
"""Minimum idle share of the generators' time at which helpers of the trainer are worth the cores they take."""


@dataclass(slots=True)
class Session:
    """The objects that the loop uses."""

    config: RunConfig
    pipeline: Pipeline
    learner: Learner
    curriculum: Curriculum | Mixture
    progress: Progress
    evaluations: Evaluations
    records: Records
    checkpoints: Checkpoints
    stop_requested: Callable[[], bool]
    sizes: ModelSizes
    """Sizes of the policy, for its FLOPs."""
    _saved_at: float = field(default_factory=time.monotonic)
    """When the last checkpoint was begun, or the run."""
    _lately: deque[GeneratorStats] = field(default_factory=lambda: deque(maxlen=8))
    """The generators' counters at the last batches."""

    @property
    def finished(self) -> bool:
        """Whether all updates are done, every prompt is solved and retired, or a condition of `stop_when` holds."""
        progress = self.progress
        return progress.step >= self.config.steps or progress.exhausted or bool(progress.stopped_by)

    # ------------------------------------------------------------------------------------------------------- prompts

    def initial_visits(self) -> tuple[Visit, ...]:
        """Draw the prompts that may be started with the first weights."""
        return self._draw(first_visits(self.config))

    def _draw(self, n: int) -> tuple[Visit, ...]:
        visits = self.curriculum.draw(n)
        self.progress.drawn_groups += len(visits)
        self.progress.closed = len(visits) < n
        return tuple(visits)

    def record_pass_rates(self, taken: RolloutBatch, rollouts: RolloutTensors) -> None:
        """Record in the curriculum the pass rates of the trained prompts and which prompts have none.

        Args:
            taken: The batch.
            rollouts: The same rollouts as tensors; the rate of a prompt is over those with a reward.
        """
        passes_P, counts_P = rollouts.passed_PG.sum(dim=1).tolist(), rollouts.counted_PG.sum(dim=1).tolist()
        for scored, passes, count in zip(taken.groups, passes_P, counts_P, strict=True):
            if count:
                self.curriculum.record(scored.group.visit, passes / count)
            else:
                self.curriculum.forget(scored.group.visit)
        for visit in taken.dropped:
            self.curriculum.forget(visit)
        self.progress.trained_groups += len(taken.groups)
        self.progress.dropped_groups += len(taken.dropped)
        self.progress.generator = taken.stats
        self._lately.append(taken.stats)

    @property
    def generators_idle(self) -> bool:
        """Whether the generators waited for the trainer during the last batches."""
        return waited(self._lately[0], self._lately[-1])

    # -------------------------------------------------------------------------------------------------------- update

    def update(self, batch: TrainBatch) -> StepStats:
        """Perform one update.

        Raises:
            TrainingFailed: The loss or gradient was not finite; the batch is saved.
        """
        try:
            stats = self.learner.step(batch)
        except BadGradient as error:
            raise self.checkpoints.failure(error, batch) from None
        self.progress.training_flops += batch_flops(self.sizes, batch, recomputes(self.config))
        self.progress.step += 1
        return stats

    def skip(self, reason: str) -> None:
        """Count the latest update as skipped because no token could be trained, and say why."""
        self.progress.skipped_steps += 1
        self.records.display.note(f"step {self.progress.step}: {reason}; the update is skipped")

    def publish(self, taken: RolloutBatch) -> None:
        """Send the new weights, and as many new prompts as `taken` trained and dropped, to the generators."""
        recipe, step = self.config.recipe, self.progress.step
        wanted = recipe.prompts_per_step + len(taken.dropped)
        visits = self._draw(wanted) if not self.progress.closed else ()
        update = Update(step, recipe.off_policy.samples_with(step), visits, self.progress.closed)
        self.pipeline.publish(update, self.learner.send)

    # ----------------------------------------------------------------------------------------- evaluations, checkpoints

    def evaluate_if_due(self, taken: RolloutBatch | None = None) -> None:
        """Evaluate on the schedule and at the end, unless the points of this step exist.

        Args:
            taken: The last batch, of whose rollouts a sample is saved.
        """
        step = self.progress.step
        if not self._due(self.config.evaluation.every) or any(point.step == step for point in self.records.points):
            return
        self.records.phase("evaluating")
        self.evaluations.run(taken)
        if not self.finished:
            self._judge_conditions()
        self.records.phase("training")

    def _judge_conditions(self) -> None:
        """End the run if a condition of `stop_when` holds that was not overruled."""
        open_rules = [text for text in self.config.stop_when if text not in self.progress.overruled]
        condition = first_to_stop(open_rules, self.records.points, self.config) if open_rules else None
        if condition is not None:
            self.progress.stopped_by, reason = condition
            self.records.display.note(f"step {self.progress.step}: stopping, because {reason}")

    def checkpoint_if_due(self) -> None:
        """Start a checkpoint after so many steps or minutes, and at the end, and commit those that are complete."""
        minutes, now = self.config.checkpoint.every_minutes, time.monotonic()
        if self._due(self.config.checkpoint.every) or (minutes and now - self._saved_at >= 60.0 * minutes):
            self._saved_at = now
            self.records.phase("saving")
            self.checkpoints.write()
            self.records.phase("training")
        self.checkpoints.commit()

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.finished

    def close(self) -> None:
        """End the processes of generator, learner, verifiers and loggers, and unlock the run directory."""
        self.pipeline.close()
        self.checkpoints.close()
        self.learner.close()
        self.records.close()


def waited(before: GeneratorStats, now: GeneratorStats) -> bool:
    """Return whether the generators waited for the trainer between two readings of their counters."""
    return now.idle_s - before.idle_s > IDLE_SHARE * (now.busy_s - before.busy_s)
