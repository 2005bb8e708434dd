"""Gated MLPs, down(silu(gate(x)) * up(x)), on CPU with one pass over the activations and an explicit gradient.

transformers computes the product in two operations and keeps three activations for the gradient; the compiled loop
keeps two. A module is replaced only if its forward gives the same values.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.models.cpu import compiled

_LAYERS = ("gate_proj", "up_proj", "down_proj")


def accelerate_mlps(model: nn.Module) -> int:
    """Make the gated MLPs of a model on CPU use `gated`, in place, and return how many were changed.

    Args:
        model: The model; its parameters and state dict do not change.
    """
    replaced = 0
    same: dict[type, bool] = {}
    for module in model.modules():
        plain = all(isinstance(getattr(module, name, None), nn.Linear) for name in _LAYERS)
        if not plain or "forward" in vars(module):
            continue
        if type(module) not in same:
            same[type(module)] = _agrees(module)
        if same[type(module)]:
            module.forward = _Forward(module)
            replaced += 1
    return replaced


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, with a gradient."""
    if not compiled.serves(gate, up):
        return nn.functional.silu(gate) * up
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return cast(Tensor, _Gated.apply(gate, up))  # type: ignore[no-untyped-call]
    return compiled.gated(gate, up)


class _Forward:
    """The forward of one MLP; an object instead of a closure, so that the model can be pickled and copied."""

    def __init__(self, mlp: nn.Module) -> None:
        self.mlp = mlp

    def __call__(self, x: Tensor) -> Tensor:
        mlp: Any = self.mlp
        return cast(Tensor, mlp.down_proj(gated(mlp.gate_proj(x), mlp.up_proj(x))))


@torch.no_grad()
def _agrees(module: nn.Module) -> bool:
    weight_OI = cast(nn.Linear, module.gate_proj).weight
    if weight_OI.device.type != "cpu" or weight_OI.dtype != torch.float32:
        return False
    x_12I = torch.linspace(-3.0, 2.0, 2 * weight_OI.shape[1]).view(1, 2, -1)
    computed, expected = _Forward(module)(x_12I), module(x_12I)
    return isinstance(expected, Tensor) and torch.allclose(computed, expected, rtol=1e-4, atol=1e-5)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return compiled.gated(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return compiled.gated_backward(grads[0].contiguous(), *ctx.saved_tensors)
