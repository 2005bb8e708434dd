"""Attention of one new token a sequence over a slot cache on CPU, two to three times as fast as torch's own kernel.

torch's CPU kernel computes each head of each sequence as a matrix product of its own: hundreds of tiny ones, whose
calls cost more than their arithmetic. Here all heads of a sequence make one product, with the queries laid out block
by block on a diagonal, over keys stored transposed. It is registered with transformers' attention interface, applies
only to decoding on CPU, and hands everything else to the implementation the model had before.

Legend: R sequences, H key-value heads, G queries a key-value head, D head size, K cached positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "scalerl_slots"
MOST_HEADS = 4
"""Key-value heads up to which zeros of the block diagonal cost less than separate products."""
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Keyword arguments that change the formula; with any of them the model's own implementation is used."""


def install(model: Any) -> None:
    """Let a model decode through this function where it applies: on CPU, where the model uses torch's kernel."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if model.config._attn_implementation != "sdpa" or next(model.parameters()).device.type != "cpu":
        return

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        decoding = query.shape[2] == 1 and key.stride(2) == 1
        if (
            not decoding
            or mask is None
            or mask.shape[1] != 1
            or any(options.get(name) is not None for name in _UNKNOWN)
        ):
            return sdpa_attention_forward(module, query, key, value, mask, **options)
        scaling = options.get("scaling")
        return decode_attention(query, key, value, mask, query.shape[-1] ** -0.5 if scaling is None else scaling), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


def decode_attention(
    query_RHG1D: Tensor, key_RHKD: Tensor, value_RHKD: Tensor, mask_R11K: Tensor, scaling: float
) -> Tensor:
    """Return softmax(q k^T * scaling) v for one query position a sequence.

    Args:
        query_RHG1D: [R, H * G, 1, D].
        key_RHKD: a view of transposed storage (last-but-one stride 1).
        value_RHKD: a view of storage in which all heads of a position lie together.
        mask_R11K: boolean, True where a position may be seen.
        scaling: of the scores.

    Returns:
        [R, 1, H * G, D], as transformers expects.
    """
    rows, heads, span, size = key_RHKD.shape
    per_head = query_RHG1D.shape[1] // heads
    bias_R1K = torch.zeros(rows, 1, span).masked_fill_(~mask_R11K[:, 0], -torch.inf)
    query_RHGD = query_RHG1D.view(rows, heads, per_head, size) * scaling
    if heads > MOST_HEADS:
        scores = torch.matmul(query_RHGD, key_RHKD.transpose(2, 3)) + bias_R1K[:, None]
        return torch.matmul(scores.softmax(-1), value_RHKD).reshape(rows, 1, heads * per_head, size)
    diagonal = query_RHGD.new_zeros(rows, heads, per_head, heads, size)
    for head in range(heads):
        diagonal[:, head, :, head] = query_RHGD[:, head]
    key_RAK = key_RHKD.transpose(2, 3).reshape(rows, heads * size, span)  # A = H x D; a view
    scores = torch.bmm(diagonal.view(rows, heads * per_head, heads * size), key_RAK).add_(bias_R1K)
    value_RKA = value_RHKD.transpose(1, 2).reshape(rows, span, heads * value_RHKD.shape[3])  # a view
    mixed = torch.bmm(scores.softmax(-1), value_RKA).view(rows, heads, per_head, heads, -1)
    own = torch.stack([mixed[:, head, :, head] for head in range(heads)], dim=1)
    return own.reshape(rows, 1, heads * per_head, -1)


def empty_cache(keys: Tensor, values: Tensor, slots: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Return zeroed storage for all slots, as views [slots, heads, capacity, size].

    Args:
        keys: any keys of the layer, [., heads, ., size], for type and device.
        values: likewise.
        slots: rows.
        capacity: positions of a row.
    """
    transposed = keys.new_zeros(slots, keys.shape[1], keys.shape[3], capacity).transpose(2, 3)
    together = values.new_zeros(slots, capacity, values.shape[1], values.shape[3]).transpose(1, 2)
    return transposed, together
