"""Policy losses, one function an equation: log-probabilities and advantages to a loss for every token.

Aggregation is in aggregate.py; there is no KL and no entropy term. The ratio is trainer over generator: its
denominator is the log-probability that the generator returned, so that one ratio covers staleness and engine mismatch
(ScaleRL eq. 2). Legend: B rollouts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalerl import plugins
from scalerl.config.recipe import Cispo, Custom, Dapo, Grpo, Gspo, Reinforce

LossFn = Callable[[Any, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

LOG_RATIO_LIMIT = 20.0
"""Largest log ratio in absolute value, of a token or of a GSPO rollout: exp of more overflows the products below.

CISPO's cap lies far below. The clipped surrogates (DAPO, GRPO, GSPO) bound the ratio on one side only: with a negative
advantage a large ratio stays as it is, with a positive one a small ratio does. There this limit cuts the ratio, the
token has no gradient, and it counts as capped.
"""


def cispo(params: Cispo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Any:
    """-sg(min(ratio, max_ratio)) * A * log pi (ScaleRL eq. 4). The cap is absolute and on the upper side only.

    No token is masked, whatever its ratio: a capped token still pushes log pi, with the capped weight.

    Args:
        params: the loss's own record.
        logp_BT: log-probabilities under the policy being trained, with gradient.
        behavior_BT: log-probabilities under the policy that sampled.
        advantages_B: one advantage a rollout.
        mask_BT: trained tokens.

    Returns:
        loss_BT, and capped_BT: tokens whose ratio was cut.
    """
    ratio_BT = _ratio(logp_BT.detach(), behavior_BT, advantages_B, mask_BT)
    loss_BT = -ratio_BT.clamp(max=params.max_ratio) * advantages_B[:, None] * logp_BT
    return loss_BT, ratio_BT > params.max_ratio


def clipped_surrogate(
    params: Dapo | Grpo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) a token (ScaleRL eqs. 3, 7, 8). Args as `cispo`."""
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return _pessimistic(logp_BT - behavior_BT, advantages_B[:, None], params)


def gspo(
    params: Gspo, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate on s = exp(mean_t log ratio), the same for every token of a rollout (GSPO eqs. 5-7).

    The paper writes the plain product of ratios; thresholds of 1e-3 only make sense for its |y|-th root, which GSPO
    defines and which is used here. Args as `cispo`.
    """
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    log_ratio_BT = (logp_BT - behavior_BT) * mask_BT
    mean_B = log_ratio_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
    return _pessimistic(mean_B[:, None].expand_as(logp_BT), advantages_B[:, None], params)


def reinforce(
    params: Reinforce, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """-A * log pi, as if every token were on policy. Args as `cispo`."""
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return -advantages_B[:, None] * logp_BT, torch.zeros_like(mask_BT)


def _pessimistic(log_ratio_BT: Tensor, advantages_B1: Tensor, params: Dapo | Grpo | Gspo) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate's loss, and the tokens whose ratio was cut by the clip or by LOG_RATIO_LIMIT."""
    ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    free_BT = ratio_BT * advantages_B1
    clipped_BT = ratio_BT.clamp(1 - params.clip_low, 1 + params.clip_high) * advantages_B1
    beyond_BT = (log_ratio_BT.detach().abs() > LOG_RATIO_LIMIT) & (advantages_B1 != 0)
    return -torch.minimum(free_BT, clipped_BT), (clipped_BT < free_BT) | beyond_BT


def _ratio(logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    return (logp_BT - behavior_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _check(logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> None:
    assert logp_BT.ndim == 2 and logp_BT.shape == behavior_BT.shape == mask_BT.shape, (logp_BT.shape, mask_BT.shape)
    assert advantages_B.shape == logp_BT.shape[:1], (advantages_B.shape, logp_BT.shape)


def custom(
    params: Custom, logp_BT: Tensor, behavior_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what a function of the user makes of the same tensors. Args as `cispo`.

    The function returns loss_BT, or (loss_BT, clipped_BT).

    Raises:
        PluginError: it raised, or returned something else.
    """
    _check(logp_BT, behavior_BT, advantages_B, mask_BT)
    function = plugins.loaded(params.function, "recipe.loss.function")
    given = (part.clone() for part in (logp_BT, behavior_BT, advantages_B, mask_BT))  # it may write into them
    found = plugins.call(function, params.function, *given, **params.params)
    loss_BT, clipped_BT = found if isinstance(found, tuple) and len(found) == 2 else (found, torch.zeros_like(mask_BT))
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
