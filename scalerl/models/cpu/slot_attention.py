"""Decoding attention on CPU for one new token per sequence over a slot cache, faster than transformers' SDPA.

The keys of all heads of a position are contiguous, as are the values, so that a new position is written as one row.
Queries that share a key-value head are passed to torch's kernel as positions of one head, which then reads every key
once. With one query per head, that kernel computes hundreds of tiny products, and the calls cost more than the
arithmetic. In this case all heads of a sequence form one product, with the queries on a block diagonal. The function is
registered with transformers' attention interface, applies only to decoding on CPU, and passes all other calls to the
model's previous implementation.

Legend: R sequences, H key-value heads, G queries per key-value head, D head size, K cached positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scalerl.models.cpu import compiled

NAME = "scalerl_slots"
MOST_HEADS = 4
"""Largest number of key-value heads with one query each for which a block diagonal is faster than separate products."""
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Keyword arguments that change the formula; with any of them the model's previous implementation is used."""


def install(model: Any) -> None:
    """Let a model on CPU whose attention is SDPA decode with `decode_attention`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = model.config._attn_implementation == "sdpa" and model._supports_attention_backend
    if not plain or next(model.parameters()).device.type != "cpu":
        return

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        mask = attention_mask  # the name with which some architectures pass it
        together = key.stride(2) == key.shape[1] * key.shape[3] and key.stride() == value.stride()
        if (
            not (query.shape[2] == 1 and together)
            or mask is None
            or mask.shape[1] != 1
            or mask.dtype != query.dtype
            or any(options.get(name) is not None for name in _UNKNOWN)
        ):
            return sdpa_attention_forward(module, query, key, value, mask, **options)
        scaling = options.get("scaling")
        return decode_attention(query, key, value, mask, query.shape[-1] ** -0.5 if scaling is None else scaling), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


def decode_attention(
    query_RHG1D: Tensor, key_RHKD: Tensor, value_RHKD: Tensor, bias_R11K: Tensor, scaling: float
) -> Tensor:
    """Return softmax(q k^T * scaling + bias) v for one query position per sequence.

    Args:
        query_RHG1D: Queries [R, H * G, 1, D].
        key_RHKD: Keys, a view of storage in which all heads of a position are contiguous.
        value_RHKD: Values, in the same layout.
        bias_R11K: 0 for visible positions, -inf for others.
        scaling: Factor of the scores.

    Returns:
        [R, 1, H * G, D], as transformers expects.
    """
    rows, heads, span, size = key_RHKD.shape
    per_head = query_RHG1D.shape[1] // heads
    query_RHGD = query_RHG1D.view(rows, heads, per_head, size)
    key_RKHD, value_RKHD = key_RHKD.transpose(1, 2), value_RHKD.transpose(1, 2)
    bias_RK = bias_R11K[:, 0, 0]
    if compiled.serves(query_RHGD, bias_RK) and key_RKHD.dtype == torch.float32:
        out_RAD = compiled.decode_attention(query_RHGD.flatten(1, 2), key_RKHD, value_RKHD, bias_RK, scaling)
        return out_RAD[:, None]
    if heads > MOST_HEADS or per_head > 1:
        bias_R1GK = bias_R11K.expand(rows, 1, per_head, span)
        out_RHGD = nn.functional.scaled_dot_product_attention(
            query_RHGD, key_RHKD, value_RHKD, attn_mask=bias_R1GK, scale=scaling
        )
        return out_RHGD.reshape(rows, 1, heads * per_head, size)
    scaled_HH = torch.eye(heads, dtype=query_RHGD.dtype).mul_(scaling).view(heads, 1, heads, 1)
    diagonal_RMA = (query_RHGD[:, :, :, None] * scaled_HH).view(rows, heads * per_head, heads * size)  # A = H x D
    key_RKA, value_RKA = (x.transpose(1, 2).reshape(rows, span, heads * size) for x in (key_RHKD, value_RHKD))  # views
    scores_RMK = torch.baddbmm(bias_R11K[:, 0], diagonal_RMA, key_RKA.transpose(1, 2))
    mixed = torch.bmm(scores_RMK.softmax(-1), value_RKA).view(rows, heads, per_head, heads, size)
    return mixed.diagonal(0, 1, 3).permute(0, 3, 1, 2).reshape(rows, 1, heads * per_head, size)


def empty_cache(keys: Tensor, values: Tensor, slots: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Return zeroed storage for all slots, as views [slots, heads, capacity, size].

    Args:
        keys: Any keys of the layer, [., heads, ., size], for their sizes, type and device.
        values: Any values of the layer.
        slots: Number of rows.
        capacity: Positions per row.
    """
    made = [x.new_zeros(slots, capacity, x.shape[1], x.shape[3]).transpose(1, 2) for x in (keys, values)]
    return made[0], made[1]


def positions_first(cache_SHCD: Tensor) -> Tensor:
    """Return the storage made by `empty_cache` as a view [slots * capacity, heads * size], one row per position."""
    slots, heads, capacity, size = cache_SHCD.shape
    return cache_SHCD.transpose(1, 2).view(slots * capacity, heads * size)
