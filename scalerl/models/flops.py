"""FLOPs of a decoder from token counts. It loads no torch.

Tokens and FLOPs are counted, not timed: they carry no noise and do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the FLOPs of a decoder depend on.

    Example (two full-attention layers): ModelShape(matmul_params=133120.0, attention_width=64, windows=(0, 0))
    """

    matmul_params: float
    """Entries of all matrices a token is multiplied with: active experts only, the head included, embeddings not."""
    attention_width: int
    """Heads x head dimension."""
    windows: tuple[int, ...]
    """Sliding window of each layer in tokens; 0: full attention."""
    frozen_params: float = 0.0
    """Of `matmul_params`, entries without a gradient of their own: those of the model under adapters."""

    def forward_flops(self, first: int, count: int) -> float:
        """Return the FLOPs of the forward pass over `count` tokens of one sequence, the first at position `first`.

        Two a multiply-add: 2 x matrices for each token, and 4 x width x context for scores and mixing of each layer
        (2 x width x context each), where the context of position p is the p + 1 tokens it attends to.
        """
        attended = sum(_context_sum(first, count, window) for window in self.windows)
        return 2.0 * self.matmul_params * count + 4.0 * self.attention_width * attended

    def decode_flops(self, tokens: int, attended: int, longest: int) -> float:
        """Return the FLOPs of one decode step of `tokens` sequences that attend to `attended` tokens together.

        `longest` is the longest of them: where no window cuts it, the sum over sequences need not be taken one by one.
        """
        widths = sum(min(1.0, window / longest) if window else 1.0 for window in self.windows)
        return 2.0 * self.matmul_params * tokens + 4.0 * self.attention_width * attended * widths

    def training_flops(self, count: int, checkpointing: bool = False) -> float:
        """Return the FLOPs of forward and backward over one sequence of `count` tokens.

        Backward is twice forward: every product has a gradient by each of its factors. A frozen matrix has only the one
        by its input, so 2 a token and entry are left out: 4 x frozen instead of 6 x. Those inputs of the first layer
        that need no gradient either are counted.
        """
        whole = self.forward_flops(0, count) * (4.0 if checkpointing else 3.0)
        return whole - 2.0 * self.frozen_params * count


def _context_sum(first: int, count: int, window: int) -> float:
    """Return the sum over positions first..first+count-1 of the number of tokens attended to."""
    if window <= 0 or first + count <= window:
        return count * (first + 1) + count * (count - 1) / 2.0
    growing = max(0, window - first)  # positions whose context is still shorter than the window
    return _context_sum(first, growing, 0) + (count - growing) * float(window)
