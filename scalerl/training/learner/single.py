"""The learner of one process: any Hugging Face model on CPU or one GPU, AdamW, gradients added up in FP32.

On GPU the forward pass runs in bf16 weights and the optimiser keeps fp32 masters. The other choice, fp32 weights under
bf16 autocast, would leave the residual stream in fp32 in the trainer and in bf16 in the generator: two different
models, whose mismatch the ratio would then have to correct.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.config.base import ConfigError
from scalerl.config.recipe import AdamW, Loss
from scalerl.models.policy import Policy
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.training.checkpoint import load_state, save_state
from scalerl.training.learner.base import BadGradient, TrainBatch
from scalerl.training.learner.helpers import Helpers
from scalerl.training.learner.policy_learner import MOMENTS, MicroBatch, PolicyLearner
from scalerl.training.metrics import TokenMeter


class SingleLearner(PolicyLearner):
    """A policy in training, in this process."""

    def __init__(self, policy: Policy, optimizer: AdamW, loss: Loss, *, helpers: int = 0, **options: Any) -> None:
        """Take over a policy.

        Args:
            policy: see PolicyLearner.
            optimizer: likewise.
            loss: likewise.
            helpers: threads that compute micro-batches beside this one. The results are the same.
            options: likewise.
        """
        super().__init__(policy, optimizer, loss, **options)
        # the routers of a mixture and checkpointed activations hold the state of one pass
        together = policy.experts == 0 and not self._checkpointing and policy.device.type == "cpu"
        self._helpers = Helpers(helpers if together else 0)

    def _add_gradients(self, batch: TrainBatch) -> TokenMeter:
        """Add the batch's gradient, micro-batch by micro-batch; the weights make the split irrelevant.

        Helpers compute some of them where there are any. The gradients are added up in the order of the micro-batches,
        so that the sum does not depend on them.
        """
        packed, shared = self.packs(batch), self.shares(batch)
        ordinary = partial(batch.micro_batches, packed=packed)
        parts = (batch.shared_micro_batches if shared else ordinary)(self._even_budget(batch, shared))
        tasks = [partial(self._gradients, batch, part, packed, shared) for part in parts]
        meters = [TokenMeter()]
        try:
            for meter, gradients in self._helpers.in_order(tasks, batch.idle_cores):
                self._collect(gradients)
                meters.append(meter)
        except BadGradient:
            self._discard_gradient()
            raise
        return TokenMeter.merged(meters)

    def _even_budget(self, batch: TrainBatch, shared: bool) -> int:
        """Return the tokens of a micro-batch at which a batch makes equal ones: helpers then end together."""
        length_B = batch.length_B[batch.trained_B]
        total = batch.shared_tokens() if shared else int(length_B.sum())
        if not total:
            return self._budget
        return min(self._budget, math.ceil(total / math.ceil(total / self._budget)) + int(length_B.max()))

    def _gradients(
        self, batch: TrainBatch, part: MicroBatch, packed: bool, shared: bool
    ) -> tuple[TokenMeter, tuple[Tensor | None, ...]]:
        """Return what was measured on one micro-batch, and its gradient by the parameters."""
        meter = TokenMeter()
        loss = self._micro_batch_loss(batch, part, packed, meter, shared=shared)
        if not torch.isfinite(loss):
            raise BadGradient(f"the loss is {float(loss.detach())}")
        return meter, torch.autograd.grad(loss, self._parameters, allow_unused=True)

    @torch.no_grad()
    def _collect(self, gradients: Sequence[Tensor | None]) -> None:
        """Add a micro-batch's gradient to the FP32 masters: a sum of many in bf16 loses its small terms."""
        for master, gradient in zip(self._masters, gradients, strict=True):
            if gradient is not None and master.grad is None:
                master.grad = gradient.float()
            elif gradient is not None:
                assert master.grad is not None
                master.grad += gradient

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    # ------------------------------------------------------------------------------------------------------- weights

    def send(self, version: int, channel: WeightChannel) -> None:
        """Send the weights over a channel, by the names that the engines use."""
        channel.send(version, self._sent(self.policy.weights()))

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model."""
        self.policy.export(directory)

    def save(self, directory: Path) -> None:
        """Write master weights and optimiser moments.

        Raises:
            BadGradient: a weight is not finite; nothing is written.
        """
        self.check_finite()
        save_state(directory, "learner", self.tensors())

    def load(self, directory: Path, updates: int) -> None:
        """Restore what `save` wrote after `updates` updates.

        Raises:
            ConfigError: the checkpoint is of several ranks, or of another model.
        """
        if (directory / "learner").is_dir():
            raise ConfigError(
                f"{directory}: was written by several trainer ranks, and one process cannot read it; allowed: "
                "placement.trainer_ranks = 2 or more, as many as you like"
            )
        tensors = load_state(directory, "learner")
        self.check_model({name: tuple(tensor.shape) for name, tensor in tensors.items()}, directory)
        self.load_tensors(tensors, updates)

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Restore what `tensors` returned after `updates` updates."""
        self.updates = updates
        for name, master in zip(self._names, self._masters, strict=True):
            master.copy_(tensors[f"master.{name}"])
            for kind in MOMENTS:
                if f"{kind}.{name}" in tensors:
                    value = tensors[f"{kind}.{name}"]
                    device = value.device if kind == "step" else master.device
                    self._optimizer.state[master][kind] = value.to(device).clone()
        self._write_back()
