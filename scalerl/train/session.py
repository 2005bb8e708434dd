"""One run under way: the objects the loop works with, and what it records. The order of the recipe is in loop.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.config import RunConfig, to_toml
from scalerl.models.policy import WeightLayout
from scalerl.prompts.curriculum import Curriculum
from scalerl.prompts.dataset import PromptSplit
from scalerl.prompts.mixture import Mixture
from scalerl.rollouts.coordinator import RolloutBatch, Update, generate
from scalerl.rollouts.engine import Engine
from scalerl.rollouts.pipeline import Pipeline, WriteWeights
from scalerl.serialization import to_plain
from scalerl.tasks.scoring import Score, Scorer
from scalerl.train.batch import Batch
from scalerl.train.checkpoint import CheckpointStore, save_state
from scalerl.train.evaluation import by_task, eval_point, held_out_visits
from scalerl.train.learner.single import Learner
from scalerl.train.run_dir import RunDirectory
from scalerl.train.stopwatch import Stopwatch
from scalerl.types import EvalPoint, GeneratorStats, Group


class Display(Protocol):
    """Shows a run to a person."""

    def step(self, row: dict[str, Any]) -> None:
        """Show a training step."""
        ...

    def point(self, points: Sequence[EvalPoint]) -> None:
        """Show the curve so far."""
        ...

    def note(self, text: str) -> None:
        """Say something once."""
        ...


@dataclass(slots=True)
class Progress:
    """What a run has done; part of every checkpoint."""

    step: int = 0
    """Updates done; also the version of the weights."""
    training_flops: float = 0.0
    trained_groups: int = 0
    drawn_groups: int = 0
    closed: bool = False
    """The curriculum has no more prompts to draw."""
    skipped_steps: int = 0
    """Steps in which no prompt had anything to teach."""
    generator: GeneratorStats = field(default_factory=lambda: GeneratorStats(0, 0, 0.0))
    """The generator's counters when it completed the last batch trained."""

    @property
    def exhausted(self) -> bool:
        """Whether every prompt that could be drawn was trained."""
        return self.closed and self.trained_groups >= self.drawn_groups


