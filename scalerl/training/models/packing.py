"""Packing of several sequences into one row without padding, with attention within each sequence.

All operations except attention run over the packed tokens. Attention has two forms, and `takes_varlen` chooses. On GPUs
one call of torch's variable-length kernel computes all sequences of a layer. Elsewhere attention runs over buckets:
adjacent sequences of similar length, padded to the longest of them, which needs only a few calls of torch's fused
causal kernel and no T x T mask. The function is registered with transformers' attention interface, so no model code is
copied.

Legend: B sequences, T tokens of the longest, N tokens in total; b sequences of a bucket, t tokens of its longest;
K keys of all sequences, S sequences; H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ATTENTION_NAME = "scalerl_packed"

FULLEST = 0.8
"""Adjacent sequences share a bucket if the shortest has at least this share of the longest's length. A larger value
means less padding but more calls."""

_SUPPORTED = ("sdpa", "scalerl_slots")
"""Implementations that compute softmax(q k^T) v, without soft-capping or sinks (models with them use `eager`)."""


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for a copy to a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # a copy from other memory waits
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Adjacent sequences that attention pads to the longest of them.

    Example (sequences of 3 and 2 tokens from token 7 on): Bucket(start=7, rows=2, width=3, source_n=[0, 1, 2, 3, 4, 4],
    inside_n=[0, 1, 2, 3, 4])
    """

    start: int
    """Index of the first token in the packed row."""
    rows: int
    width: int
    source_n: Tensor | None
    """The bucket's token at each of b x t positions; None if no sequence is shorter. Padding repeats a token: no
    earlier token sees it, and its result is dropped."""
    inside_n: Tensor | None
    """Positions that hold a token of their own; None if all do."""

    @classmethod
    def of(cls, start: int, lengths: Sequence[int], device: torch.device) -> Bucket:
        """Return the bucket of sequences of the given lengths that starts at token `start` of the row."""
        width = max(lengths)
        if min(lengths) == width:
            return cls(start, len(lengths), width, None, None)
        inside_n = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).flatten()
        source_n, own_n = inside_n.cumsum(0) - 1, inside_n.nonzero()[:, 0]
        return cls(start, len(lengths), width, upload(source_n, device), upload(own_n, device))

    def padded(self, own_NHD: Tensor) -> Tensor:
        """Return the bucket's tokens as [b, H, t, D]; this is a view if all sequences have the same length."""
        padded_NHD = own_NHD if self.source_n is None else own_NHD.index_select(0, self.source_n)
        return padded_NHD.reshape(self.rows, self.width, *padded_NHD.shape[1:]).transpose(1, 2)

    def without_padding(self, out_bHtD: Tensor) -> Tensor:
        """Return the results of the bucket's tokens, [N, H, D]."""
        out_NHD = out_bHtD.transpose(1, 2).flatten(0, 1)
        return out_NHD if self.inside_n is None else out_NHD.index_select(0, self.inside_n)


class Varlen(NamedTuple):
    """Sequences as torch's variable-length attention takes them; the queries of a sequence are its last keys.

    Example (a prompt of 2 tokens, its completions of 1 and 3): Varlen(starts_q=[0, 2, 3, 6], starts_k=[0, 2, 5, 10],
    longest_q=3, longest_k=5, key_index=[0, 1, 0, 1, 2, 0, 1, 3, 4, 5])
    """

    starts_q: Tensor
    """[S + 1] first query of each sequence, and the end of the last; int32."""
    starts_k: Tensor
    longest_q: int
    longest_k: int
    key_index: Tensor | None
    """[K] token of the row of each key; None if the keys of the sequences are the tokens of the row."""

    @classmethod
    def of(cls, lengths: Sequence[int], prompts: Sequence[tuple[int, int]], device: torch.device) -> Varlen:
        """Describe a row.

        Args:
            lengths: Tokens of each sequence, in the order of the row.
            prompts: (first token, tokens) of the prompt ahead of each sequence, elsewhere in the row; empty without.
            device: Device of the row.
        """
        ends = torch.tensor([0, *lengths]).cumsum(0)
        if not prompts:
            starts, longest = upload(ends.int(), device), max(lengths)
            return cls(starts, starts, longest, longest, None)
        indices = [torch.arange(end - length, end) for end, length in zip(ends[1:].tolist(), lengths, strict=True)]
        keys = [
            torch.cat([torch.arange(first, first + count), behind])
            for (first, count), behind in zip(prompts, indices, strict=True)
        ]
        ends_k = torch.tensor([0, *map(len, keys)]).cumsum(0)
        index = (ends.int(), ends_k.int(), torch.cat(keys))
        starts_q, starts_k, key_index = (upload(part, device) for part in index)
        return cls(starts_q, starts_k, max(lengths), max(map(len, keys)), key_index)


