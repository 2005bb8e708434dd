"""The learner of one process: any Hugging Face model on CPU or one GPU, with AdamW and FP32 gradient accumulation.

On GPU the forward pass uses bf16 weights and the optimizer keeps FP32 masters. With FP32 weights under bf16 autocast,
the residual stream would be FP32 in the trainer and bf16 in the generator, and the ratio would have to correct this
mismatch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.core.errors import outcome
from scalerl.training.config.recipe import Recipe
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.batch import TrainBatch
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.learner.cpu import Helpers
from scalerl.training.learner.metrics import TokenMeter, TokenSums
from scalerl.training.learner.policy_learner import MOMENTS, Computed, Pass, PolicyLearner
from scalerl.training.models.lora import LoraPolicy
from scalerl.training.models.policy import Policy

COPIED = 100 << 20
"""Bytes up to which a learner on CPU is copied for a checkpoint that is written while training goes on."""


class SingleLearner(PolicyLearner):
    """A policy in training, in this process."""

    def __init__(self, policy: Policy, recipe: Recipe, *, helpers: int = 0, **options: Any) -> None:
        """Take over a policy.

        Args:
            policy: See PolicyLearner.
            recipe: See PolicyLearner.
            helpers: Number of further threads that compute micro-batches. They do not change the results.
            options: Options of PolicyLearner.
        """
        super().__init__(policy, recipe, **options)
        # routers of a mixture and recomputed activations hold the state of one pass, so passes cannot run in parallel
        together = policy.sizes.experts == 0 and not self._checkpointing and policy.device.type == "cpu"
        self._helpers = Helpers(helpers if together else 0)

    def _add_gradients(self, batch: TrainBatch, reference_BT: Tensor | None = None) -> TokenSums:
        """Accumulate the batch's gradient over micro-batches; the token weights make the split irrelevant.

        Helpers, if any, compute some of the micro-batches. The gradients are summed in the order of the micro-batches,
        so the sum does not depend on the helpers.
        """
        tasks = [partial(self._gradients, micro_batch, reference_BT) for micro_batch in self._passes(batch)]
        meter = TokenMeter()
        for pass_meter, gradients in self._results(tasks, batch):
            self._collect(gradients)
            del gradients  # otherwise they live until the next micro-batch has computed its own
            meter.parts += pass_meter.parts
        return meter.read()

    def _passes(self, batch: TrainBatch) -> list[Pass]:
        """Return the micro-batches."""
        packed, shared = self.packs(batch), self.shares(batch)
        ordinary = partial(batch.micro_batches, packed=packed)
        parts = (batch.shared_micro_batches if shared else ordinary)(self._even_budget(batch, shared))
        return [Pass(batch, part, packed, shared) for part in parts]

    def _results(self, tasks: Sequence[Callable[[], Computed]], batch: TrainBatch) -> Iterator[Computed]:
        """Yield the results of tasks in order; helpers compute some of them."""
        return self._helpers.in_order(tasks, batch.settings.idle_cores)

    def _even_budget(self, batch: TrainBatch, shared: bool) -> int:
        """Return the budget that splits a batch into equal micro-batches, so that helpers finish together."""
        length_B = batch.rollouts.length_B[batch.trained_B]
        total = batch.shared_tokens() if shared else int(length_B.sum())
        if not total:
            return self._budget
        return min(self._budget, math.ceil(total / math.ceil(total / self._budget)) + int(length_B.max()))

    def _gradients(self, part: Pass, reference_BT: Tensor | None) -> tuple[TokenMeter, tuple[Tensor | None, ...]]:
        """Return the meter of one micro-batch, and its gradient with respect to the parameters."""
        meter = TokenMeter()
        loss = self._micro_batch_loss(*part[:3], meter, shared=part.shared, reference_BT=reference_BT)
        return meter, torch.autograd.grad(loss, self._parameters, allow_unused=True)

    @torch.no_grad()
    def _collect(self, gradients: Sequence[Tensor | None]) -> None:
        """Add a micro-batch's gradient to the FP32 masters; a bf16 sum would lose small terms."""
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
        channel.send(version, self._sent())

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model, and adapters next to it."""
        self.policy.export(directory)
        if isinstance(self.policy, LoraPolicy):
            self.policy.save_adapter(directory.with_name("adapter"))

    def save(self, directory: Path) -> None:
        """Write master weights and optimizer moments.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """
        self.begin_save(directory).result()

    def begin_save(self, directory: Path) -> Future[None]:
        """Copy master weights and optimizer moments to host memory, and write the copy in a thread.

        On CPU a large learner is written without a copy, before this returns: its memory is that of a checkpoint.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """
        self.check_finite()
        tensors = self.tensors()
        if self.policy.device.type == "cpu" and sum(tensor.nbytes for tensor in tensors.values()) > COPIED:
            save_state(directory, "learner", tensors)
            return outcome(lambda: None)
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        write = partial(save_state, directory, "learner", copies)
        done: Future[None] = Future()
        threading.Thread(target=outcome, args=(write, done), name="checkpoint", daemon=True).start()
        return done

    def load(self, directory: Path, updates: int) -> None:
        """Restore the state that one process or any number of ranks saved after `updates` updates.

        Raises:
            ConfigError: The checkpoint belongs to another model.
        """
        if (directory / "learner").is_dir():  # of ranks
            from scalerl.training.learner.sharded_checkpoint import read_whole

            tensors = read_whole(directory)
        else:
            tensors = load_state(directory, "learner")
        self.check_model({name: tuple(tensor.shape) for name, tensor in tensors.items()}, directory)
        self.load_tensors(tensors, updates)

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Restore the tensors that `tensors` returned after `updates` updates."""
        self.updates = updates
        self._optimizer.state.clear()  # before the first update there are no moments
        for name, master in zip(self._names, self._masters, strict=True):
            master.copy_(tensors[f"master.{name}"])
            for kind in MOMENTS:
                if f"{kind}.{name}" in tensors:
                    # a fused AdamW keeps the step on the device of the parameter too
                    self._optimizer.state[master][kind] = tensors[f"{kind}.{name}"].to(master.device).clone()
        self._write_back()
