"""Shared prefixes in the trainer: rollouts packed into one row in which each prompt is computed once.

The row holds every prompt of a micro-batch once, then all completions. The position ids of a completion continue those
of its prompt, and the completion attends to its prompt and to itself. Autograd sums the gradients of all completions of
a prompt. All operations except attention run over the packed tokens.

Legend: N tokens of the row; b completions of a part, t tokens of its longest; P prompt tokens; H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from scalerl.models.packing import Segments, bucket_rows, neighbors, packed_attention, padded


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """Completions of one prompt, in buckets for attention.

    Example (prompt of 4 tokens at 10; two completions of 3 and 2 tokens from 30 on): Completions(prompt_start=10,
    prompt=4, segments=Segments(buckets=(Bucket(30, 2, 3, ...),)))
    """

    prompt_start: int
    """Index of the prompt's first token in the row."""
    prompt: int
    """Number of tokens of the prompt."""
    segments: Segments


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrompts:
    """Positions of prompts and completions in a row.

    Example (two completions of 3 tokens of one prompt of 4): SharedPrompts(tokens=4, prompts=Segments(...),
    groups=(Completions(0, 4, ...),))
    """

    tokens: int
    """Number of tokens of all prompts."""
    prompts: Segments
    groups: tuple[Completions, ...]
    masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)
    """Masks computed by earlier layers, by prompt, width and window."""

    @classmethod
    def of(cls, length_B: Tensor, prompt_length_B: Tensor, first_B: Tensor, device: torch.device) -> SharedPrompts:
        """Describe the row of rollouts that are ordered by prompt.

        Args:
            length_B: Tokens of prompt and completion, on the host; a completion has at least one token.
            prompt_length_B: Tokens of the prompt, on the host.
            first_B: Whether a rollout is the first of its prompt, on the host.
            device: Device of the row.
        """
        prompts = prompt_length_B[first_B].tolist()
        completions = (length_B - prompt_length_B).tolist()
        starts = [*first_B.nonzero()[:, 0].tolist(), len(completions)]
        groups, prompt_start, start = [], 0, sum(prompts)
        for prompt, first, end in zip(prompts, starts[:-1], starts[1:], strict=True):
            buckets = []
            for part in neighbors(completions[first:end]):
                buckets.append(bucket_rows(start, part, device))
                start += sum(part)
            groups.append(Completions(prompt_start, prompt, Segments(tuple(buckets))))
            prompt_start += prompt
        return cls(sum(prompts), Segments.of(prompts, device), tuple(groups))

    def mask(self, prompt: int, width: int, window: int | None, like: Tensor) -> Tensor:
        """Return the additive mask [t, P + t] of a completion's tokens: 0 for visible keys, -inf for others."""
        key = (prompt, width, window)
        if key not in self.masks:  # computed once per micro-batch, not once per layer
            seen_tk = _mask(prompt, width, window, like.device)
            self.masks[key] = torch.zeros_like(seen_tk, dtype=like.dtype).masked_fill_(~seen_tk, -torch.inf)
        return self.masks[key]

    @property
    def attention(self) -> Callable[..., Tensor]:
        """The attention function for this layout."""
        return shared_attention


