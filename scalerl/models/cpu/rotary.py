"""Rotary position embeddings on CPU in three operations instead of six, with a gradient that allocates no zeros.

transformers computes x * cos + rotate_half(x) * sin with a negation, a concatenation and two slices, and the gradient
of a slice is a tensor of zeros with a copy in it. Here the halves are added in place. The attention modules of a model
call the function by a global name of their file. If both functions agree, each module gets a copy of its forward in
which this name refers to the new function. The file and other models of the class do not change.

Legend: B sequences, H heads, T tokens, D head size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from inspect import signature
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.models.cpu import compiled

NAME = "apply_rotary_pos_emb"
"""Name of the function in all files of transformers that have one; its formula differs between files."""


def accelerate_rotary(model: nn.Module) -> int:
    """Make the attention modules of a model on CPU use `rotate`, in place, and return how many were changed.

    Args:
        model: The model; its parameters and state dict do not change.
    """
    replaced = 0
    for module in model.modules():
        forward = type(module).forward
        plain = isinstance(forward, FunctionType) and not hasattr(forward, "__wrapped__")
        if not plain or NAME not in forward.__code__.co_names or "forward" in vars(module):
            continue
        if _agrees(cast(FunctionType, forward).__globals__.get(NAME)):
            module.forward = _Forward(module)
            replaced += 1
    return replaced


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return queries and keys rotated by their positions, with a gradient; the signature is that of transformers.

    Args:
        q: Queries [B, H, T, D].
        k: Keys [B, H', T, D].
        cos: Cosines [B, T, D], without a gradient.
        sin: Sines [B, T, D], without a gradient.
        unsqueeze_dim: Dimension at which cos and sin get the axis of the heads.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _turned(q, cos, sin), _turned(k, cos, sin)


class _Forward:
    """The forward of one module; an object instead of a closure, so that the model can be pickled and copied."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _copy(type(self.module).forward)(self.module, *args, **options)


@cache
def _copy(forward: Any) -> Callable[..., Any]:
    """Return a function with the same code in which NAME refers to `rotate`."""
    names = {**forward.__globals__, NAME: rotate}
    made = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


@cache
@torch.no_grad()
def _agrees(original: Any) -> bool:
    """Return whether a function of transformers takes the same arguments and gives the same values."""
    if not callable(original) or signature(original).parameters.keys() != signature(rotate).parameters.keys():
        return False
    q, k = torch.linspace(-3.0, 2.0, 48).view(1, 2, 3, 8), torch.linspace(2.0, -1.0, 24).view(1, 1, 3, 8)
    cos, sin = torch.linspace(-1.0, 1.0, 24).view(1, 3, 8), torch.linspace(1.0, 0.5, 24).view(1, 3, 8)
    try:
        expected = original(q, k, cos, sin)
        same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(rotate(q, k, cos, sin), expected, strict=True))
    except (RuntimeError, IndexError):  # other shapes
        return False
    with contextlib.suppress(RuntimeError):
        original(q, k, cos[..., :4], sin[..., :4])
        return False  # this function accepts angles for a part of the head (partial rotary embeddings)
    return same


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad and x.dtype == torch.float32:
        return cast(Tensor, _Turn.apply(x, cos, sin))  # type: ignore[no-untyped-call]
    return _turn(x, cos, sin)


def _compiled(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor | None:
    """Return the compiled rotation of x [B, H, T, D] by angles [B, 1, T, D]; None if the loop does not accept them."""
    x_BTHD = x.transpose(1, 2)
    if cos.shape[1] != 1 or not compiled.serves(x_BTHD, cos, sin):
        return None
    return compiled.rotate(x_BTHD, cos[:, 0], sin[:, 0], back=back).transpose(1, 2)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x cos + (-x2, x1) sin, where x1 and x2 are the halves of x."""
    half = x.shape[-1] // 2
    if (turned := _compiled(x, cos, sin)) is not None:
        return turned
    if x.dtype != torch.float32:  # same rounding as in transformers
        return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1.0)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        if (turned := _compiled(grads[0], cos, sin, back=True)) is not None:
            return turned, None, None
        half = cos.shape[-1] // 2
        # the transpose of `_turn`: the halves of sin are swapped and negated
        return _turn(grads[0], cos, torch.cat([-sin[..., half:], -sin[..., :half]], dim=-1)), None, None
