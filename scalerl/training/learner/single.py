"""The learner of one process: any Hugging Face model on CPU or one GPU, AdamW, gradients added up in FP32.

On GPU the forward pass runs in bf16 weights and the optimiser keeps fp32 masters. The other choice, fp32 weights under
bf16 autocast, would leave the residual stream in fp32 in the trainer and in bf16 in the generator: two different
models, whose mismatch the ratio would then have to correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from scalerl.config.base import ConfigError
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.training.checkpoint import load_state, save_state
from scalerl.training.learner.base import BadGradient, TrainBatch
from scalerl.training.learner.policy_learner import MOMENTS, PolicyLearner
from scalerl.training.metrics import TokenMeter


class SingleLearner(PolicyLearner):
    """A policy in training, in this process."""

    def _add_gradients(self, batch: TrainBatch) -> TokenMeter:
        """Add the batch's gradient, micro-batch by micro-batch; the weights make the split irrelevant."""
        meter = TokenMeter()
        packed, shared = self.packs(batch), self.shares(batch)
        ordinary = partial(batch.micro_batches, packed=packed)
        for part in (batch.shared_micro_batches if shared else ordinary)(self._budget):
            loss = self._micro_batch_loss(batch, part, packed, meter, shared=shared)
            if not torch.isfinite(loss):
                self._discard_gradient()
                raise BadGradient(f"the loss is {float(loss.detach())}")
            loss.backward()  # type: ignore[no-untyped-call]
            self._collect()
        return meter

    @torch.no_grad()
    def _collect(self) -> None:
        """Add a micro-batch's gradient to the FP32 masters: a sum of many in bf16 loses its small terms."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is parameter or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

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
