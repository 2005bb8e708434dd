"""The trainer's model and optimiser: micro-batches in, one update out. It knows no rewards, filters or generators.

On GPU the forward pass runs in bf16 weights and the optimiser keeps fp32 masters. The other choice, fp32 weights under
bf16 autocast, would leave the residual stream in fp32 in the trainer and in bf16 in the generator: two different
models, whose mismatch the ratio would then have to correct.

Legend: B rollouts, T tokens of prompt and completion, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.config.recipe import AdamW
from scalerl.models.head import token_logprobs
from scalerl.models.policy import Policy


class BadGradient(RuntimeError):
    """The loss or the gradient is not finite; the weights were left as they are."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did.

    Example: UpdateStats(grad_norm=0.41, learning_rate=1e-4)
    """

    grad_norm: float
    """L2 norm before clipping."""
    learning_rate: float


class Learner:
    """A policy in training."""

    def __init__(
        self, policy: Policy, settings: AdamW, temperature: float, gradient_checkpointing: bool = False
    ) -> None:
        """Take over a policy.

        Args:
            policy: its weights are trained in place.
            settings: the optimiser's.
            temperature: of the sampling, which the log-probabilities must share.
            gradient_checkpointing: recompute activations in the backward pass.
        """
        self.policy, self._settings, self._temperature = policy, settings, temperature
        self.updates = 0
        """Updates done."""
        if gradient_checkpointing:
            # renamed in transformers 5.20
            name = "activation" if hasattr(policy.model, "activation_checkpointing_enable") else "gradient"
            getattr(policy.model, f"{name}_checkpointing_enable")()
            policy.model.train()  # transformers checkpoints in training mode only; dropout is off in any case
        self._model_parameters = policy.parameters()
        self._masters = [_master(p) for p in self._model_parameters]
        decayed = [p for p in self._masters if p.ndim >= 2]
        plain = [p for p in self._masters if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=0.0, betas=settings.betas, eps=settings.eps, fused=True
        )

    def logprobs(self, tokens_BT: Tensor, trained_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (with gradient) and entropies at the trained tokens, in row order.

        Args:
            tokens_BT: prompt and completion, padded at the end (the causal mask hides the padding).
            trained_BT: tokens whose log-probability is wanted; never the first of a row.
        """
        assert tokens_BT.shape == trained_BT.shape and not trained_BT[:, 0].any()
        hidden_ND = self.policy.hidden(tokens_BT)[:, :-1][trained_BT[:, 1:]]
        policy = self.policy
        return token_logprobs(
            hidden_ND, policy.head_weight, policy.head_bias, tokens_BT[trained_BT], self._temperature, policy.rule
        )

    def backward(self, loss: Tensor) -> None:
        """Add a micro-batch's gradient.

        Raises:
            BadGradient: the loss is not finite.
        """
        if not torch.isfinite(loss):
            raise BadGradient(f"the loss is {float(loss.detach())}")
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> UpdateStats:
        """Clip the gradient, update the weights, clear the gradient.

        Raises:
            BadGradient: the gradient is not finite.
        """
        for parameter, master in zip(self._model_parameters, self._masters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.float(), None
        norm = float(nn.utils.clip_grad_norm_(self._masters, self._settings.max_grad_norm))
        if not norm < float("inf"):
            raise BadGradient(f"the gradient's norm is {norm}")
        rate = self._settings.learning_rate * min(1.0, (self.updates + 1) / max(1, self._settings.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.discard_gradient()
        self._write_back()
        self.updates += 1
        return UpdateStats(norm, rate)

    def skip(self) -> UpdateStats:
        """Count an update without a gradient: no prompt of the batch had anything to teach."""
        self.discard_gradient()
        self.updates += 1
        return UpdateStats(0.0, 0.0)

    def discard_gradient(self) -> None:
        """Forget the gradient collected so far."""
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._model_parameters:
            parameter.grad = None

    @torch.no_grad()
    def _write_back(self) -> None:
        for parameter, master in zip(self._model_parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
        self.policy.weights_changed()

    def tensors(self) -> dict[str, Tensor]:
        """Return master weights and optimiser moments by name."""
        out: dict[str, Tensor] = {}
        for (name, _), master in zip(self.policy.model.named_parameters(), self._masters, strict=True):
            out[f"master.{name}"] = master.detach()
            moments: Mapping[str, Any] = self._optimizer.state.get(master, {})
            out |= {f"{kind}.{name}": moments[kind] for kind in ("exp_avg", "exp_avg_sq", "step") if kind in moments}
        return out

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Restore what `tensors` returned after `updates` updates."""
        self.updates = updates
        for (name, _), master in zip(self.policy.model.named_parameters(), self._masters, strict=True):
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
