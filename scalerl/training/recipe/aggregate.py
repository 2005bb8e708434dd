"""Loss aggregation as token weights that sum to one.

With loss = sum(loss_BT * weights_BT), any split over micro-batches or ranks gives the same gradient, and masked tokens
do not enter the denominator. Legend: B rows (sequences), T tokens, P prompts; mask_BT is true for trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.core import plugins
from scalerl.training.config.recipe import Custom


def prompt_mean(mask_BT: Tensor, prompt_B: Tensor) -> Tensor:
    """Weigh prompts equally, and tokens equally within a prompt (ScaleRL, DAPO: 1/P sum_p sum_it l / sum_i |y_i|).

    Args:
        mask_BT: Trained tokens.
        prompt_B: Index in 0..P-1 of the prompt of each rollout.
    """
    tokens_B = _tokens(mask_BT, prompt_B)
    tokens_P = torch.zeros(int(prompt_B.max()) + 1, device=mask_BT.device).index_add_(0, prompt_B, tokens_B)
    return _share(mask_BT, tokens_P[prompt_B] * (tokens_P > 0).sum())


def sample_mean(mask_BT: Tensor, prompt_B: Tensor, rollout_B: Tensor | None = None) -> Tensor:
    """Weigh rollouts equally, and tokens equally within a rollout (GRPO: 1/B sum_i 1/|y_i| sum_t l).

    Args:
        mask_BT: Trained tokens.
        prompt_B: Index of the prompt of each row.
        rollout_B: Index of the rollout of each row, from 0 on; None: each row is one. All rows of a rollout together
            weigh as much as another rollout.
    """
    return prompt_mean(mask_BT, torch.arange(len(mask_BT), device=mask_BT.device) if rollout_B is None else rollout_B)


def token_mean(mask_BT: Tensor, prompt_B: Tensor) -> Tensor:
    """Weigh all tokens of the batch equally."""
    tokens_B = _tokens(mask_BT, prompt_B)
    return _share(mask_BT, tokens_B.sum().expand_as(tokens_B))


def _tokens(mask_BT: Tensor, prompt_B: Tensor) -> Tensor:
    assert mask_BT.ndim == 2 and mask_BT.dtype == torch.bool, (mask_BT.shape, mask_BT.dtype)
    assert prompt_B.shape == mask_BT.shape[:1], (prompt_B.shape, mask_BT.shape)
    return mask_BT.sum(dim=1).float()


def _share(mask_BT: Tensor, denominator_B: Tensor) -> Tensor:
    """Return mask / denominator; a rollout without trained tokens has a denominator of zero and gets no weight."""
    return mask_BT / denominator_B.clamp(min=1.0)[:, None]


AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "prompt": prompt_mean,
    "sample": sample_mean,
    "token": token_mean,
}


def token_weights(choice: str | Custom, mask_BT: Tensor, prompt_B: Tensor, rollout_B: Tensor | None = None) -> Tensor:
    """Return weights_BT by the recipe's choice: a name in AGGREGATIONS, or a user's function.

    Args:
        choice: The recipe's `aggregation`.
        mask_BT: Trained tokens.
        prompt_B: Index in 0..P-1 of the prompt of each row.
        rollout_B: Index of the rollout of each row, if some have several; a user's function does not get it.

    Raises:
        PluginError: The function raised, or its weights have another shape, are negative, are not zero outside the
            mask or do not sum to one (to zero if no token is trained).
    """
    if isinstance(choice, str):
        return AGGREGATIONS[choice](mask_BT, prompt_B, *([rollout_B] if choice == "sample" else []))
    function = plugins.loaded(choice.function, "recipe.aggregation.function")
    weights_BT = plugins.call(function, choice.function, mask_BT.clone(), prompt_B.clone(), **choice.params)
    expected = f"expected weights_BT of the shape of mask_BT, {tuple(mask_BT.shape)}"
    fits = isinstance(weights_BT, Tensor) and weights_BT.shape == mask_BT.shape
    if not isinstance(weights_BT, Tensor) or not fits or not weights_BT.is_floating_point():
        raise plugins.PluginError(f"{choice.function} returned {plugins.describe(weights_BT)}; {expected}")
    total, expected_sum = float(weights_BT.sum()), float(mask_BT.any())
    if not abs(total - expected_sum) < 1e-3 or bool((weights_BT < 0).any()) or bool((weights_BT[~mask_BT] != 0).any()):
        raise plugins.PluginError(
            f"{choice.function} returned weights that sum to {total:g}; {expected}, at least 0, zero outside "
            f"the mask, and with the sum {expected_sum:g}, so that any split of the batch gives the same gradient"
        )
    return weights_BT
