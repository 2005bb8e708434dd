"""Policy losses, one function per equation: a loss for every token from log-probabilities and advantages.

Aggregation is in aggregate.py. policy_learner.py adds the terms of KL and entropy. The denominator of the ratio is the
log-probability that the generator returned, so the ratio covers both staleness and engine mismatch (ScaleRL eq. 2).
Legend: B rows (sequences), T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalerl.core import plugins
from scalerl.training.config.recipe import Cispo, Custom, Dapo, Grpo, Gspo, Reinforce

LossFn = Callable[[Any, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

LOG_RATIO_LIMIT = 20.0
"""Largest absolute log ratio of a token, or of a rollout in GSPO; exp of a larger one could overflow the products.

CISPO's cap is far below it. The clipped surrogates (DAPO, GRPO, GSPO) bound the ratio on one side only: a large ratio
is not clipped if the advantage is negative, and a small one is not clipped if it is positive. In these cases this limit
cuts the ratio. The token then has no gradient and counts as capped.
"""


def cispo(params: Cispo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Any:
    """Return the loss -sg(min(ratio, max_ratio)) * A * log pi (ScaleRL eq. 4).

    The cap is absolute and bounds the ratio only above. No token is masked: a capped token still has a gradient, with
    the capped weight.

    Args:
        params: Parameters of the loss.
        logp_BT: Log-probabilities under the policy being trained, with gradient.
        behavior_BT: Log-probabilities under the policy that sampled the tokens.
        advantages_B: One advantage per rollout; or [B, T], one per token, with `recipe.turn_credit`.
        mask_BT: Trained tokens.

    Returns:
        loss_BT, and capped_BT, the tokens whose ratio was capped.
    """
    ratio_BT = _ratio(logp_BT.detach(), behavior_BT, advantages_B, mask_BT)
    loss_BT = -ratio_BT.clamp(max=params.max_ratio) * _of_tokens(advantages_B) * logp_BT
    return loss_BT, ratio_BT > params.max_ratio


def clipped_surrogate(
    params: Dapo | Grpo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) (ScaleRL eqs. 3, 7, 8); see `cispo`."""
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return _pessimistic(logp_BT - behavior_BT, _of_tokens(advantages_B), params)


def gspo(
    params: Gspo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate of s = exp(mean_t log ratio), the same for every token of a rollout (GSPO eqs. 5-7).

    The ScaleRL paper writes the plain product of ratios. Thresholds of 1e-3 only make sense for its |y|-th root, which
    the GSPO paper defines and which is used here. Args as for `cispo`.
    """
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    log_ratio_BT = (logp_BT - behavior_BT) * mask_BT
    mean_B = log_ratio_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
    return _pessimistic(mean_B[:, None].expand_as(logp_BT), _of_tokens(advantages_B), params)


def reinforce(
    params: Reinforce, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss -A * log pi, as if every token were on policy; see `cispo`."""
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return -_of_tokens(advantages_B) * logp_BT, torch.zeros_like(mask_BT)


def _of_tokens(advantages_B: Tensor) -> Tensor:
    """Return advantages of rollouts as [B, 1]; those of tokens are unchanged."""
    return advantages_B[:, None] if advantages_B.ndim == 1 else advantages_B


def _pessimistic(log_ratio_BT: Tensor, advantages_BT: Tensor, params: Dapo | Grpo | Gspo) -> tuple[Tensor, Tensor]:
    """Return the loss of the clipped surrogate, and the tokens clipped by the thresholds or by LOG_RATIO_LIMIT."""
    ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    free_BT = ratio_BT * advantages_BT
    clipped_BT = ratio_BT.clamp(1 - params.clip_low, 1 + params.clip_high) * advantages_BT
    beyond_BT = (log_ratio_BT.detach().abs() > LOG_RATIO_LIMIT) & (advantages_BT != 0)
    return -torch.minimum(free_BT, clipped_BT), (clipped_BT < free_BT) | beyond_BT


def _ratio(logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return (logp_BT - behavior_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _check(logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> None:
    assert logp_BT.ndim == 2 and logp_BT.shape == behavior_BT.shape == mask_BT.shape, (logp_BT.shape, mask_BT.shape)
    assert advantages_B.shape in (logp_BT.shape[:1], logp_BT.shape), (advantages_B.shape, logp_BT.shape)


def kl_estimate(logp_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return k3 = r - 1 - log r with r = reference / policy, at least 0 (Schulman 2020; DeepSeekMath eq. 4).

    Over tokens of the policy its mean is KL(policy || reference). Its gradient is (1 - r) that of log pi.

    Args:
        logp_BT: Log-probabilities under the policy, with gradient.
        reference_BT: Log-probabilities under the reference.
        mask_BT: Trained tokens; 0 elsewhere.
    """
    assert logp_BT.shape == reference_BT.shape == mask_BT.shape, (logp_BT.shape, reference_BT.shape)
    log_ratio_BT = ((reference_BT - logp_BT) * mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(log_ratio_BT) - log_ratio_BT


def custom(
    params: Custom, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Call the user's loss function. Args as for `cispo`.

    The function returns loss_BT, or (loss_BT, clipped_BT).

    Raises:
        PluginError: The function raised, or returned a value of another form.
    """
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    function = plugins.loaded(params.function, "recipe.loss.function")
    copies = (part.clone() for part in (logp_BT, behavior_BT, advantages_B, mask_BT))  # the function may modify them
    result = plugins.call(function, params.function, *copies, **params.params)
    loss_BT, clipped_BT = (
        result if isinstance(result, tuple) and len(result) == 2 else (result, torch.zeros_like(mask_BT))
    )
    for part in (loss_BT, clipped_BT):
        if not isinstance(part, Tensor) or part.shape != logp_BT.shape:
            raise plugins.PluginError(
                f"{params.function} returned {plugins.describe(part)}; expected loss_BT, or (loss_BT, clipped_BT), of "
                f"the shape of logp_BT, {tuple(logp_BT.shape)}"
            )
    if not loss_BT.is_floating_point() or clipped_BT.dtype != torch.bool:
        raise plugins.PluginError(
            f"{params.function} returned a loss_BT of {loss_BT.dtype} and a clipped_BT of {clipped_BT.dtype}; expected "
            "a floating-point loss_BT and a clipped_BT of torch.bool"
        )
    return loss_BT, clipped_BT


LOSSES: dict[str, LossFn] = {
    "cispo": cispo,
    "custom": custom,
    "dapo": clipped_surrogate,
    "grpo": clipped_surrogate,
    "gspo": gspo,
    "reinforce": reinforce,
}
