"""Several sequences in one row without padding: position ids that restart, and attention sequence by sequence.

All products but attention run over the tokens there are. Attention runs over buckets: neighbouring sequences of similar
length, padded to the longest of them, so that it is a few calls of torch's fused causal kernel and no mask of the size
T x T is ever made. A sliding window is computed in blocks of queries as long as the window. The function is registered
with transformers' attention interface, so no model code is copied; calls without segments go where they went before.

Legend: B sequences, T tokens of the longest, N tokens of all; b sequences of a bucket, t tokens of its longest;
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
"""Neighbours at least this share of a bucket's longest go into it: less padding against fewer calls."""

_SUPPORTED = ("sdpa", "scalerl_slots")
"""Implementations whose formula is softmax(q k^T) v: no soft-capping, no sinks (models with them use `eager`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Neighbouring sequences that attention pads to the longest of them.

    Example (sequences of 5 and 4 tokens from token 7 on): Bucket(start=7, rows=2, width=5, inside_bt=[[1, 1, 1, 1, 1],
    [1, 1, 1, 1, 0]])
    """

    start: int
    """First token in the packed row."""
    rows: int
    width: int
    inside_bt: Tensor | None
    """[b, t] which positions hold a token; None where all do."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Where the sequences of a packed row lie.

    Example (lengths 5, 4, 2): Segments(buckets=(Bucket(0, 2, 5, ...), Bucket(9, 1, 2, None)))
    """

    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Segments:
        """Group sequences into buckets, in their order; sorted lengths make the fewest.

        Args:
            lengths: tokens of each sequence, at least one.
            device: of the packed row.
        """
        buckets, start = [], 0
        for part in neighbours(lengths):
            buckets.append(bucket_rows(start, part, device))
            start += sum(part)
        return cls(tuple(buckets))

    def sizes(self, tokens: int) -> list[int]:
        """Return the tokens of each bucket, for `split`: its gradient is one copy, that of slices a sum of whole rows.

        Args:
            tokens: of the row, from the first bucket's on.
        """
        starts = [bucket.start for bucket in self.buckets]
        return [end - start for start, end in zip(starts, [*starts[1:], starts[0] + tokens], strict=True)]


def bucket_rows(start: int, lengths: Sequence[int], device: torch.device) -> Bucket:
    """Return the bucket of sequences of the given lengths, from token `start` of the row on."""
    width = max(lengths)
    inside_bt = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return Bucket(start, len(lengths), width, None if min(lengths) == width else inside_bt.to(device))


def neighbours(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the lengths of one bucket after the other."""
    part: list[int] = []
    for length in lengths:
        if part and min(*part, length) < FULLEST * max(*part, length):
            yield part
            part = []
        part.append(length)
    if part:
        yield part


def can_pack(model: Any) -> bool:
    """Return whether a model's attention is one that this module computes."""
    return model.config._attn_implementation in (*_SUPPORTED, NAME)


def install(model: Any) -> None:
    """Let a model attend within segments where it is given some; other calls go where they went before.

    Args:
        model: a transformers model that `can_pack`.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert can_pack(model), model.config._attn_implementation
    if model.config._attn_implementation == NAME:
        return
    # decoding on CPU looks at the mask of one new token only, so it serves every call that is not packed
    previous = ALL_ATTENTION_FUNCTIONS[model.config._attn_implementation]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        segments = options.pop("segments", None)
        if segments is None:
            return previous(module, query, key, value, mask, **options)
        window, scaling = options.get("sliding_window"), options.get("scaling")
        if _observer is not None:
            _observer.append(window or 0)
        attention = packed_attention if isinstance(segments, Segments) else segments.attention
        return attention(query, key, value, segments, scaling, window), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


_observer: list[int] | None = None


@contextmanager
def observed_windows() -> Iterator[list[int]]:
    """Collect the sliding window of every layer that attends packed, 0 for none, as its code passes it on.

    A layer whose code keeps its window in the mask alone would attend to everything before it, and a comparison over a
    few tokens would not show it.
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
        query_1HND: [1, H, N, D].
        key_1HND: [1, H', N, D], H' a divisor of H.
        value_1HND: likewise.
        segments: of the N tokens.
        scaling: of the scores; None: D ** -0.5.
        window: tokens that each may see, itself included; None: all before it.

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
    """Return a bucket's own tokens as [b, H, t, D]; a view where none is shorter than the longest."""
    own = own_NHD
    if bucket.inside_bt is not None:  # padding repeats a token: none before sees it, and its own result is dropped
        own = own_NHD.index_select(0, bucket.inside_bt.flatten().cumsum(0) - 1)
    return own.reshape(bucket.rows, bucket.width, *own.shape[1:]).transpose(1, 2)


def causal_attention(
    query_bHtD: Tensor, key_bHtD: Tensor, value_bHtD: Tensor, scaling: float | None = None, window: int | None = None
) -> Tensor:
    """Return causal attention [b, H, t, D], with a sliding window in blocks of its length.

    A block of w queries sees at most 2 w - 1 keys, so its mask has w x (2 w - 1) entries, whatever t is.

    Args:
        query_bHtD: queries.
        key_bHtD: keys; fewer heads are shared by groups of query heads.
        value_bHtD: values.
        scaling: of the scores; None: D ** -0.5.
        window: tokens that each may see, itself included; None: all before it.
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
