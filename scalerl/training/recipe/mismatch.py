"""Corrections for a mismatch of trainer and engine, one function per equation: a factor for the loss of every token.

The factors have no gradient. A mask compares ratios only and multiplies by 0 or 1, so a mask and CISPO together are
masked importance sampling: 1[keep] * sg(min(ratio, max_ratio)) * A * log pi. The ratio is trainer / engine for the
current weights, so it includes staleness. Denominators do not change: the token weights (aggregate.py) sum to one
before the mask, because a sum over kept tokens would depend on ratios that no split of the batch knows beforehand.
Legend: B rows (sequences), T tokens; sums and means are over the trained tokens of a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalerl.training.config import mismatch as parts


def no_correction(params: parts.NoCorrection, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of 1 (see `token_mask`)."""
    return torch.ones_like(log_ratio_BT), torch.zeros_like(mask_BT)


def token_mask(params: parts.TokenMask, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1[low <= r_t <= high] (IcePop's M, Ring-1T report, arXiv 2510.18855; low = 0: TRL's token_mask).

    Args:
        params: Parameters of the correction.
        log_ratio_BT: Log-probabilities of the trainer minus the engine's, without gradient.
        mask_BT: Trained tokens.

    Returns:
        factor_BT, and changed_BT, the trained tokens that the correction masked or truncated.
    """
    return _keep(_outside(log_ratio_BT, params.keep), mask_BT)


def sequence_mask(params: parts.SequenceMask, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1[low <= prod_t r_t <= high] (Liu, Li et al. 2025, "When Speed Kills Stability"; verl's rollout_rs)."""
    return _keep(_outside(_sum_B1(log_ratio_BT, mask_BT), params.keep), mask_BT)


def geometric_mask(params: parts.GeometricMask, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1[low <= exp(mean_t log r_t) <= high] (verl, rollout_corr_math.md section 3.3.3)."""
    mean_B1 = _sum_B1(log_ratio_BT, mask_BT) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return _keep(_outside(mean_B1, params.keep), mask_BT)


def reject(params: parts.Reject, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1[low <= min_t r_t and max_t r_t <= high] (verl's veto, rollout_corr_math.md section 3.5)."""
    outside_BT = _outside(log_ratio_BT, params.keep) & mask_BT
    return _keep(outside_BT.any(dim=1, keepdim=True), mask_BT)


def token_truncate(params: parts.TokenTruncate, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return min(r_t, most) (truncated importance sampling: Ionides 2008; Yao et al. 2025 for engine mismatch)."""
    return _truncated(log_ratio_BT, params.most, mask_BT)


def sequence_truncate(params: parts.SequenceTruncate, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return min(prod_t r_t, most) (verl, rollout_corr_math.md section 3.3.2)."""
    return _truncated(_sum_B1(log_ratio_BT, mask_BT), params.most, mask_BT)


def _outside(log_ratio: Tensor, keep: tuple[float, float]) -> Tensor:
    """Return where a ratio is out of bounds; NaN is not, so that the loss stays NaN and the update fails."""
    low, high = (math.log(bound) if bound else -math.inf for bound in keep)
    return (log_ratio < low) | (log_ratio > high)


def _keep(outside: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    outside_BT = outside.expand_as(mask_BT)
    return (~outside_BT).float(), outside_BT & mask_BT


def _truncated(log_ratio: Tensor, most: float, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    factor_BT = log_ratio.clamp(max=math.log(most)).exp().expand_as(mask_BT)
    return factor_BT, (log_ratio > math.log(most)) & mask_BT


def _sum_B1(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, log_ratio_BT, 0.0).sum(dim=1, keepdim=True)


MISMATCH: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "none": no_correction,
    "token-mask": token_mask,
    "sequence-mask": sequence_mask,
    "geometric-mask": geometric_mask,
    "reject": reject,
    "token-truncate": token_truncate,
    "sequence-truncate": sequence_truncate,
}


def correction(params: parts.Mismatch, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the recipe's `mismatch`, and which trained tokens it changed; see `token_mask`."""
    assert log_ratio_BT.ndim == 2 and log_ratio_BT.shape == mask_BT.shape, (log_ratio_BT.shape, mask_BT.shape)
    return MISMATCH[params.kind](params, log_ratio_BT.detach(), mask_BT)