@dataclass(slots=True)
class Session:
    """Everything the loop touches."""

    config: RunConfig
    directory: RunDirectory
    checkpoints: CheckpointStore
    pipeline: Pipeline
    learner: Learner
    curriculum: Curriculum | Mixture
    prompts: PromptSplit
    scorer: Scorer
    tokenizer: Any
    evaluation_engine: Engine
    display: Display
    stop_requested: Callable[[], bool]
    devices: int = 1
    """Devices held, for device-hours."""
    progress: Progress = field(default_factory=Progress)
    clock: Stopwatch = field(default_factory=Stopwatch)
    points: list[EvalPoint] = field(default_factory=list)
    _waited_before: float = 0.0
    _begun: set[int] = field(default_factory=set)

    # --------------------------------------------------------------------------------------------------------- start

    def initial_visits(self) -> tuple[Any, ...]:
        """Draw the prompts that may be started from the first weights: those of k + 1 batches."""
        from scalerl.config.recipe import max_lag

        recipe = self.config.recipe
        return self._draw(recipe.prompts_per_step * (max_lag(recipe.off_policy) + 1))

    def _draw(self, n: int) -> tuple[Any, ...]:
        visits = self.curriculum.draw(n)
        self.progress.drawn_groups += len(visits)
        self.progress.closed = len(visits) < n
        return tuple(visits)

    # ------------------------------------------------------------------------------------------------------- rewards

    def score(self, groups: Sequence[Group]) -> list[Score]:
        """Return one score a rollout, in order; a truncated rollout has failed, whatever it says."""
        prompts = [group.visit.prompt for group in groups for _ in group.rollouts]
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        texts = self.tokenizer.batch_decode([r.tokens.tolist() for r in rollouts], skip_special_tokens=True)
        scores = self.scorer.score(prompts, texts)
        return [self.scorer.failed(s) if r.truncated else s for s, r in zip(scores, rollouts, strict=True)]

    # ------------------------------------------------------------------------------------------------------- weights

    def write_weights(self) -> WriteWeights:
        """Return how to copy the current weights into shared memory."""
        policy, layout = self.learner.policy, WeightLayout.of(self.learner.policy)

        def write(block: npt.NDArray[np.uint8]) -> None:
            layout.write(policy, torch.from_numpy(block))

        return write

    def publish(self) -> None:
        """Hand the new weights, and as many new prompts as a batch holds, to the generator."""
        recipe, step = self.config.recipe, self.progress.step
        visits = self._draw(recipe.prompts_per_step) if not self.progress.closed else ()
        update = Update(step, None, visits, self.progress.closed, self.config.rollouts.lag_ticks)
        off_policy = recipe.off_policy
        used = off_policy.kind == "pipeline" or step % off_policy.batches == 0
        self.pipeline.publish(update, self.write_weights() if used else None)

    # ---------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self) -> None:
        """Measure each task's held-out pass rate in both processes, with the training clock stopped."""
        with self.clock.paused():
            began = time.perf_counter()
            visits, settings = held_out_visits(self.prompts.held_out), self.config.evaluation
            half = (len(visits) + 1) // 2
            theirs = self.pipeline.evaluate(self.write_weights(), visits[half:], settings.samples)
            mine = generate(self.evaluation_engine, visits[:half], settings.samples, self.config.seed, "evaluate")
            groups = mine + theirs()
            parts = by_task(groups, self.score(groups))
            eval_s = time.perf_counter() - began
            points = [
                eval_point(
                    task_groups,
                    scores,
                    step=self.progress.step,
                    device_hours=self.device_hours,
                    flops=self.flops,
                    tokens=self.progress.generator.tokens,
                    eval_s=eval_s,
                )
                for task_groups, scores in parts
            ]
            self.points += points
            self.directory.add_points(points)
            self.display.point(self.points)

    @property
    def device_hours(self) -> float:
        """Devices held x hours of training so far."""
        return self.devices * self.clock.seconds / 3600.0

    @property
    def flops(self) -> float:
        """Floating-point operations of training and generation so far."""
        return self.progress.training_flops + self.progress.generator.flops

    # --------------------------------------------------------------------------------------------------- checkpoints

    def checkpoint(self, wait: bool = False) -> None:
        """Write the trainer's part of a checkpoint and ask the generator for its own; it counts when both are there."""
        with self.clock.paused():
            path = self.checkpoints.begin(self.progress.step)
            state = {
                "config": to_toml(self.config),
                "progress": to_plain(self.progress),
                "curriculum": self.curriculum.state(),
                "training_s": self.clock.seconds,
                "cursors": self.directory.cursors(),
                "learner": self.learner.tensors(),
            }
            save_state(path, "trainer", state)
            self.pipeline.snapshot(self.progress.step, path)
            self._begun.add(self.progress.step)
            if wait:
                self.commit_checkpoints(wait=True)

    def commit_checkpoints(self, wait: bool = False) -> None:
        """Make those checkpoints count whose generator part has arrived; or wait for all that were begun."""
        for step in self.pipeline.snapshots_done(self._begun if wait else ()):
            self.checkpoints.commit(step)
            self._begun.discard(step)

    # ------------------------------------------------------------------------------------------------------- records

    def record_step(self, batch: RolloutBatch, row: dict[str, Any], step_s: float) -> None:
        """Write and show one row of metrics."""
        before, now = self.progress.generator, batch.stats
        self.progress.generator = now
        waited, self._waited_before = self.pipeline.waited_s - self._waited_before, self.pipeline.waited_s
        lived = max(1e-9, now.busy_s + now.idle_s - before.busy_s - before.idle_s)
        full_row = {
            "step": self.progress.step,
            **row,
            "generator_tokens_per_s": (now.tokens - before.tokens) / lived,
            "generator_idle": (now.idle_s - before.idle_s) / lived,
            "trainer_tokens_per_s": row["trained_tokens"] / max(1e-9, step_s - waited),
            "trainer_idle": waited / max(1e-9, step_s),
            "swap_ms": 1e3 * now.swap_s,
            "step_s": step_s,
            "epoch": self.curriculum.epoch,
            "retired_prompts": len(self.curriculum.retired),
            "verifier_timeouts": self.scorer.timeouts,
            "device_hours": self.device_hours,
            "flops": self.flops,
            "tokens": now.tokens,
        }
        self.directory.append("metrics.jsonl", [full_row])
        self.display.step(full_row)

    def record_samples(self, groups: Sequence[Group], scores: Sequence[Score], count: int = 4) -> None:
        """Write the first rollouts of a batch as text, with their rewards."""
        rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
        rows = [
            {
                "step": self.progress.step,
                "prompt": group.visit.prompt.text,
                "completion": self.tokenizer.decode(rollout.tokens.tolist()),
                "answer": group.visit.prompt.answer,
                "reward": score.reward,
                "truncated": rollout.truncated,
                "interrupted": rollout.interrupted,
            }
            for (group, rollout), score in zip(rollouts[:count], scores[:count], strict=True)
        ]
        self.directory.append("rollouts/samples.jsonl", rows)

    def save_bad_batch(self, batch: Batch, advantages_B: Tensor) -> str:
        """Save the batch of a step that went wrong, for the user to look at; return where."""
        path = self.directory.path / "bad_batch"
        tensors = {name: getattr(batch, name) for name in batch.__slots__} | {"advantages_B": advantages_B}
        save_state(path, f"step_{self.progress.step:06d}", tensors)
        return str(path)
