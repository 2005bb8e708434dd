"""Shared prefixes in the trainer: rollouts packed into one row in which each prompt is computed once.

The row holds every prompt of a micro-batch once, then all completions. The position ids of a completion continue those
of its prompt, and the completion attends to its prompt and to itself. Autograd sums the gradients of all completions of
a prompt. All operations except attention run over the packed tokens.

Legend: N tokens of the row; b completions of a part, t tokens of its longest, w adjacent ones of these; P prompt
tokens; H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from scalerl.training.models.packing import Segments, Varlen

BLOCK_TOKENS = 1024
"""Tokens of a completion that attend together, so that their mask grows with their keys, not with the square."""


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """Completions of one prompt.

    Example (prompt of 4 tokens at 10; two completions of 3 and 2 tokens from 30 on): Completions(prompt_start=10,
    prompt=4, segments=Segments((3, 2), torch.device("cpu"), 30))
    """

    prompt_start: int
    """Index of the prompt's first token in the row."""
    prompt: int
    """Number of tokens of the prompt."""
    segments: Segments


@dataclass(frozen=True, eq=False)
class SharedPrompts:
    """Positions of prompts and completions in a row.

    Example (two completions of 3 tokens of one prompt of 4): SharedPrompts(prompts=Segments((4,), ...),
    groups=(Completions(0, 4, ...),))
    """

    prompts: Segments
    groups: tuple[Completions, ...]
    masks: dict[tuple[int | None, ...], Tensor] = field(default_factory=dict)
    """Masks computed by earlier layers, by window; on a GPU also by keys and width."""

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
            groups.append(Completions(prompt_start, prompt, Segments(completions[first:end], device, start)))
            prompt_start += prompt
            start += sum(completions[first:end])
        return cls(Segments(prompts, device), tuple(groups))

    @cached_property
    def varlen(self) -> Varlen:
        """Every prompt as a sequence, then every completion with its prompt ahead."""
        lengths, spans = list(self.prompts.lengths), [(0, 0) for _ in self.prompts.lengths]
        for group in self.groups:
            lengths += group.segments.lengths
            spans += [(group.prompt_start, group.prompt) for _ in group.segments.lengths]
        return Varlen.of(lengths, spans, self.prompts.device)

    @cached_property
    def _most_keys(self) -> int:
        return max(group.prompt + max(group.segments.lengths) for group in self.groups)

    def mask(self, before: int, width: int, window: int | None, like: Tensor) -> Tensor:
        """Return the additive mask [w, before + w] of adjacent tokens: 0 for visible keys, -inf for others.

        Whether a key is visible depends on its distance only, so the masks of all completions are parts of one.

        Args:
            before: Keys before the first of these tokens: the prompt's, and those of the completion.
            width: Number of these tokens, at most `BLOCK_TOKENS`.
            window: Number of tokens that each token may see, including itself; None for all up to itself.
            like: Tensor with the device and type of the mask.
        """
        if (window,) not in self.masks:  # computed once per micro-batch, not once per layer
            rows = min(BLOCK_TOKENS, self._most_keys)
            position_w = torch.arange(self._most_keys, self._most_keys + rows, device=like.device)
            age_wk = position_w[:, None] - torch.arange(self._most_keys + rows, device=like.device)
            seen_wk = (age_wk >= 0) & (age_wk < (window or self._most_keys + rows))
            self.masks[window,] = torch.zeros_like(seen_wk, dtype=like.dtype).masked_fill_(~seen_wk, -torch.inf)
        part = self.masks[window,][:width, self._most_keys - before : self._most_keys + width]
        if not like.is_cuda:
            return part
        key = (window, before, width)  # kernels of a GPU need aligned rows
        self.masks[key] = self.masks[key] if key in self.masks else part.contiguous()
        return self.masks[key]

    def attention(
        self,
        query_1HND: Tensor,
        key_1HND: Tensor,
        value_1HND: Tensor,
        scaling: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Return causal attention within each prompt, and of each completion to its prompt and itself.

        Args and result are those of `Segments.attention`.
        """
        bucket_sizes = [size for group in self.groups for size in group.segments.sizes]
        sizes = [sum(self.prompts.lengths), sum(bucket_sizes)]
        query, key, value = (torch.split(x, sizes, dim=2) for x in (query_1HND, key_1HND, value_1HND))
        parts = [self.prompts.attention(query[0], key[0], value[0], scaling, window)[0]]
        prompts_1HPD = [torch.split(x, [group.prompt for group in self.groups], dim=2) for x in (key[0], value[0])]
        pieces = [torch.split(x[1][0].transpose(0, 1), bucket_sizes) for x in (query, key, value)]
        own_of_bucket = zip(*pieces, strict=True)
        for group, *prompt in zip(self.groups, *prompts_1HPD, strict=True):
            for bucket in group.segments.buckets:
                query_bHtD, *key_value = (bucket.padded(x) for x in next(own_of_bucket))
                key_bHkD, value_bHkD = (
                    torch.cat([prompt_part.expand(bucket.rows, -1, -1, -1), behind], dim=2)
                    for prompt_part, behind in zip(prompt, key_value, strict=True)
                )
                blocks = [
                    self._block(part, key_bHkD, value_bHkD, group.prompt + first, scaling, window)
                    for first, part in zip(
                        range(0, bucket.width, BLOCK_TOKENS), query_bHtD.split(BLOCK_TOKENS, 2), strict=True
                    )
                ]
                out_bHtD = torch.cat(blocks, dim=2) if blocks[1:] else blocks[0]
                parts.append(bucket.without_padding(out_bHtD))
        return torch.cat(parts)[None]

    def _block(
        self,
        query_bHwD: Tensor,
        key_bHkD: Tensor,
        value_bHkD: Tensor,
        before: int,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """Return attention of adjacent tokens of completions to the `before` keys before them, and among them."""
        width = query_bHwD.shape[2]
        return nn.functional.scaled_dot_product_attention(
            query_bHwD,
            key_bHkD[:, :, : before + width],
            value_bHkD[:, :, : before + width],
            attn_mask=self.mask(before, width, window, query_bHwD),
            scale=scaling,
            enable_gqa=query_bHwD.shape[1] != key_bHkD.shape[1],
        )