@dataclass(frozen=True, eq=False)
class Segments:
    """Positions of the sequences in a packed row. What attention needs of them is computed once for all layers.

    Example (three sequences): Segments(lengths=(5, 4, 2), device=torch.device("cpu"), start=0)
    """

    lengths: Sequence[int]
    """Tokens of each sequence, at least one; sorted lengths give the fewest buckets."""
    device: torch.device
    start: int = 0
    """Index of the first token in the row."""

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The sequences in buckets, in order."""
        buckets, start = [], self.start
        for part in length_buckets(self.lengths):
            buckets.append(Bucket.of(start, part, self.device))
            start += sum(part)
        return tuple(buckets)

    @cached_property
    def varlen(self) -> Varlen:
        """The sequences for torch's variable-length attention."""
        return Varlen.of(self.lengths, (), self.device)

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each bucket for `torch.split`, whose gradient needs less memory traffic than slices."""
        ends = [*(bucket.start for bucket in self.buckets[1:]), self.start + sum(self.lengths)]
        return [end - bucket.start for bucket, end in zip(self.buckets, ends, strict=True)]

    def attention(
        self,
        query_1HND: Tensor,
        key_1HND: Tensor,
        value_1HND: Tensor,
        scaling: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Return causal attention within each segment.

        Args:
            query_1HND: Queries, [1, H, N, D].
            key_1HND: Keys, [1, H', N, D], with H' a divisor of H.
            value_1HND: Values, of the same shape as the keys.
            scaling: Factor of the scores; None for D ** -0.5.
            window: Number of tokens that each token may see, including itself; None for all up to itself.

        Returns:
            [1, N, H, D], as transformers expects.
        """
        assert query_1HND.shape[0] == 1 and key_1HND.shape == value_1HND.shape[:3] + key_1HND.shape[3:]
        pieces = [torch.split(x[0].transpose(0, 1), self.sizes) for x in (query_1HND, key_1HND, value_1HND)]
        parts = []
        for bucket, *tensors in zip(self.buckets, *pieces, strict=True):
            query, key, value = (bucket.padded(x) for x in tensors)
            parts.append(bucket.without_padding(causal_attention(query, key, value, scaling, window)))
        return torch.cat(parts)[None]


def length_buckets(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the sequence lengths of each bucket."""
    part: list[int] = []
    shortest = longest = 0
    for length in lengths:
        shortest, longest = (min(shortest, length), max(longest, length)) if part else (length, length)
        if shortest < FULLEST * longest:
            yield part
            part, shortest, longest = [], length, length
        part.append(length)
    if part:
        yield part


def can_pack(model: Any) -> bool:
    """Return whether this module can compute the model's attention."""
    return model._supports_attention_backend and model.config._attn_implementation in (*_SUPPORTED, ATTENTION_NAME)


def install(model: Any) -> None:
    """Let a model attend within segments if a call passes them; other calls use the previous attention.

    Args:
        model: A transformers model for which `can_pack` is true.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert can_pack(model), model.config._attn_implementation
    if model.config._attn_implementation == ATTENTION_NAME:
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
            _observer.append((-1 if changed else window or 0, takes_varlen(query, value)))
        if isinstance(segments, Varlen):
            return varlen_attention(query, key, value, segments, scaling, window), None
        if takes_varlen(query, value):
            return varlen_attention(query, key, value, segments.varlen, scaling, window), None
        return segments.attention(query, key, value, scaling, window), None

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, sdpa_mask)
    model.config._attn_implementation = ATTENTION_NAME


_observer: list[tuple[int, bool]] | None = None


@contextmanager
def observed_layers() -> Iterator[list[tuple[int, bool]]]:
    """Collect for each layer in packed attention its sliding window, and whether it used the variable-length kernel.

    The window is 0 if there is none, and -1 with a mask of the layer's own.

    A layer that applies its window or other scores only through the mask would attend to all earlier tokens equally,
    and a comparison over a few tokens might not show it.
    """
    global _observer
    _observer = []
    try:
        yield _observer
    finally:
        _observer = None


def takes_varlen(query: Tensor, value: Tensor) -> bool:
    """Return whether torch's variable-length kernel computes this attention; the rest uses buckets.

    The kernel is flash-attention's: half precision, on GPUs since Ampere, one head size in eights up to 256.
    """
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    size = query.shape[-1]
    return size == value.shape[-1] and size % 8 == 0 and size <= 256 and torch.cuda.get_device_capability() >= (8, 0)


def varlen_attention(
    query_1HND: Tensor, key_1HND: Tensor, value_1HND: Tensor, of: Varlen, scaling: float | None, window: int | None
) -> Tensor:
    """Return causal attention of all sequences in one call; args and result as for `Segments.attention`.

    With more keys than queries the kernel aligns its causal mask at the last key (flash-attention since 2.1). So the
    keys of a completion are the tokens of its prompt and its own, and no mask is needed.
    """
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (x[0].transpose(0, 1) for x in (query_1HND, key_1HND, value_1HND))
    if of.key_index is not None:  # through FP32, in which the gradients of a prompt's completions are summed
        key, value = (x.float().index_select(0, of.key_index).to(x.dtype) for x in (key, value))
    # torch 2.11 takes fewer key heads without the option, later versions with it; torch.compile reads the code object
    options: dict[str, Any] = {}
    if "enable_gqa" in varlen_attn.__code__.co_varnames:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    out_NHD = varlen_attn(
        query,
        key,
        value,
        of.starts_q,
        of.starts_k,
        of.longest_q,
        of.longest_k,
        scale=scaling,
        window_size=(window - 1 if window else -1, 0),
        **options,
    )
    assert isinstance(out_NHD, Tensor)
    return out_NHD[None]


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
        position_k = torch.arange(begin, end, device=query_bHtD.device)
        age_qk = position_k[first - begin :, None] - position_k
        mask_qk = (age_qk >= 0) & (age_qk < window)
        query, key, value = query_bHtD[:, :, first:end], key_bHtD[:, :, begin:end], value_bHtD[:, :, begin:end]
        parts.append(attention(query, key, value, attn_mask=mask_qk))
    return torch.cat(parts, dim=2)
