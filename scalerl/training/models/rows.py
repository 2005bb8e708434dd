"""The inputs of a forward pass over a batch: padded rows, or one row without padding, with each prompt once if shared.

Everything is computed on the host, from lengths, and then copied. Boolean indexing on a GPU would make the host wait
for the number of chosen tokens.

Legend: B sequences, T tokens of the longest, N tokens of the row; n trained tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from scalerl.training.models.packing import Segments, upload
from scalerl.training.models.prefix import SharedPrompts


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRows:
    """Tokens on a device, and where the trained ones are.

    Example (prompt of 1 token, completions of 2 and 1, shared): tokens [[7, 8, 9, 5]], before_n [0, 1, 0], targets_n
    [8, 9, 5], positions [[0, 1, 2, 1]]
    """

    tokens: Tensor
    """[B, T] if padded; the causal mask hides padding at the end. Else [1, N]."""
    before_n: Tensor
    """Index of the token before each trained token, which predicts it, among all tokens."""
    targets_n: Tensor
    """The trained tokens."""
    place_n: Tensor
    """Index of each trained token among the B x T tokens of the batch."""
    positions: Tensor | None = None
    """[1, N] position of each token in its sequence; None if padded."""
    layout: Segments | SharedPrompts | None = None
    """Sequences of the row; None if padded. The model's attention must then be that of packing.py (`install`)."""
    nucleus: tuple[Tensor, Tensor] | None = None
    """For sampling with top-p: (number of the trained token, id) of every id that could be sampled."""

    @classmethod
    def padded(cls, tokens_BT: Tensor, trained_BT: Tensor, device: torch.device) -> Self:
        """Use the rows as they are.

        Args:
            tokens_BT: Prompt and completion, padded at the end.
            trained_BT: Tokens whose log-probability is wanted; never the first of a row.
            device: Device of the model.
        """
        assert tokens_BT.shape == trained_BT.shape, (tokens_BT.shape, trained_BT.shape)
        after_n = trained_BT.flatten().nonzero()[:, 0]
        tokens, before, targets, place = (
            upload(part, device) for part in (tokens_BT, after_n - 1, tokens_BT.flatten()[after_n], after_n)
        )
        return cls(tokens, before, targets, place)

    @classmethod
    def ends(cls, tokens_BT: Tensor, device: torch.device) -> Self:
        """Use the ends of the rows, after each of which one token can be drawn; `targets_n` and `place_n` are empty."""
        ends_B = torch.arange(1, len(tokens_BT) + 1) * tokens_BT.shape[1] - 1
        none = torch.empty(0, dtype=torch.long, device=device)
        return cls(upload(tokens_BT, device), upload(ends_B, device), none, none)

    @classmethod
    def packed(cls, tokens_BT: Tensor, trained_BT: Tensor, length_B: Tensor, device: torch.device) -> Self:
        """Put all sequences into one row; `length_B` counts the tokens of each, and the rest is as for `padded`."""
        inside_BT = torch.arange(tokens_BT.shape[1]) < length_B[:, None]
        index_BT = (inside_BT.flatten().cumsum(0) - 1).view_as(inside_BT)
        layout = Segments(length_B.tolist(), device)
        return cls._of(tokens_BT, trained_BT, inside_BT.flatten().nonzero()[:, 0], index_BT, layout, device)

    @classmethod
    def shared(
        cls,
        tokens_BT: Tensor,
        trained_BT: Tensor,
        length_B: Tensor,
        prompt_length_B: Tensor,
        prompt_B: Tensor,
        device: torch.device,
    ) -> Self:
        """Put every prompt once into one row, then all completions; the rollouts are ordered by prompt.

        Args:
            tokens_BT: As for `padded`.
            trained_BT: As for `padded`.
            length_B: Tokens of prompt and completion; a completion has at least one token.
            prompt_length_B: Tokens of the prompt.
            prompt_B: A number for each prompt, equal for its rollouts.
            device: Device of the model.
        """
        position_T = torch.arange(tokens_BT.shape[1])
        first_B = torch.cat([torch.ones(1, dtype=torch.bool), prompt_B[1:] != prompt_B[:-1]])
        in_prompt_BT = position_T < prompt_length_B[:, None]
        completion_BT = ~in_prompt_BT & (position_T < length_B[:, None])
        places = [part.flatten().nonzero()[:, 0] for part in (in_prompt_BT & first_B[:, None], completion_BT)]
        prompt_lengths = prompt_length_B[first_B]
        start_B = (prompt_lengths.cumsum(0) - prompt_lengths)[first_B.cumsum(0) - 1]
        index_BT = torch.where(in_prompt_BT, start_B[:, None] + position_T, 0)
        index_BT[completion_BT] = len(places[0]) + torch.arange(len(places[1]))
        layout = SharedPrompts.of(length_B, prompt_length_B, first_B, device)
        return cls._of(tokens_BT, trained_BT, torch.cat(places), index_BT, layout, device)

    def with_nucleus(self, nucleus: tuple[Tensor, Tensor], place_n: Tensor) -> Self:
        """Return these rows with the nucleus of each trained token.

        Args:
            nucleus: (place, id) of every id that could be sampled. A place is an index among the tokens of a batch, of
                which these rows may be a part.
            place_n: Place of each trained token, on the host.
        """
        place_M, id_M = nucleus
        number_N = torch.full((int(max(place_M.max(), place_n.max())) + 1,), -1)
        number_N[place_n] = torch.arange(len(place_n))
        number_M = number_N[place_M]
        kept_M = number_M >= 0
        pairs = (upload(part[kept_M], self.tokens.device) for part in (number_M, id_M))
        return replace(self, nucleus=(next(pairs), next(pairs)))

    @classmethod
    def _of(
        cls,
        tokens_BT: Tensor,
        trained_BT: Tensor,
        chosen_N: Tensor,
        index_BT: Tensor,
        layout: Segments | SharedPrompts,
        device: torch.device,
    ) -> Self:
        """Return the row of the chosen tokens; `index_BT` has the place of each token in it."""
        after_n = trained_BT.flatten().nonzero()[:, 0]
        tokens_1N, positions_1N = tokens_BT.flatten()[chosen_N][None], (chosen_N % tokens_BT.shape[1])[None]
        before_n, targets_n = index_BT.flatten()[after_n - 1], tokens_BT.flatten()[after_n]
        tokens, before, targets, place, positions = (
            upload(part, device) for part in (tokens_1N, before_n, targets_n, after_n, positions_1N)
        )
        return cls(tokens, before, targets, place, positions, layout)
