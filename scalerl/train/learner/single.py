"""The learner of one process: any Hugging Face model on CPU or one GPU, AdamW, gradients added up in FP32.

On GPU the forward pass runs in bf16 weights and the optimiser keeps fp32 masters. The other choice, fp32 weights under
bf16 autocast, would leave the residual stream in fp32 in the trainer and in bf16 in the generator: two different
models, whose mismatch the ratio would then have to correct.

Legend: B rollouts, T tokens of prompt and completion, n trained tokens of a micro-batch; lower case: a micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.config.recipe import AdamW, Loss, Recipe
from scalerl.learn.losses import LOSSES
from scalerl.models.policy import Policy
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.train.checkpoint import load_state, save_state
from scalerl.train.learner.base import BadGradient, StepStats, TrainBatch
from scalerl.train.metrics import TokenMeter


class SingleLearner:
    """A policy in training, in this process."""

    def __init__(
        self,
        policy: Policy,
        optimizer: AdamW,
        loss: Loss,
        *,
        temperature: float = 1.0,
        micro_batch_tokens: int = 16_384,
        gradient_checkpointing: bool = False,
    ) -> None:
        """Take over a policy, whose weights are trained in place.

        Args:
            policy: the model.
            optimizer: the optimiser's settings.
            loss: the surrogate and its parameters.
            temperature: of the sampling, which the log-probabilities must share.
            micro_batch_tokens: padded tokens of one forward and backward pass.
            gradient_checkpointing: recompute activations in the backward pass.
        """
        self.policy, self.updates = policy, 0
        self._settings, self._loss, self._temperature = optimizer, loss, temperature
        self._budget, self._checkpointing = micro_batch_tokens, gradient_checkpointing
        if gradient_checkpointing:
            # renamed in transformers 5.20
            name = "activation" if hasattr(policy.model, "activation_checkpointing_enable") else "gradient"
            getattr(policy.model, f"{name}_checkpointing_enable")()
            policy.model.train()  # transformers checkpoints in training mode only; dropout is off in any case
        self._names = [name for name, _ in policy.weights()]
        self._parameters = list(policy.model.parameters())
        self._masters = [_master(p) for p in self._parameters]
        decayed = [p for p in self._masters if p.ndim >= 2]
        plain = [p for p in self._masters if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": optimizer.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=0.0, betas=optimizer.betas, eps=optimizer.eps, fused=True
        )

    @classmethod
    def of(cls, policy: Policy, recipe: Recipe, micro_batch_tokens: int, gradient_checkpointing: bool) -> SingleLearner:
        """Make the learner that a recipe asks for."""
        return cls(
            policy,
            recipe.optimizer,
            recipe.loss,
            temperature=recipe.temperature,
            micro_batch_tokens=micro_batch_tokens,
            gradient_checkpointing=gradient_checkpointing,
        )

    # -------------------------------------------------------------------------------------------------------- update

    def step(self, batch: TrainBatch) -> StepStats:
        """Take one update: micro-batches, gradients added up in FP32, clipping, AdamW.

        Raises:
            BadGradient: the loss or the gradient is not finite; the weights are unchanged.
        """
        meter = self._add_gradients(batch)
        norm, rate = self._update() if meter.tokens else (0.0, 0.0)
        self._discard_gradient()
        self.updates += 1
        return StepStats(**meter.means(), grad_norm=norm, learning_rate=rate)

    def rehearse(self, batch: TrainBatch) -> float:
        """Return the seconds that a batch's forward and backward passes take, once warm; the weights are unchanged."""
        for _ in range(2):  # the first pass warms up memory and caches
            began = time.perf_counter()
            self._add_gradients(batch)
            self._discard_gradient()
        return time.perf_counter() - began

    def training_flops(self, batch: TrainBatch) -> float:
        """Return the floating-point operations of one step over a batch; padding is not counted."""
        lengths = batch.length_B[batch.trained_B].tolist()
        return sum(self.policy.shape.training_flops(n, self._checkpointing) for n in lengths)

    def _add_gradients(self, batch: TrainBatch) -> TokenMeter:
        """Add the batch's gradient, micro-batch by micro-batch; the weights make the split irrelevant."""
        meter, loss_fn, device = TokenMeter(), LOSSES[self._loss.kind], self.policy.device
        for rows, width in batch.micro_batches(self._budget):
            mask_bt, tokens_bt, behavior_bt, weights_bt = (
                part_BT[rows, :width].to(device)
                for part_BT in (batch.trained_BT, batch.tokens_BT, batch.behavior_BT, batch.weights_BT)
            )
            logp_n, entropy_n = self.policy(tokens_bt, mask_bt, self._temperature)
            logp_bt = torch.zeros_like(behavior_bt).masked_scatter(mask_bt, logp_n)
            advantages_b = batch.advantages_B[rows].to(device)
            loss_bt, capped_bt = loss_fn(self._loss, logp_bt, behavior_bt, advantages_b, mask_bt)
            loss = (loss_bt * weights_bt).sum()
            if not torch.isfinite(loss):
                self._discard_gradient()
                raise BadGradient(f"the loss is {float(loss.detach())}")
            loss.backward()  # type: ignore[no-untyped-call]
            self._collect()
            meter.add(loss, (logp_n.detach() - behavior_bt[mask_bt]), capped_bt[mask_bt], entropy_n)
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

    def _update(self) -> tuple[float, float]:
        """Clip the gradient and update the weights; return the norm before clipping and the learning rate."""
        norm = float(nn.utils.clip_grad_norm_(self._masters, self._settings.max_grad_norm))
        if not norm < float("inf"):
            self._discard_gradient()
            raise BadGradient(f"the gradient's norm is {norm}")
        rate = self._settings.learning_rate * min(1.0, (self.updates + 1) / max(1, self._settings.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._write_back()
        return norm, rate

    def _discard_gradient(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def _write_back(self) -> None:
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
        self.policy.weights_changed()

    # ------------------------------------------------------------------------------------------------------- weights

    def send(self, version: int, channel: WeightChannel) -> None:
        """Send the weights over a channel, by the model's own names."""
        channel.send(version, self.policy.weights())

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model."""
        self.policy.model.save_pretrained(directory)

    def save(self, directory: Path) -> None:
        """Write master weights and optimiser moments."""
        save_state(directory, "learner", self.tensors())

    def load(self, directory: Path, updates: int) -> None:
        """Restore what `save` wrote after `updates` updates."""
        self.load_tensors(load_state(directory, "learner"), updates)

    def tensors(self) -> dict[str, Tensor]:
        """Return master weights and optimiser moments by name."""
        out: dict[str, Tensor] = {}
        for name, master in zip(self._names, self._masters, strict=True):
            out[f"master.{name}"] = master.detach()
            moments: Mapping[str, Any] = self._optimizer.state.get(master, {})
            out |= {f"{kind}.{name}": moments[kind] for kind in ("exp_avg", "exp_avg_sq", "step") if kind in moments}
        return out

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Restore what `tensors` returned after `updates` updates."""
        self.updates = updates
        for name, master in zip(self._names, self._masters, strict=True):
            master.copy_(tensors[f"master.{name}"])
            for kind in ("exp_avg", "exp_avg_sq", "step"):
                if f"{kind}.{name}" in tensors:
                    value = tensors[f"{kind}.{name}"]
                    device = value.device if kind == "step" else master.device
                    self._optimizer.state[master][kind] = value.to(device).clone()
        self._write_back()


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype == torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().float().clone())
