"""The learner of several ranks in the loop's process: every call goes to all ranks, and rank 0's answer is returned.

The loop's process holds no weights. A `RemoteGroup` (core/remote.py) carries the calls: to processes on this machine
(rank_processes.py), or to Ray actors (training/machines/ranks.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.core.errors import outcome
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import PASSED, Body, RemoteGroup, serve
from scalerl.training.config.base import chosen
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import BadGradient, Learner, LearnerSpec, PromptedRollout
from scalerl.training.learner.batch import TrainBatch
from scalerl.training.learner.metrics import StepStats

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from scalerl.training.engines.replay import Difference
    from scalerl.training.learner.fsdp import ShardedLearner
    from scalerl.training.learner.single import SingleLearner
    from scalerl.training.models.policy import Policy


class LearnerDied(ProcessDied):
    """A trainer rank ended, failed or did not answer in time; the message says which. The others were ended too."""


class TransferDied(LearnerDied):
    """The ranks ended in a transfer into running engines, such as one that NCCL does not end when a server has died.

    Engines are replaced while a run goes on, so the run then replaces the ranks too (training/loop/complete.py).
    """


BuildLearner = Callable[[], Learner]
"""Creates a rank's learner inside its process; must be picklable."""


class LearnerGroup:
    """The Learner contract over ranks."""

    def __init__(
        self,
        ranks: RemoteGroup,
        channels: Sequence[WeightChannel],
        *,
        step_timeout_s: float,
        transfer_timeout_s: float,
    ) -> None:
        """Use ranks that are ready.

        Args:
            ranks: Connection to the ranks.
            channels: Channels whose other ends the ranks hold, in the same order.
            step_timeout_s: Time limit of all calls except `send`, seconds.
            transfer_timeout_s: Time limit of `send`, seconds.
        """
        self.updates = 0
        self._ranks, self._channels = ranks, list(channels)
        self._step_timeout_s, self._transfer_timeout_s = step_timeout_s, transfer_timeout_s

    def step(self, batch: TrainBatch) -> StepStats:
        """Perform one update on all ranks.

        Raises:
            BadGradient: The loss or the gradient is not finite; the weights are unchanged.
            LearnerDied: A rank ended; all other methods that call the ranks raise this too.
        """
        stats: StepStats = self._call("step", batch)
        self.updates += 1
        return stats

    def send(self, version: int, channel: WeightChannel) -> None:
        """Let rank 0 send the weights over its end of a channel that the ranks were started with.

        Raises:
            TransferDied: The ranks were ended, because a transfer into running engines did not end or failed.
            LearnerDied: A rank ended in another transfer.
        """
        numbers = [number for number, end in enumerate(self._channels) if end is channel]
        assert numbers, f"the ranks have no end of {channel}; pass the channel when the ranks are started"
        try:
            self._ranks.call("send", version, numbers[0], timeout_s=self._transfer_timeout_s)
        except LearnerDied as error:
            if not channel.into_engines:
                raise
            raise TransferDied(str(error), error.trace) from None

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Recompute the log-probabilities of rollouts on all ranks."""
        difference: Difference | None = self._call("check", version, list(rollouts))
        return difference

    def save(self, directory: Path) -> None:
        """Let every rank write its shard of a checkpoint."""
        self._call("save", directory)

    def begin_save(self, directory: Path) -> Future[None]:
        """Save before this returns: the ranks exchange messages while they write, and cannot train meanwhile."""
        self.save(directory)
        return outcome(lambda: None)

    def load(self, directory: Path, updates: int) -> None:
        """Restore the state that one process or any number of ranks saved after `updates` updates.

        Raises:
            ConfigError: The checkpoint belongs to another model.
        """
        self._call("load", directory, updates)
        self.updates = updates

    def export(self, directory: Path) -> None:
        """Let rank 0 write the weights as a Hugging Face model, and adapters next to it."""
        self._call("export", directory)

    def notes(self) -> dict[str, str]:
        """Return what a user must know about how the ranks compute updates, by key."""
        notes: dict[str, str] = self._call("notes")
        return notes

    def watch(self) -> None:
        """Raise LearnerDied if a rank has ended."""
        self._ranks.watch()

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._ranks.call(method, *arguments, timeout_s=self._step_timeout_s)[0]


class _Rank:
    """A rank in its process: the methods of its learner, and `send` over its end of a channel."""

    def __init__(self, build: BuildLearner, channels: Sequence[WeightChannel]) -> None:
        self._learner, self._channels = build(), channels

    def send(self, version: int, number: int) -> None:
        self._learner.send(version, self._channels[number])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def serve_rank(build: BuildLearner, channels: Sequence[WeightChannel]) -> Body:
    """Return the function that the process of a rank runs.

    Args:
        build: Function that creates the learner.
        channels: The rank's ends of the weight channels.
    """
    return partial(serve, partial(_Rank, build, tuple(channels)), (BadGradient, *PASSED))


def build_rank(spec: LearnerSpec) -> Learner:
    """Join the process group and load this rank's shard of the model; every rank must call this.

    This waits until all ranks have joined, and fails after `placement.step_timeout_s`. A single rank joins no group and
    has the learner of one process.

    Raises:
        ConfigError: From loading the model.
    """
    return load_learner(spec, join(spec)) if spec.ranks > 1 else load_single(spec)


def join(spec: LearnerSpec) -> DeviceMesh:
    """Set threads and device of this process, join the process group and return the mesh of all ranks."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    device, cuda = spec.hardware.device, spec.hardware.device == "cuda"
    expand_segments(device)
    torch.set_num_threads(max(1, chosen(spec.hardware.trainer_threads) // spec.ranks))
    if cuda:
        torch.cuda.set_device(0)  # the only one that this process sees; the mesh would guess it, with a warning
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=spec.init_method,
        rank=spec.rank,
        world_size=spec.ranks,
        timeout=timedelta(seconds=spec.placement.step_timeout_s),
        device_id=torch.device("cuda", 0) if cuda else None,
    )
    return init_device_mesh(device, (spec.ranks,))


def expand_segments(device: str) -> None:
    """Let torch's allocator grow its segments on a GPU, unless the user has configured it.

    Micro-batches of different sizes otherwise fragment the memory. The environment would reach vLLM too, which does
    not allow it with sleep mode.
    """
    import torch

    if device == "cuda" and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def load_learner(spec: LearnerSpec, mesh: DeviceMesh) -> ShardedLearner:
    """Load this rank's shard of the model and create the learner for the recipe."""
    from scalerl.training.learner.fsdp import load_sharded

    return sharded_learner(spec, load_sharded(spec, mesh))


def learner_options(spec: LearnerSpec) -> dict[str, Any]:
    """Return the options of `PolicyLearner` that a specification has."""
    settings = spec.settings
    return {
        "micro_batch_tokens": settings.micro_batch_tokens,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "compile": settings.compile,
        "packing": settings.packing,
        "sent": spec.policy.sent,
    }


def sharded_learner(spec: LearnerSpec, policy: Policy) -> ShardedLearner:
    """Create a rank's learner, which takes over a sharded policy."""
    import torch

    from scalerl.training.learner.fsdp import ShardedLearner

    return ShardedLearner(policy, spec.recipe, **learner_options(spec), dtype=getattr(torch, spec.hardware.dtype))


def load_single(spec: LearnerSpec) -> SingleLearner:
    """Load the whole model and create the learner for the recipe, in the process of the only rank."""
    import torch

    torch.set_num_threads(chosen(spec.hardware.trainer_threads))
    return single_learner(spec, spec.policy.adapted(spec.policy.load(spec.hardware.device)))


def single_learner(spec: LearnerSpec, policy: Policy) -> SingleLearner:
    """Create the learner of one process, which takes over a policy."""
    from scalerl.training.learner.cpu import helpers_of
    from scalerl.training.learner.single import SingleLearner

    expand_segments(spec.hardware.device)
    return SingleLearner(policy, spec.recipe, **learner_options(spec), helpers=helpers_of(spec.hardware))
