"""RMS norms and decoding attention on CPU through the compiled loops.

transformers computes x * rsqrt(mean(x^2) + eps) * w in seven operations, with as many for the gradient. A module is
replaced only if its forward gives these values, so norms with another formula (Gemma's 1 + w) are unchanged.

Decoding attention is for one new token per sequence over a slot cache. The keys of all heads of a position are
contiguous, as are the values, so that a new position is written as one row. The function is registered with
transformers' attention interface, applies only to decoding on CPU, and passes all calls that the loop does not accept
to transformers' SDPA.

Legend: R sequences, H key-value heads, G queries per key-value head, D size, K cached positions.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.models.cpu import compiled

NAME = "scalerl_slots"
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Keyword arguments that change the formula."""


def accelerate_norms(model: nn.Module) -> None:
    """Make the RMS norms of a model on CPU use the loops, in place; parameters and state dict do not change."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float) and _agrees(module, eps):
            module.forward = partial(_forward, module, eps)  # a closure could not be pickled


def _forward(norm: nn.Module, eps: float, x: Tensor) -> Tensor:
    weight_D = cast(Tensor, norm.weight)
    if not compiled.serves(x, weight_D):
        return cast(Tensor, type(norm).forward(norm, x))
    return rms_norm(x, weight_D, eps)


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with a gradient, for activations [..., D]."""
    if torch.is_grad_enabled() and (x.requires_grad or weight_D.requires_grad):
        return cast(Tensor, _RmsNorm.apply(x, weight_D, eps))  # type: ignore[no-untyped-call]
    return compiled.rms_norm(x, weight_D, eps)[0]


@torch.no_grad()
def _agrees(module: nn.Module, eps: float) -> bool:
    weight_D = getattr(module, "weight", None)
    if not isinstance(weight_D, Tensor) or weight_D.ndim != 1 or weight_D.dtype != torch.float32:
        return False
    if weight_D.device.type != "cpu" or "forward" in vars(module):
        return False
    x_2D = torch.linspace(-3.0, 2.0, 2 * len(weight_D)).view(2, -1)
    expected_2D = nn.functional.rms_norm(x_2D, weight_D.shape, weight_D, eps)
    return torch.allclose(module(x_2D), expected_2D, rtol=1e-5, atol=1e-6)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        out, scale = compiled.rms_norm(x, weight_D, eps)
        ctx.save_for_backward(x, weight_D, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return *compiled.rms_norm_backward(grads[0].contiguous(), *ctx.saved_tensors), None


# ----------------------------------------------------------------------------------------------------------- attention


def install_attention(model: Any) -> None:
    """Let a model on CPU whose attention is SDPA decode with the compiled loop."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = model.config._attn_implementation == "sdpa" and model._supports_attention_backend
    if not plain or next(model.parameters()).device.type != "cpu":
        return

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        """Return [R, 1, H * G, D] for queries [R, H * G, 1, D], keys and values [R, H, K, D] and masks [R, 1, 1, K]."""
        mask = attention_mask  # the name with which some architectures pass it
        together = key.stride(2) == key.shape[1] * key.shape[3] and key.stride() == value.stride()
        if (
            not (query.shape[2] == 1 and together)
            or mask is None
            or mask.shape[1] != 1
            or key.dtype != torch.float32
            or not compiled.serves(query, bias_RK := mask[:, 0, 0])
            or any(options.get(name) is not None for name in _UNKNOWN)
        ):
            return sdpa_attention_forward(module, query, key, value, mask, **options)
        scaling = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
        key_RKHD, value_RKHD = key.transpose(1, 2), value.transpose(1, 2)
        return compiled.decode_attention(query[:, :, 0], key_RKHD, value_RKHD, bias_RK, scaling)[:, None], None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


def positions_first(cache_SHCD: Tensor) -> Tensor:
    """Return storage with contiguous positions, viewed as [slots, heads, capacity, size], as one row per position."""
    slots, heads, capacity, size = cache_SHCD.shape
    return cache_SHCD.transpose(1, 2).view(slots * capacity, heads * size)
