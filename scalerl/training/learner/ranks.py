"""The learner of several ranks as the loop sees it: every call goes to all ranks, rank 0's answer comes back.

The loop's process holds no rank and no weights. `RankTransport` is what carries a call: processes of this machine
(rank_processes.py), or anything else that can run `build_rank` and `perform` in other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scalerl.config.model import HuggingFaceModel
from scalerl.config.run import RunConfig
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.training.learner.base import Learner, PromptedRollout, StepStats, TrainBatch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from scalerl.rollouts.replay import Difference
    from scalerl.training.learner.fsdp import ShardedLearner


RAISED_S = 10.0
"""Seconds in which all ranks raise what one has raised: the ranks that do not are waiting for that one."""


class LearnerDied(RuntimeError):
    """A trainer rank ended, failed or did not answer in time; the message names it. The others were ended too."""


class RankTransport(Protocol):
    """The ranks of a learner, wherever they run: each holds one, and its ends of the weight channels."""

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Let every rank do `perform(learner, channels, method, arguments)`; return their answers by rank.

        Raises:
            BadGradient, ConfigError: as the ranks raised them.
            LearnerDied: a rank ended, failed or took longer than `timeout_s` seconds; no rank is left then.
        """
        ...

    def close(self) -> None:
        """End all ranks; may be called again."""
        ...


class LearnerGroup:
    """The Learner contract over ranks."""

    def __init__(
        self,
        ranks: RankTransport,
        channels: Sequence[WeightChannel],
        flops: Callable[[TrainBatch], float],
        *,
        step_timeout_s: float,
        transfer_timeout_s: float,
    ) -> None:
        """Use ranks that are ready.

        Args:
            ranks: carries the calls.
            channels: those whose other ends the ranks hold, in the same order.
            flops: counts the operations of a step, which needs no rank.
            step_timeout_s: seconds that any call but `send` may take.
            transfer_timeout_s: seconds that `send` may take.
        """
        self.updates = 0
        self._ranks, self._channels, self._flops = ranks, list(channels), flops
        self._step_timeout_s, self._transfer_timeout_s = step_timeout_s, transfer_timeout_s

    def step(self, batch: TrainBatch) -> StepStats:
        """Take one update on all ranks.

        Raises:
            BadGradient: the loss or the gradient is not finite; the weights are unchanged.
            LearnerDied: see there; also from every other method that asks the ranks.
        """
        stats: StepStats = self._call("step", batch)
        self.updates += 1
        return stats

    def rehearse(self, batch: TrainBatch) -> float:
        """Return the seconds that a batch's forward and backward passes take, once warm; the weights are unchanged."""
        return float(self._call("rehearse", batch))

    def training_flops(self, batch: TrainBatch) -> float:
        """Return the floating-point operations of one step over a batch."""
        return self._flops(batch)

    def send(self, version: int, channel: WeightChannel) -> None:
        """Let rank 0 send the weights over its own end of a channel that the ranks were started with."""
        numbers = [number for number, own in enumerate(self._channels) if own is channel]
        assert numbers, f"the ranks hold no end of {channel}: it must be there when they are started"
        self._ranks.call("send", version, numbers[0], timeout_s=self._transfer_timeout_s)

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Compute the log-probabilities of rollouts of its own version again, on all ranks."""
        difference: Difference | None = self._call("check", version, list(rollouts))
        return difference

    def save(self, directory: Path) -> None:
        """Let every rank write its share of a checkpoint."""
        self._call("save", directory)

    def load(self, directory: Path, updates: int) -> None:
        """Restore what any number of ranks has saved after `updates` updates.

        Raises:
            ConfigError: the checkpoint is of one process, or of another model.
        """
        self._call("load", directory, updates)
        self.updates = updates

    def export(self, directory: Path) -> None:
        """Let rank 0 write the weights as a Hugging Face model."""
        self._call("export", directory)

    def export_adapter(self, directory: Path) -> None:
        """Do nothing: several ranks train all weights."""

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._ranks.call(method, *arguments, timeout_s=self._step_timeout_s)[0]


def perform(learner: Learner, channels: Sequence[WeightChannel], method: str, arguments: Sequence[Any]) -> Any:
    """Do one call in a rank's process, and return the answer.

    Args:
        learner: the rank's.
        channels: the rank's ends; `send` names one by its number.
        method: of the learner.
        arguments: of the method.
    """
    if method == "send":
        version, number = arguments
        return learner.send(version, channels[number])
    return getattr(learner, method)(*arguments)


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank needs to build itself; handed over by pickling.

    Example: RankSpec(config=RunConfig(), model_path="/models/qwen3", rank=1, ranks=2,
                      init_method="tcp://10.0.0.5:29500", gpu=1)
    """

    config: RunConfig
    """Resolved."""
    model_path: str
    rank: int
    ranks: int
    """How many there are."""
    init_method: str
    """Where they meet: file:///path/that/is/not/there or tcp://host:port."""
    gpu: int = 0
    """Number of the GPU among those that this process sees; unused on CPU."""


def build_rank(spec: RankSpec) -> ShardedLearner:
    """Join the process group and load this rank's share of the model; every rank must call it.

    Consumes: the model, on rank 0. Produces: a learner on every rank.
    Waits for: all ranks to join. Unblocked by: them, or after `placement.step_timeout_s` by an error.

    Raises:
        ConfigError: from loading the model.
    """
    return load_learner(spec, join(spec))


def join(spec: RankSpec) -> DeviceMesh:
    """Set this process up for a rank's work and join the process group; return the mesh of all ranks."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    device, cuda = spec.config.hardware.device, spec.config.hardware.device == "cuda"
    torch.set_num_threads(max(1, spec.config.hardware.trainer_threads // spec.ranks))
    if cuda:
        torch.cuda.set_device(spec.gpu)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=spec.init_method,
        rank=spec.rank,
        world_size=spec.ranks,
        timeout=timedelta(seconds=spec.config.placement.step_timeout_s),
        device_id=torch.device("cuda", spec.gpu) if cuda else None,
    )
    return init_device_mesh(device, (spec.ranks,))


def load_learner(spec: RankSpec, mesh: DeviceMesh) -> ShardedLearner:
    """Load this rank's share of the model and make the learner that the recipe asks for."""
    import torch

    from scalerl.training.learner.fsdp import ShardedLearner
    from scalerl.training.learner.shard import load_sharded

    config, dtype = spec.config, spec.config.hardware.dtype
    policy = load_sharded(
        spec.model_path,
        mesh,
        revision=config.model.revision if isinstance(config.model, HuggingFaceModel) else "main",
        dtype=dtype,
        fp32_head=config.recipe.fp32_head,
        matmul=config.hardware.trainer_matmul,
    )
    return ShardedLearner.of(
        policy,
        config.recipe,
        config.micro_batch_tokens,
        config.learner.gradient_checkpointing,
        packing=config.learner.packing,
        checkpoint_names=config.placement.engine == "vllm",
        dtype=getattr(torch, dtype),
        accumulate=config.learner.accumulate,
    )
