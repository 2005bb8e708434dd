"""Packing of several sequences into one row without padding, with attention within each sequence.

All operations except attention run over the packed tokens. Attention runs over buckets: adjacent sequences of similar
length, padded to the longest of them. This needs only a few calls of torch's fused causal kernel and no T x T mask. The
function is registered with transformers' attention interface, so no model code is copied.

Legend: B sequences, T tokens of the longest, N tokens in total; b sequences of a bucket, t tokens of its longest;
H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

NAME = "scalerl_packed"

FULLEST = 0.8
"""Adjacent sequences share a bucket if the shortest has at least this share of the longest's length. A larger value
means less padding but more calls."""

_SUPPORTED = ("sdpa", "scalerl_slots")
"""Implementations that compute softmax(q k^T) v, without soft-capping or sinks (models with them use `eager`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Adjacent sequences that attention pads to the longest of them.

    Example (sequences of 5 and 4 tokens from token 7 on): Bucket(start=7, rows=2, width=5, inside_bt=[[1, 1, 1, 1, 1],
    [1, 1, 1, 1, 0]])
    """

    start: int
    """Index of the first token in the packed row."""
    rows: int
    width: int
    inside_bt: Tensor | None
    """Whether each position holds a token; None if all do."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Positions of the sequences in a packed row.

    Example (lengths 5, 4, 2): Segments(buckets=(Bucket(0, 2, 5, ...), Bucket(9, 1, 2, None)))
    """

    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Group sequences into buckets, in order; sorted lengths give the fewest buckets.

        Args:
            lengths: Tokens of each sequence, at least one.
            device: Device of the packed row.
        """
        buckets, start = [], 0
        for part in neighbors(lengths):
            buckets.append(bucket_rows(start, part, device))
            start += sum(part)
        return cls(tuple(buckets))

    def sizes(self, tokens: int) -> list[int]:
        """Return the tokens of each bucket for `torch.split`, whose gradient needs less memory traffic than slices.

        Args:
            tokens: Number of tokens of the row from the first bucket on.
        """
        starts = [bucket.start for bucket in self.buckets]
        return [end - start for start, end in zip(starts, [*starts[1:], starts[0] + tokens], strict=True)]


def bucket_rows(start: int, lengths: Sequence[int], device: torch.device) -> Bucket:
    """Return the bucket of sequences of the given lengths that starts at token `start` of the row."""
    width = max(lengths)
    inside_bt = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return Bucket(start, len(lengths), width, None if min(lengths) == width else inside_bt.to(device))


def neighbors(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the sequence lengths of each bucket."""
    part: list[int] = []
    for length in lengths:
        if part and min(*part, length) < FULLEST * max(*part, length):
            yield part
            part = []
        part.append(length)
    if part:
        yield part


def can_pack(model: Any) -> bool:
    """Return whether this module can compute the model's attention."""
    return model._supports_attention_backend and model.config._attn_implementation in (*_SUPPORTED, NAME)


def install(model: Any) -> None:
    """Let a model attend within segments if a call passes them; other calls use the previous attention.

    Args:
        model: A transformers model for which `can_pack` is true.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert can_pack(model), model.config._attn_implementation
    if model.config._attn_implementation == NAME:
        return
    # the CPU decoding attention applies only to single new tokens, so it can serve every call that is not packed
    previous = ALL_ATTENTION_FUNCTIONS[model.config._attn_implementation]

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        segments = options.pop("segments", None)
        if segments is None:
            return previous(module, query, key, value, attention_mask, **options)
        window, scaling = options.get("sliding_window"), options.get("scaling")
        if _observer is not None:
            changed = attention_mask is not None and attention_mask.numel() > 1  # by the architecture: Doge adds scores
            _observer.append(-1 if changed else window or 0)
        attention = packed_attention if isinstance(segments, Segments) else segments.attention
        return attention(query, key, value, segments, scaling, window), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


_observer: list[int] | None = None


@contextmanager
def observed_windows() -> Iterator[list[int]]:
    """Collect the sliding window that each layer passes to packed attention, 0 for none, -1 with a mask of its own.

    A layer that applies its window or other scores only through the mask would attend to all earlier tokens equally,
    and a comparison over a few tokens might not show it.
    """
    global _observer
    _observer = []
    try:
        yield _observer
    finally:
        _observer = None


def packed_attention(
    query_1HND: Tensor,
    key_1HND: Tensor,
    value_1HND: Tensor,
    segments: Segments,
    scaling: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Return causal attention within each segment.

    Args:
        query_1HND: Queries, [1, H, N, D].
        key_1HND: Keys, [1, H', N, D], with H' a divisor of H.
        value_1HND: Values, of the same shape as the keys.
        segments: Segments of the N tokens.
        scaling: Factor of the scores; None for D ** -0.5.
        window: Number of tokens that each token may see, including itself; None for all up to itself.

    Returns:
        [1, N, H, D], as transformers expects.
    """
    assert query_1HND.shape[0] == 1 and key_1HND.shape == value_1HND.shape[:3] + key_1HND.shape[3:]
    sizes = segments.sizes(query_1HND.shape[2])
    pieces = [torch.split(x[0].transpose(0, 1), sizes) for x in (query_1HND, key_1HND, value_1HND)]
    parts = []
    for bucket, *own in zip(segments.buckets, *pieces, strict=True):
        query, key, value = (padded(x, bucket) for x in own)
        out_btHD = causal_attention(query, key, value, scaling, window).transpose(1, 2)
        parts.append(out_btHD.flatten(0, 1) if bucket.inside_bt is None else out_btHD[bucket.inside_bt])
    return torch.cat(parts)[None]


def padded(own_NHD: Tensor, bucket: Bucket) -> Tensor:
    """Return a bucket's tokens as [b, H, t, D]; this is a view if all sequences have the same length."""
    own = own_NHD
    if bucket.inside_bt is not None:  # padding repeats a token: no earlier token sees it, and its result is dropped
        own = own_NHD.index_select(0, bucket.inside_bt.flatten().cumsum(0) - 1)
    return own.reshape(bucket.rows, bucket.width, *own.shape[1:]).transpose(1, 2)


def causal_attention(
    query_bHtD: Tensor, key_bHtD: Tensor, value_bHtD: Tensor, scaling: float | None = None, window: int | None = None
) -> Tensor:
    """Return causal attention [b, H, t, D]; a sliding window is computed in blocks of its length.

    A block of w queries sees at most 2 w - 1 keys, so its mask has w x (2 w - 1) entries for any t.

    Args:
        query_bHtD: Queries.
        key_bHtD: Keys; groups of query heads share a head if there are fewer.
        value_bHtD: Values.
        scaling: Factor of the scores; None for D ** -0.5.
        window: Number of tokens that each token may see, including itself; None for all up to itself.
    """
    length = query_bHtD.shape[2]
    attention: Callable[..., Tensor] = partial(
        nn.functional.scaled_dot_product_attention,
        scale=scaling,
        enable_gqa=query_bHtD.shape[1] != key_bHtD.shape[1],
    )
    if not window or length <= window:
        return attention(query_bHtD, key_bHtD, value_bHtD, is_causal=True)
    parts = []
    for first in range(0, length, window):
        end, begin = min(first + window, length), max(0, first - window + 1)
        age_qk = torch.arange(first, end)[:, None] - torch.arange(begin, end)[None]
        mask_qk = ((age_qk >= 0) & (age_qk < window)).to(query_bHtD.device)
        query, key, value = query_bHtD[:, :, first:end], key_bHtD[:, :, begin:end], value_bHtD[:, :, begin:end]
        parts.append(attention(query, key, value, attn_mask=mask_qk))
    return torch.cat(parts, dim=2)
