"""FLOPs of a decoder from token counts. It loads no torch.

Tokens and FLOPs are counted, not timed: they carry no noise and do not depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

FLOPS_RULE = 2
"""How FLOPs are counted, kept in checkpoints. Rule 1, of checkpoints without a number, counted the head for every token
of a sequence. Totals of two rules do not belong on one axis, so a run keeps the rule it began with."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the FLOPs of a decoder depend on.

    Example (two full-attention layers): ModelShape(matmul_params=133120.0, attention_width=64, windows=(0, 0),
                                                    head_params=2048.0)
    """

    matmul_params: float
    """Entries of all matrices a token is multiplied with: active experts only, the head included, embeddings not."""
    attention_width: int
    """Heads x head dimension."""
    windows: tuple[int, ...]
    """Sliding window of each layer in tokens; 0: full attention."""
    frozen_params: float = 0.0
    """Of `matmul_params`, entries without a gradient of their own: those of the model under adapters."""
    head_params: float = 0.0
    """Those of `matmul_params` that belong to the LM head, which only a position that predicts a token is multiplied
    with. 0: every position counts as one that predicts, as in the rule of runs before this field (FLOPS_RULE)."""

    def forward_flops(self, first: int, count: int, predicted: int = 0) -> float:
        """Return the FLOPs of the forward pass over `count` tokens of one sequence, the first at position `first`.

        Two a multiply-add: 2 x matrices for each token, and 4 x width x context for scores and mixing of each layer
        (2 x width x context each), where the context of position p is the p + 1 tokens it attends to, at most the
        layer's window.

        Args:
            first: position of the first token, counted from 0.
            count: tokens.
            predicted: of them, those whose hidden state goes through the head.
        """
        attended = sum(_context_sum(first, count, window) for window in self.windows)
        body = 2.0 * (self.matmul_params - self.head_params) * count
        return body + 4.0 * self.attention_width * attended + self.head_flops(predicted)

    def head_flops(self, predicted: int) -> float:
        """Return the FLOPs of the head over so many positions."""
        return 2.0 * self.head_params * predicted

    def decode_flops(self, contexts_N: npt.ArrayLike) -> float:
        """Return the FLOPs of one decode step: one token, and one prediction, of each of N sequences.

        Args:
            contexts_N: tokens of each sequence, the one just fed included. A layer attends to all of them, or to as
                many as its window holds.
        """
        contexts = np.asarray(contexts_N, dtype=np.int64)
        attended = sum(
            layers * int(np.minimum(contexts, window).sum() if window else contexts.sum())
            for window, layers in Counter(self.windows).items()
        )
        return 2.0 * self.matmul_params * len(contexts) + 4.0 * self.attention_width * attended

    def counted_by(self, rule: int) -> ModelShape:
        """Return the shape that counts by a rule (FLOPS_RULE): the one that a resumed run began with."""
        return self if rule == FLOPS_RULE else replace(self, head_params=0.0)

    def training_flops(self, count: int, predicted: int = 0, checkpointing: bool = False) -> float:
        """Return the FLOPs of forward and backward over one sequence.

        The backward pass costs two forward passes, and one more where activations are computed again: always in the
        head (models/head.py), elsewhere with gradient checkpointing. Of its two products with every matrix, a frozen
        one has only that for the gradient by its input, so 2 FLOPs a token and entry are left out: 4 instead of 6 in
        all. Adapters freeze the head too. Inputs of the first layer that need no gradient either are counted.

        Args:
            count: tokens of the sequence, prompt included.
            predicted: of them, those that are trained.
            checkpointing: whether the layers' activations are computed again.
        """
        whole = self.forward_flops(0, count) * (4.0 if checkpointing else 3.0) + 4.0 * self.head_flops(predicted)
        if not self.frozen_params:
            return whole
        return whole - 2.0 * (self.frozen_params - self.head_params) * count - self.head_flops(predicted)


def _context_sum(first: int, count: int, window: int) -> float:
    """Return the sum over positions first..first+count-1 of the number of tokens attended to."""
    if window <= 0 or first + count <= window:
        return count * (first + 1) + count * (count - 1) / 2.0
    growing = max(0, window - first)  # positions whose context is still shorter than the window
    return _context_sum(first, growing, 0) + (count - growing) * float(window)
