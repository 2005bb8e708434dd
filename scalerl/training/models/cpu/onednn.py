"""FP32 matrix products on AMD processors through oneDNN instead of MKL.

torch uses MKL for FP32 products on CPU. On AMD processors MKL runs its AVX2 code, at half the speed of an AVX-512 core;
on Intel processors it is up to 25% faster than oneDNN (docs/benchmarks.md). oneDNN is part of torch; the operator used
here is the one that torch.compile emits. Its results differ from MKL's by rounding only.

Legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.training.models.cpu.loops import amd

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
"""Compiled products that oneDNN, and torch's layer over it, keep; with their defaults of 1,024, hundreds of megabytes.

Each number of rows of each weight is a product of its own, of about 0.3 MB in each cache and 0.4 ms to compile. Prompts
that grow from turn to turn, and micro-batches, rarely have a number of rows again.
"""


def limit_caches() -> None:
    """Limit the caches of compiled products, unless the user did; only before the first product of this process."""
    for name, entries in CACHES.items():
        os.environ.setdefault(name, entries)


@cache
def used() -> bool:
    """Return whether to use oneDNN: on AMD processors, if this build of torch has it and it is correct."""
    if not amd() or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, w = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    return torch.equal(_product(x, w, None), x @ w.t())  # small integers: every order of summation is exact


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias with a gradient, computed by oneDNN if it is used and otherwise by torch.

    Args:
        x: Inputs [..., I].
        weight_OI: Weights [O, I].
        bias_O: Bias [O], or None.
    """
    if x.device.type != "cpu" or not x.dtype == weight_OI.dtype == torch.float32 or x.numel() == 0 or not used():
        return nn.functional.linear(x, weight_OI, bias_O)
    if torch.is_grad_enabled() and (x.requires_grad or weight_OI.requires_grad):
        # a product of more than two dimensions is a view, which no architecture may change in place (OLMo's clip_qkv)
        out_NO = _Linear.apply(x.reshape(-1, x.shape[-1]), weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return cast(Tensor, out_NO.view(*x.shape[:-1], weight_OI.shape[0]))
    return _product(x, weight_OI, bias_O)


def accelerate(model: nn.Module) -> None:
    """Make every nn.Linear of a model use `linear` if oneDNN is used, in place; parameters do not change."""
    limit_caches()
    for module in model.modules():
        if used() and type(module) is nn.Linear:
            module.forward = partial(_forward, module)  # type: ignore[method-assign]  # a closure could not be pickled


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], ""))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.has_bias = bias_O is not None
        return _product(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        grad_NO = grads[0].reshape(-1, weight_OI.shape[0])
        x_NI = x.reshape(-1, weight_OI.shape[1])
        grad_x = _product(grad_NO, weight_OI.t(), None).view(x.shape) if ctx.needs_input_grad[0] else None
        grad_w = _weight_gradient(grad_NO, x_NI) if ctx.needs_input_grad[1] else None
        return grad_x, grad_w, grad_NO.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None


def _weight_gradient(grad_NO: Tensor, x_NI: Tensor) -> Tensor:
    """Return grad.T @ x, computed with the larger dimension last, which is up to 1.7 times as fast."""
    if grad_NO.shape[1] > x_NI.shape[1]:
        return _product(x_NI.t(), grad_NO.t(), None).t().contiguous()
    return _product(grad_NO.t(), x_NI.t(), None)