@dataclass(frozen=True, slots=True, eq=False)
class SharedRow:
    """The row itself: which tokens of [B, T] it holds, and the index of each token's hidden state.

    Example (one prompt of 2 tokens, completions of 2 and 1): the row holds 2 + 2 + 1 tokens, and index_BT =
    [[0, 1, 2, 3], [0, 1, 4, 0]]
    """

    prompt_BT: Tensor
    """True for the tokens of the first rollout's prompt, for each prompt."""
    completion_BT: Tensor
    """True for the tokens of completions."""
    index_BT: Tensor
    """Index of each token in the row; 0 for padding."""
    layout: SharedPrompts

    @classmethod
    def of(
        cls, width: int, length_B: Tensor, prompt_length_B: Tensor, first_B: Tensor, device: torch.device
    ) -> SharedRow:
        """Lay out rollouts that are ordered by prompt. `width` is T; the other arguments are as in SharedPrompts.of."""
        position_T = torch.arange(width)
        in_prompt_BT = position_T < prompt_length_B[:, None]
        prompt_BT = in_prompt_BT & first_B[:, None]
        completion_BT = ~in_prompt_BT & (position_T < length_B[:, None])
        prompt_lengths = prompt_length_B[first_B]
        start_B = (prompt_lengths.cumsum(0) - prompt_lengths)[first_B.cumsum(0) - 1]
        index_BT = torch.where(in_prompt_BT, start_B[:, None] + position_T, 0)
        total, own = int(prompt_lengths.sum()), int(completion_BT.sum())
        index_BT[completion_BT] = torch.arange(total, total + own)
        layout = SharedPrompts.of(length_B, prompt_length_B, first_B, device)
        return cls(prompt_BT.to(device), completion_BT.to(device), index_BT.to(device), layout)

    def take(self, x_BT: Tensor) -> Tensor:
        """Return the row's values [1, N] of a tensor [B, T]."""
        return torch.cat([x_BT[self.prompt_BT], x_BT[self.completion_BT]])[None]


def shared_attention(
    query_1HND: Tensor,
    key_1HND: Tensor,
    value_1HND: Tensor,
    shared: SharedPrompts,
    scaling: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Return causal attention within each prompt, and of each completion to its prompt and itself.

    Args:
        query_1HND: Queries, [1, H, N, D].
        key_1HND: Keys, [1, H', N, D], with H' a divisor of H.
        value_1HND: Values, of the same shape as the keys.
        shared: Layout of the N tokens.
        scaling: Factor of the scores; None for D ** -0.5.
        window: Number of tokens that each token may see, including itself; None for all up to itself.

    Returns:
        [1, N, H, D], as transformers expects.
    """
    sizes = [shared.tokens, query_1HND.shape[2] - shared.tokens]
    query, key, value = (torch.split(x, sizes, dim=2) for x in (query_1HND, key_1HND, value_1HND))
    parts = [packed_attention(query[0], key[0], value[0], shared.prompts, scaling, window)[0]]
    prompts_1HPD = [torch.split(x, [group.prompt for group in shared.groups], dim=2) for x in (key[0], value[0])]
    completions = Segments(tuple(bucket for group in shared.groups for bucket in group.segments.buckets))
    own_sizes = completions.sizes(sizes[1])
    pieces = [torch.split(x[1][0].transpose(0, 1), own_sizes) for x in (query, key, value)]
    own_of_bucket = zip(*pieces, strict=True)
    for group, *prompt in zip(shared.groups, *prompts_1HPD, strict=True):
        for bucket in group.segments.buckets:
            query_bHtD, *own = (padded(x, bucket) for x in next(own_of_bucket))
            key_bHkD, value_bHkD = (
                torch.cat([ahead.expand(bucket.rows, -1, -1, -1), behind], dim=2)
                for ahead, behind in zip(prompt, own, strict=True)
            )
            out_bHtD = nn.functional.scaled_dot_product_attention(
                query_bHtD,
                key_bHkD,
                value_bHkD,
                attn_mask=shared.mask(group.prompt, bucket.width, window, query_bHtD),
                scale=scaling,
                enable_gqa=query_bHtD.shape[1] != key_bHkD.shape[1],
            )
            out_btHD = out_bHtD.transpose(1, 2)
            parts.append(out_btHD.flatten(0, 1) if bucket.inside_bt is None else out_btHD[bucket.inside_bt])
    return torch.cat(parts)[None]


def _mask(prompt: int, width: int, window: int | None, device: torch.device) -> Tensor:
    """Return the boolean mask [t, P + t] of the keys that a completion's tokens may see."""
    position_t = torch.arange(prompt, prompt + width, device=device)
    age_tk = position_t[:, None] - torch.arange(prompt + width, device=device)
    return (age_tk >= 0) & (age_tk < (window or prompt + width))


def first_of_prompt(prompt_B: Sequence[int] | Tensor) -> Tensor:
    """Return whether each rollout is the first of its prompt, for rows that are ordered by prompt."""
    number_B = torch.as_tensor(prompt_B)
    return torch.cat([torch.ones(1, dtype=torch.bool), number_B[1:] != number_B[:-1]])
