"""RMS norms on CPU with fewer passes over the activations.

transformers computes x * rsqrt(mean(x^2) + eps) * w in seven operations, with as many for the gradient. Here the sum of
squares is one reduction, and the gradient is explicit. A module is replaced only if its forward gives the same values,
so norms with another formula (Gemma's 1 + w) are unchanged.

Legend: N tokens, D size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.models.cpu import compiled


def accelerate_norms(model: nn.Module) -> int:
    """Make the RMS norms of a model on CPU use `rms_norm`, in place, and return how many were changed.

    Args:
        model: The model; its parameters and state dict do not change.
    """
    replaced = 0
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float):
            continue
        forward = _Forward(module, eps)
        if _agrees(module, forward):
            module.forward = forward
            replaced += 1
    return replaced


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with a gradient.

    Args:
        x: Activations [..., D], FP32.
        weight_D: Weights, FP32.
        eps: Constant added to the mean of the squares.
    """
    if torch.is_grad_enabled() and (x.requires_grad or weight_D.requires_grad):
        return cast(Tensor, _RmsNorm.apply(x, weight_D, eps))  # type: ignore[no-untyped-call]
    return _scaled(x, weight_D, eps)[0]


class _Forward:
    """The forward of one norm; an object instead of a closure, so that the model can be pickled and copied."""

    def __init__(self, norm: nn.Module, eps: float) -> None:
        self.norm, self.eps = norm, eps

    def __call__(self, x: Tensor) -> Tensor:
        weight_D = self.norm.weight
        if x.dtype != torch.float32 or not isinstance(weight_D, Tensor) or weight_D.dtype != torch.float32:
            return cast(Tensor, type(self.norm).forward(self.norm, x))
        return rms_norm(x, weight_D, self.eps)


@torch.no_grad()
def _agrees(module: nn.Module, forward: _Forward) -> bool:
    weight_D = getattr(module, "weight", None)
    if not isinstance(weight_D, Tensor) or weight_D.ndim != 1 or weight_D.dtype != torch.float32:
        return False
    if weight_D.device.type != "cpu" or "forward" in vars(module):
        return False
    x_2D = torch.linspace(-3.0, 2.0, 2 * len(weight_D)).view(2, -1)
    return torch.allclose(forward(x_2D), module(x_2D), rtol=1e-5, atol=1e-6)


def _scaled(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return s x w and s = 1 / sqrt(mean(x^2) + eps), the latter as [..., 1]."""
    if compiled.serves(x, weight_D):
        return compiled.rms_norm(x, weight_D, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    return scale.mul(x).mul_(weight_D), scale


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        out, scale = _scaled(x, weight_D, eps)
        ctx.save_for_backward(x, weight_D, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight_D, scale = ctx.saved_tensors
        if compiled.serves(x, weight_D):
            return *compiled.rms_norm_backward(grads[0].contiguous(), x, weight_D, scale), None
        size = x.shape[-1]
        # y = s x w with s = (mean(x^2) + eps)^-1/2:  dL/dx = s (g w) - x s^3 / D * sum(g w x),  dL/dw = sum_N(s g x)
        product_ND = (grads[0] * x).reshape(-1, size)
        share = product_ND.mv(weight_D).view(scale.shape).mul_(scale.pow(3)).mul_(1.0 / size)
        grad_x = (grads[0] * weight_D).mul_(scale).addcmul_(x, share, value=-1.0)
        return grad_x, product_ND.t().mv(scale.reshape(-1)), None
