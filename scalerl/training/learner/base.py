"""The contract between the loop and a learner, which makes one update from one batch, and what a learner is made of.

tests/train/test_learner_contract.py tests every learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scalerl.core.errors import RunError
from scalerl.core.types import Rollout
from scalerl.training.config.placement import Hardware, Placement
from scalerl.training.config.recipe import Recipe
from scalerl.training.config.run import LearnerSettings as LearnerSettings
from scalerl.training.engines.replay import Difference
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.batch import TrainBatch
from scalerl.training.learner.metrics import StepStats
from scalerl.training.models.build import PolicySpec

PromptedRollout = tuple[tuple[int, ...], Rollout]
"""(tokens of the prompt, rollout)."""


class BadGradient(RunError):
    """The loss, the gradient or a weight is not finite; the weights were not changed."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """Picklable specification from which a process builds its learner, the only one or that of a rank.

    Example: LearnerSpec(policy=PolicySpec(path="/models/qwen3", ...), recipe=Recipe(), settings=Learner(...),
                         hardware=Hardware(...), placement=Placement(...), rank=1, ranks=2,
                         init_method="tcp://10.0.0.5:29500")
    """

    policy: PolicySpec
    recipe: Recipe
    settings: LearnerSettings
    """With the sizes that were chosen."""
    hardware: Hardware
    placement: Placement
    rank: int = 0
    ranks: int = 1
    """Number of ranks."""
    init_method: str = ""
    """Rendezvous of torch.distributed: file:///path/of/a/new/file or tcp://host:port."""


class Learner(Protocol):
    """A policy in training."""

    updates: int
    """Number of completed updates, which is also the version of the weights."""

    def step(self, batch: TrainBatch) -> StepStats:
        """Perform one update: micro-batches, gradients accumulated in FP32, clipping and the optimizer step.

        A batch without trained tokens counts as an update and changes nothing.

        Raises:
            BadGradient: The loss or the gradient is not finite; the weights are unchanged.
        """

    def send(self, version: int, channel: WeightChannel) -> None:
        """Send all weights over a channel as `version`.

        Torch engines get the names of the model's parameters, vLLM those of a checkpoint on disk. The channel is used
        in the process that holds the weights, so they do not pass through the loop's process.
        """

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Recompute the log-probabilities of rollouts and compare those of the learner's version.

        Args:
            version: Version of the learner's weights.
            rollouts: Rollouts with their prompts. Those of other versions get log ratios but do not enter the
                difference.

        Returns:
            The difference, of 0 rollouts if none is of this version; None if no rollout has a sampled token.
        """

    def save(self, directory: Path) -> None:
        """Write the learner's part of a checkpoint.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """

    def begin_save(self, directory: Path) -> Future[None]:
        """Do what `save` does, perhaps in a thread while training goes on; errors of writing are in the result.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """

    def load(self, directory: Path, updates: int) -> None:
        """Restore the state that `save` wrote after `updates` updates."""

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model; with `model.lora` also the adapters, to `adapter` next to it."""

    def notes(self) -> dict[str, str]:
        """Return what a user must know about how updates are computed, by key: that rows are padded, and why."""

    def watch(self) -> None:
        """Raise ProcessDied if a process of the learner has ended; called while the loop waits."""

    def close(self) -> None:
        """End the learner's processes, if it has any; nothing is saved."""
