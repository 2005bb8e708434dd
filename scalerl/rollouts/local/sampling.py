"""Sampling of tokens from logits with one uniform number per token.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Draw a token for each row by inverting the cumulative distribution.

    Args:
        logits_BV: Logits in FP32.
        uniforms_B: Uniform numbers in [0, 1), float64.
        temperature: Divisor of the logits; 0 is greedy.
        top_p: Total probability that the most likely tokens must reach; the others are not drawn.

    Returns:
        tokens_B, and their log-probabilities under the tempered distribution before top-p. The trainer computes the
        same log-probabilities, so that the ratio is 1 on policy.
    """
    assert logits_BV.ndim == 2 and uniforms_B.shape == logits_BV.shape[:1], (logits_BV.shape, uniforms_B.shape)
    if temperature == 0:
        logps_BV = logits_BV.log_softmax(dim=1)
        tokens_B1 = logits_BV.argmax(dim=1, keepdim=True)
    else:
        logps_BV = (logits_BV if temperature == 1 else logits_BV / temperature).log_softmax(dim=1)
        tokens_B1 = _invert(logps_BV, uniforms_B) if top_p >= 1 else _invert_nucleus(logps_BV, uniforms_B, top_p)
    return tokens_B1[:, 0], logps_BV.gather(1, tokens_B1)[:, 0]


def _invert(logps_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    # float64, because a float32 running sum over 150,000 tokens has rounding errors larger than most probabilities
    cumulative_BV = logps_BV.exp().double().cumsum(dim=1)
    threshold_B1 = (uniforms_B * cumulative_BV[:, -1])[:, None]
    return torch.searchsorted(cumulative_BV, threshold_B1, right=True).clamp(max=logps_BV.shape[1] - 1)


def _invert_nucleus(logps_BV: Tensor, uniforms_B: Tensor, top_p: float) -> Tensor:
    sorted_BV, order_BV = logps_BV.sort(dim=1, descending=True, stable=True)
    probability_BV = sorted_BV.exp().double()
    before_BV = probability_BV.cumsum(dim=1) - probability_BV
    inside_BV = torch.where(before_BV < top_p, sorted_BV, -torch.inf)
    return order_BV.gather(1, _invert(inside_BV, uniforms_B))
