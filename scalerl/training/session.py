"""State of a run in progress: the objects that the loop uses, and what is recorded. The recipe is in loop.py."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scalerl.cluster.devices import Devices
from scalerl.config import RunConfig, to_toml
from scalerl.config.base import replace
from scalerl.core.serialization import to_plain
from scalerl.loggers.follow import Followers
from scalerl.prompts.curriculum import Curriculum, Mixture
from scalerl.prompts.dataset import PromptSplit
from scalerl.rollouts.coordinator import Update
from scalerl.rollouts.pipeline import Pipeline, RolloutBatch
from scalerl.rollouts.replay import ReplayMismatch, bound_of, check_difference
from scalerl.rollouts.schedule import first_visits
from scalerl.tasks.scoring import ScoringService
from scalerl.training.bad_update import message, save_batch
from scalerl.training.checkpoint import FORMAT, CheckpointStore, save_state
from scalerl.training.evaluation import by_task, eval_point, held_out_visits
from scalerl.training.lag import measured_lag
from scalerl.training.learner.base import BadGradient, Learner, StepStats, TrainBatch
from scalerl.training.progress import Display, Progress, TrainingFailed
from scalerl.training.rollout_rows import DETAILED, LogRatios, evaluation_rows, packed, sample_rows, telling_group
from scalerl.training.run_dir import RunDirectory
from scalerl.training.start_notes import arithmetic
from scalerl.training.stop_when import first_to_stop
from scalerl.training.stopwatch import Stopwatch, waited
from scalerl.types import EvalPoint, FloatArray, GeneratorStats, ScoredGroup, Visit


@dataclass(slots=True)
class Session:
    """The objects and the state that the loop uses."""

    config: RunConfig
    directory: RunDirectory
    checkpoints: CheckpointStore
    pipeline: Pipeline
    learner: Learner
    curriculum: Curriculum | Mixture
    prompts: PromptSplit
    scoring: ScoringService
    tokenizer: Any
    display: Display
    stop_requested: Callable[[], bool]
    devices: Devices = field(default_factory=Devices)
    """Devices for which device-hours are counted."""
    followers: Followers | None = None
    """Loggers and notifications."""
    phase: Callable[[str], None] = lambda phase: None
    """Function that reports the current phase of the run, a key of `status.PHASES`."""
    progress: Progress = field(default_factory=Progress)
    clock: Stopwatch = field(default_factory=Stopwatch)
    points: list[EvalPoint] = field(default_factory=list)
    _before: GeneratorStats = field(default_factory=lambda: GeneratorStats(0, 0, 0.0))
    _waited_before: float = 0.0
    _scores_before: float = 0.0
    _taken: RolloutBatch = field(default_factory=lambda: RolloutBatch(-1, (), GeneratorStats(0, 0, 0.0)))
    """The current batch."""
    _begun: set[int] = field(default_factory=set)
    _lately: deque[GeneratorStats] = field(default_factory=lambda: deque(maxlen=8))
    """The generators' counters at the last batches."""

    @property
    def finished(self) -> bool:
        """Whether all updates are done, every prompt is solved and retired, or a condition of `stop_when` holds."""
        progress = self.progress
        return progress.step >= self.config.steps or progress.exhausted or bool(progress.stopped_by)

    def close(self) -> None:
        """End the processes of generator, learner and verifiers, and unlock the run directory."""
        self.pipeline.close()
        self.learner.close()
        self.scoring.close()
        if self.followers:
            self.followers.close()
        self.directory.close()

    def ended(self, state: str, message: str) -> None:
        """Report how the run ended: finished, stopped or failed, with a message; call this before `close`."""
        if self.followers:
            self.followers.ended(state, message)

    # ------------------------------------------------------------------------------------------------------- prompts

    def initial_visits(self) -> tuple[Visit, ...]:
        """Draw the prompts that may be started with the first weights."""
        return self._draw(first_visits(self.config))

    def _draw(self, n: int) -> tuple[Visit, ...]:
        visits = self.curriculum.draw(n)
        self.progress.drawn_groups += len(visits)
        self.progress.closed = len(visits) < n
        return tuple(visits)

    def record_pass_rates(self, taken: RolloutBatch, passed_PG: Tensor) -> None:
        """Record in the curriculum the pass rates of the trained prompts and which prompts were dropped."""
        for scored, rate in zip(taken.groups, passed_PG.double().mean(dim=1).tolist(), strict=True):
            self.curriculum.record(scored.group.visit, rate)
        for visit in taken.dropped:
            self.curriculum.forget(visit)
        self.progress.trained_groups += len(taken.groups)
        self.progress.dropped_groups += len(taken.dropped)
        self._taken = taken
        self._before, self.progress.generator = self.progress.generator, taken.stats
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
        if self.config.rollouts.lag_ticks == "measure":
            self._measure_lag(batch)
        try:
            stats = self.learner.step(batch)
        except BadGradient as error:
            raise self._failed(error, batch) from None
        self.progress.training_flops += self.learner.training_flops(batch)
        self.progress.step += 1
        if not stats.trained_tokens:
            self.progress.skipped_steps += 1
            self.display.note(
                f"step {self.progress.step}: no prompt had any variance in its rewards; the update is skipped"
            )
        return stats

    def publish(self) -> None:
        """Send the new weights, and as many new prompts as were trained or dropped, to the generators."""
        recipe, step = self.config.recipe, self.progress.step
        wanted = recipe.prompts_per_step + len(self._taken.dropped)
        visits = self._draw(wanted) if not self.progress.closed else ()
        used, lag = recipe.off_policy.samples_with(step), self.config.rollouts.lag_ticks
        update = Update(step, used, visits, self.progress.closed, lag if isinstance(lag, int) else -1)
        self.pipeline.publish(update, self.learner.send)

    def _measure_lag(self, batch: TrainBatch) -> None:
        """Set the lag in ticks by timing the first batch, and save it in the run's configuration."""
        config = self.config
        lag = measured_lag(self.learner.rehearse(batch), self._taken, config.slots)
        self.config = replace(config, rollouts=replace(config.rollouts, lag_ticks=lag))
        self.directory.save_config(self.config)

    def _failed(self, error: BadGradient, batch: TrainBatch | None = None) -> TrainingFailed:
        step, path = self.progress.step, self.directory.path
        saved = save_batch(path, step, batch) if batch else None
        self.commit_checkpoints(wait=True)
        return TrainingFailed(
            message(error, saved, self.checkpoints.latest(), step, path, self.config.recipe.optimizer)
        )

    # ---------------------------------------------------------------------------------------------------- evaluation

    def evaluate_if_due(self, taken: RolloutBatch) -> None:
        """Evaluate on the schedule and at the end, and save a sample of the batch's rollouts."""
        if self._evaluation_is_due:
            self.evaluate(taken)

    def evaluate_if_missing(self) -> None:
        """Evaluate the current step if that is due and was not recorded yet; this is usually step 0."""
        if self._evaluation_is_due and all(point.step != self.progress.step for point in self.points):
            self.evaluate()

    @property
    def _evaluation_is_due(self) -> bool:
        return self.progress.step % self.config.evaluation.every == 0 or self.finished

    def evaluate(self, taken: RolloutBatch | None = None) -> None:
        """Measure each task's held-out pass rate; the time it takes is excluded from the training time.

        A group of `taken` is saved too. Generation continues while the samples are scored and replayed; this time
        counts as training time of the generators.
        """
        self.phase("evaluating")
        step, visits = self.progress.step, held_out_visits(self.prompts.held_out)
        samples = {task.curve: self.config.samples(task) for task in self.config.data}
        wanted = [samples[visit.prompt.task] for visit in visits]
        groups, eval_s = self.pipeline.evaluate(step, self.learner.send, visits, wanted)
        sample = telling_group(taken.groups) if taken else None
        log_ratios, of_sample, replay_s = self._replay(step, groups, sample)
        asked = time.perf_counter()
        generated_s = self._generated_s()
        self.clock.leave_out(eval_s + replay_s + time.perf_counter() - asked)
        hours = self.device_hours  # read once, so that the points of all tasks have the same compute
        self.clock.add(generated_s)  # after `hours`, because it is compute for later updates
        points = [
            eval_point(
                task_groups,
                step=step,
                device_hours=hours,
                flops=self.flops,
                tokens=self.progress.generator.tokens,
                eval_s=eval_s,
            )
            for task_groups in by_task(groups)
        ]
        self.points += points
        self.directory.add_points(points)
        saved = self.config.evaluation.saved
        self.directory.append("rollouts.jsonl", evaluation_rows(self.tokenizer, step, groups, log_ratios, saved))
        if sample:
            rows = sample_rows(self.tokenizer, step, sample, of_sample)
            prompt, rollouts = sample.group.visit.prompt.tokens, sample.group.rollouts[: len(rows)]
            self.directory.add_samples(rows, [packed(prompt, rollout) for rollout in rollouts])
        self.display.point(self.points)
        if self.followers:
            self.followers.evaluated(self.points)
        if not self.finished:
            self._judge_conditions()
        self.phase("training")

    def _judge_conditions(self) -> None:
        """End the run if a condition of `stop_when` holds that was not overruled."""
        open_rules = [text for text in self.config.stop_when if text not in self.progress.overruled]
        found = first_to_stop(open_rules, self.points, self.config) if open_rules else None
        if found is not None:
            self.progress.stopped_by, reason = found
            self.display.note(f"step {self.progress.step}: stopping, because {reason}")

    def _replay(
        self, step: int, groups: Sequence[ScoredGroup], sample: ScoredGroup | None
    ) -> tuple[LogRatios, Sequence[FloatArray | None], float]:
        """Check that the log-probabilities of a few samples agree with the learner's weights.

        Returns:
            The log ratios by index of the group, those of the first rollouts of `sample`, and the duration in seconds.

        Raises:
            TrainingFailed: The log-probabilities differ or are not finite.
        """
        wanted, began = self.config.evaluation.replayed, time.perf_counter()
        if not wanted:
            return {}, (), 0.0
        numbers = range(len(groups))[:: max(1, len(groups) // wanted)][:wanted]
        chosen = [(groups[number].group, groups[number].group.rollouts[0]) for number in numbers]
        chosen += [(sample.group, one) for one in sample.group.rollouts[:DETAILED]] if sample else []
        try:
            difference = self.learner.check(step, [(group.visit.prompt.tokens, rollout) for group, rollout in chosen])
        except BadGradient as error:
            raise self._failed(error) from None
        if difference is None:
            return {}, (), time.perf_counter() - began
        found, self.progress.replay_difference = difference.log_ratios, difference.largest
        try:
            check_difference(difference, step, bound_of(getattr(torch, self.config.hardware.dtype)))
        except ReplayMismatch as error:
            raise TrainingFailed(f"step {step}: {error}") from None
        by_group = {n: own_N for n, own_N in zip(numbers, found, strict=False) if own_N is not None}
        return by_group, found[len(numbers) :], time.perf_counter() - began

    @property
    def device_hours(self) -> float:
        """Held devices x hours of training so far.

        Evaluations and checkpoints are excluded, but the generators' work for training during them is included.
        """
        return self.devices.held * self.clock.seconds / 3600.0

    def _generated_s(self) -> float:
        """Return the seconds of sampling since the pipeline's mark, weighted by the generators' share of devices."""
        return self.devices.generating_share * self.pipeline.busy_since_mark()

    @property
    def flops(self) -> float:
        """Floating-point operations of training and generation so far."""
        return self.progress.training_flops + self.progress.generator.flops

    # --------------------------------------------------------------------------------------------------- checkpoints

    def checkpoint_if_due(self) -> None:
        """Start a checkpoint on the schedule and at the end, and commit those that are complete."""
        if self.progress.step % self.config.checkpoint.every == 0 or self.finished:
            self.checkpoint()
        self.commit_checkpoints()

    def checkpoint(self, wait: bool = False) -> None:
        """Write the trainer's part of a checkpoint and request the generator's; both are needed to commit it."""
        with self.clock.paused():
            self.phase("saving")
            self.pipeline.mark()
            path = self.checkpoints.begin(self.progress.step)
            try:
                self.learner.save(path)
            except BadGradient as error:
                raise self._failed(error) from None
            self.clock.add(self._generated_s())
            state = {
                "format": FORMAT,
                "config": to_toml(self.config),
                "progress": to_plain(self.progress),
                "curriculum": self.curriculum.state(),
                "device_hours": self.device_hours,
                "arithmetic": arithmetic(self.config.hardware.device),
                "cursors": (cursors := self.directory.cursors()),
                "row_digests": self.directory.row_digests(cursors),
            }
            save_state(path, "trainer", state)
            self.pipeline.snapshot(self.progress.step, path)
            self._begun.add(self.progress.step)
            self.phase("training")
        if wait:
            self.commit_checkpoints(wait=True)

    def commit_checkpoints(self, wait: bool = False) -> None:
        """Commit the checkpoints whose generator part is complete; with `wait`, wait for all that were started."""
        done = list(self.pipeline.snapshots_done(self._begun if wait else ()))
        if not done:
            return
        with self.clock.paused():  # digesting and syncing a large checkpoint takes seconds
            if not wait:  # with `wait` the run is about to end, and its generator may have ended
                self.pipeline.mark()
            for step in done:
                self.checkpoints.commit(step)
                self._begun.discard(step)
            if not wait:
                self.clock.add(self._generated_s())

    # ------------------------------------------------------------------------------------------------------- records

    def record_step(self, taken: RolloutBatch, row: dict[str, Any], step_s: float) -> None:
        """Write and display one row of metrics."""
        before, now = self._before, taken.stats
        waited, self._waited_before = self.pipeline.waited_s - self._waited_before, self.pipeline.waited_s
        scores_s = self.pipeline.waited_for_scores_s
        scoring, self._scores_before = scores_s - self._scores_before, scores_s
        lived = max(1e-9, now.busy_s + now.idle_s - before.busy_s - before.idle_s)
        tokens = now.tokens - before.tokens
        full_row = {
            "step": self.progress.step,
            **row,
            # if two batches complete at the same tick, the second has no decode steps
            "occupancy": tokens / steps if (steps := now.slot_steps - before.slot_steps) else math.nan,
            "generator_tokens_per_s": tokens / lived,
            "generator_idle": (now.idle_s - before.idle_s) / lived,
            "trainer_tokens_per_s": row["trained_tokens"] / max(1e-9, step_s - waited),
            "trainer_idle": waited / max(1e-9, step_s),
            "scoring_wait_s": scoring,
            "swap_ms": 1e3 * now.swap_s,
            "step_s": step_s,
            "epoch": self.curriculum.epoch,
            "retired_prompts": len(self.curriculum.retired),
            "dropped_groups": self.progress.dropped_groups,
            "verifier_timeouts": self.scoring.timeouts,
            "reward_failures": self.scoring.failures,
            "replay_difference": self.progress.replay_difference,
            "engine_restarts": now.restarts,
            "resampled": now.resampled,
            "device_hours": self.device_hours,
            "flops": self.flops,
            "tokens": now.tokens,
        }
        self.directory.append("metrics.jsonl", [full_row])
        for note in (*self.pipeline.notes(), *self.scoring.notes()):
            self.display.note(note)
        self.display.step(full_row)
        if self.followers:
            self.followers.step(full_row)
