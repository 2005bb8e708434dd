"""The learner of several ranks: FSDP2 over torch.distributed, every rank calls the same methods with the same batch.

Each rank holds a share of the FP32 weights and moments, and trains a share of a batch's rollouts. The ranks run equally
many micro-batches, for every pass has collectives; where the work is uneven a rank adds an empty one. No rank leaves a
step early: what is not finite is found in sums over all ranks, so that all of them raise together.

There is no tensor or expert parallelism: one rank computes a whole block for its own rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scalerl.config.recipe import AdamW, Loss
from scalerl.files import as_umask
from scalerl.models.checkpoint_names import plain_model
from scalerl.models.policy import Policy
from scalerl.rollouts.replay import Difference
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.training.learner.base import BadGradient, PromptedRollout, TrainBatch
from scalerl.training.learner.policy_learner import MOMENTS, PolicyLearner
from scalerl.training.learner.sharded_checkpoint import read_shards, save_shards, stored_shapes
from scalerl.training.learner.split import balanced_split
from scalerl.training.metrics import TokenMeter

_EMPTY = TrainBatch(
    tokens_BT=torch.zeros(1, 2, dtype=torch.long),
    length_B=torch.tensor([2]),
    behavior_BT=torch.zeros(1, 2),
    advantages_B=torch.zeros(1),
    trained_BT=torch.tensor([[False, True]]),
    weights_BT=torch.zeros(1, 2),
)
"""One rollout without weight, for the forward and backward passes of a rank that has nothing left to train."""


class ShardedLearner(PolicyLearner):
    """One rank's share of a policy in training; all ranks of the process group hold one."""

    def __init__(
        self,
        policy: Policy,
        optimizer: AdamW,
        loss: Loss,
        *,
        dtype: torch.dtype = torch.float32,
        accumulate: Literal["local", "sharded"] = "local",
        **options: Any,
    ) -> None:
        """Take over a policy that `shard` has sharded.

        Args:
            policy: the model, its parameters FP32 shares.
            optimizer: the optimiser's settings.
            loss: the surrogate and its parameters.
            dtype: of the forward pass, and of the weights that are sent and exported.
            accumulate: where the gradients of micro-batches add up (`learner.accumulate`).
            options: of PolicyLearner.
        """
        super().__init__(policy, optimizer, loss, **options)
        self._dtype, self._accumulate = dtype, accumulate

    # -------------------------------------------------------------------------------------------------------- update

    def _add_gradients(self, batch: TrainBatch) -> TokenMeter:
        """Add the batch's gradient over all ranks; a rank's own share of it is in the masters.

        Consumes: the same batch on every rank. Produces: the same meter on every rank.
        Waits for: the other ranks, in the collectives of every pass. Unblocked by: them; the death of one is an error.
        """
        own, plan, packed = TokenMeter(), self._plan(batch), self.packs(batch)
        for number, part in enumerate(plan, start=1):
            reduce = number == len(plan) or self._accumulate == "sharded"
            cast(FSDPModule, self.policy).set_requires_gradient_sync(reduce)
            if part is None:
                loss = self._micro_batch_loss(_EMPTY, (torch.tensor([0]), 2), packed, TokenMeter())
            else:
                loss = self._micro_batch_loss(batch, part, packed, own)
            loss.backward()  # type: ignore[no-untyped-call]
        meter = TokenMeter.merged(_of_all_ranks(own))
        if not math.isfinite(meter.loss):
            self._discard_gradient()
            raise BadGradient(f"the loss is {meter.loss}")
        return meter

    def _plan(self, batch: TrainBatch) -> list[tuple[Tensor, int] | None]:
        """Return this rank's micro-batches, with None at the end where another rank has more of them."""
        shares = balanced_split(batch.length_B, batch.trained_B.nonzero()[:, 0], dist.get_world_size())
        packed = self.packs(batch)
        plans = [list(batch.micro_batches(self._budget, share, packed)) for share in shares]
        own = plans[dist.get_rank()]
        return [*own, *[None] * (max(map(len, plans)) - len(own))]

    def _clip(self) -> float:
        """Scale the gradient down to the limit; return its L2 norm over all ranks before."""
        norm = nn.utils.clip_grad_norm_(self._masters, self._settings.max_grad_norm)
        return float(cast(DTensor, norm).full_tensor())

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Compute the log-probabilities of rollouts of its own version again; every rank must be given the same."""
        difference = super().check(version, rollouts)
        cast(FSDPModule, self.policy).reshard()  # the root stays whole after a forward pass without a backward pass
        return difference

    # ------------------------------------------------------------------------------------------------------- weights

    def send(self, version: int, channel: WeightChannel) -> None:
        """Gather the weights one at a time; rank 0 sends them over its end of the channel, the others only take part.

        Consumes: the shares of all ranks. Produces: one version in rank 0's channel.
        Waits for: the other ranks, at every weight. Unblocked by: them; the death of one is an error.
        """
        weights = self._whole_weights()
        if dist.get_rank() == 0:
            channel.send(version, self._sent(weights))
        for _ in weights:  # on rank 0: none, if the channel took all; the others are waiting for each of them
            pass

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model, by rank 0, whose host memory must hold the whole model."""
        if dist.get_rank() == 0:
            weights = {name: weight.cpu().contiguous() for name, weight in self._whole_weights()}
            plain_model(self.policy.model, weights).save_pretrained(directory)
            as_umask(directory)
        else:
            for _ in self._whole_weights():
                pass
        dist.barrier()

    def _whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights by the model's own names, tied ones once; every rank must take all of them."""
        for name, share in self.policy.weights():
            yield name, cast(DTensor, share.to(self._dtype)).full_tensor()

    # ---------------------------------------------------------------------------------------------------- checkpoint

    def save(self, directory: Path) -> None:
        """Write every rank's share of weights and moments, and force them to disk.

        Raises:
            BadGradient: a weight is not finite; nothing is written.
        """
        self.check_finite()
        save_shards(directory, self.tensors())

    def _own(self, master: Tensor) -> Tensor:
        return master.to_local() if isinstance(master, DTensor) else master

    def load(self, directory: Path, updates: int) -> None:
        """Restore what any number of ranks has saved after `updates` updates.

        Raises:
            ConfigError: the checkpoint is of one process, or of another model.
        """
        stored = stored_shapes(directory)
        self.check_model(stored, directory)
        self._make_moments({kind for kind in MOMENTS if any(key.startswith(f"{kind}.") for key in stored)})
        read_shards(directory, self.tensors())
        self.updates = updates
        self._write_back()

    def _make_moments(self, kinds: set[str]) -> None:
        """Make room for the moments that a checkpoint holds: which of MOMENTS; none, before the first update."""
        self._optimizer.state.clear()
        for master in self._masters if kinds else ():
            state: dict[str, Tensor] = {kind: torch.zeros_like(master) for kind in kinds - {"step"}}
            # AdamW keeps the step of a fused update beside the parameter
            self._optimizer.state[master] = {**state, "step": torch.zeros((), device=master.device)}


def _of_all_ranks(meter: TokenMeter) -> list[TokenMeter]:
    """Return every rank's meter, in the order of ranks."""
    meters: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(meters, meter)
    return meters
