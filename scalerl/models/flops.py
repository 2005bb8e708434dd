"""FLOPs of a decoder, computed from token counts. torch is not imported.

Tokens and FLOPs are counted, not measured, so they have no noise and do not depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

FLOPS_RULE = 2
"""Version of the counting rule, saved in checkpoints. Rule 1, of checkpoints without this number, counts the head for
every token of a sequence. Totals by different rules are not comparable, so a run keeps the rule it started with."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder that determine its FLOPs.

    Example (two full-attention layers): ModelShape(matmul_params=133120.0, attention_width=64, windows=(0, 0),
                                                    head_params=2048.0)
    """

    matmul_params: float
    """Entries of all matrices that multiply a token: with the head, with active experts only, without embeddings."""
    attention_width: int
    """Heads x head dimension."""
    windows: tuple[int, ...]
    """Sliding window of each layer in tokens; 0 for full attention."""
    frozen_params: float = 0.0
    """Entries of `matmul_params` without a gradient: the weights of the base model when adapters are trained."""
    head_params: float = 0.0
    """Entries of `matmul_params` in the LM head, which multiplies only positions that predict a token. With 0, every
    position counts as predicting, as in rule 1 (FLOPS_RULE)."""

    def forward_flops(self, first: int, count: int, predicted: int = 0) -> float:
        """Return the FLOPs of the forward pass over `count` tokens of one sequence, the first at position `first`.

        A multiply-add counts as two FLOPs. Each token costs 2 x matrix entries, and in each layer 2 x width x context
        for the attention scores and as much for the weighted sum. The context of position p is the p + 1 tokens that it
        attends to, at most the layer's window.

        Args:
            first: Position of the first token, counted from 0.
            count: Number of tokens.
            predicted: Number of these tokens whose hidden state goes through the head.
        """
        attended = sum(_context_sum(first, count, window) for window in self.windows)
        body = 2.0 * (self.matmul_params - self.head_params) * count
        return body + 4.0 * self.attention_width * attended + self.head_flops(predicted)

    def head_flops(self, predicted: int) -> float:
        """Return the FLOPs of the head over `predicted` positions."""
        return 2.0 * self.head_params * predicted

    def decode_flops(self, contexts_N: npt.ArrayLike) -> float:
        """Return the FLOPs of one decode step: one token and one prediction for each of N sequences.

        Args:
            contexts_N: Tokens of each sequence, including the current input token. A layer attends to all of them, or
                to as many as its window holds.
        """
        contexts = np.asarray(contexts_N, dtype=np.int64)
        attended = sum(
            layers * int(np.minimum(contexts, window).sum() if window else contexts.sum())
            for window, layers in Counter(self.windows).items()
        )
        return 2.0 * self.matmul_params * len(contexts) + 4.0 * self.attention_width * attended

    def counted_by(self, rule: int) -> ModelShape:
        """Return the shape that counts by the given rule (FLOPS_RULE), such as the one a resumed run started with."""
        return self if rule == FLOPS_RULE else replace(self, head_params=0.0)

    def training_flops(self, count: int, predicted: int = 0, checkpointing: bool = False) -> float:
        """Return the FLOPs of forward and backward over one sequence.

        The backward pass costs two forward passes. Recomputed activations cost one more: always in the head
        (models/head.py), and in the layers with gradient checkpointing. A frozen matrix needs no weight gradient, which
        saves 2 of 6 FLOPs per token and entry. Adapters freeze the head too. Gradients for the inputs of the first
        layer are counted although they may not be needed.

        Args:
            count: Tokens of the sequence, including the prompt.
            predicted: Number of these tokens that are trained.
            checkpointing: Whether the layers recompute their activations.
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
