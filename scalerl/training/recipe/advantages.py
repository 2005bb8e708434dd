"""Advantages and the zero-variance filter, as functions of [P, K, G] rewards.

Legend: P prompts of the batch, K turns (1 without `recipe.turn_credit`), G rollouts of each prompt. counted_PKG is true
for turns of rollouts with a reward; the others enter neither means nor standard deviations, and their advantage is 0.
Means are over the rollouts that have the turn, standard deviations over turns too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.core import plugins
from scalerl.training.config.recipe import Custom

EPS = 1e-6
"""Added to standard deviations (the paper states no value), and the rounding of rewards.

Rewards of a prompt are equal if they differ by at most this share of the largest absolute reward, or of 1 if all are
smaller. It is 8 times the spacing of float32 numbers.
"""


def batch_normalized(rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Center by prompt and divide by the standard deviation over the whole batch (ScaleRL's J, appendix A.1).

    The standard deviation is computed before the zero-variance filter, so prompts without variance lower it. The paper
    leaves the order open; with rewards of +-1 the other order gives smaller advantages.
    """
    deviations_PKG = _deviations(rewards_PKG, counted_PKG)
    counted_N = deviations_PKG[counted_PKG]
    scale = counted_N.std(correction=0) if len(counted_N) else 0.0
    return (deviations_PKG / (scale + EPS)).to(rewards_PKG.dtype)


def group_normalized(rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Center by prompt and divide by the standard deviation of the prompt's rewards (GRPO, ScaleRL eq. 3)."""
    deviations_PKG = _deviations(rewards_PKG, counted_PKG)
    count_P = counted_PKG.flatten(1).sum(dim=1).clamp(min=1)
    scale_P = ((deviations_PKG**2).flatten(1).sum(dim=1) / count_P).sqrt()
    return (deviations_PKG / (scale_P + EPS)[:, None, None]).to(rewards_PKG.dtype)


def centered(rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Subtract each prompt's mean reward, without any division (Dr. GRPO)."""
    return _deviations(rewards_PKG, counted_PKG).to(rewards_PKG.dtype)


def _deviations(rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Return the deviations from each prompt's mean in float64, exactly zero for a prompt with equal rewards.

    In float32, the mean of equal rewards is off by rounding, and a division by EPS turns this into an advantage.
    """
    assert rewards_PKG.ndim == 3 and rewards_PKG.shape == counted_PKG.shape, (rewards_PKG.shape, counted_PKG.shape)
    exact_PKG, mean_PK1 = rewards_PKG.double(), _means(rewards_PKG, counted_PKG)
    differ_PK1 = _differ(of_trained(rewards_PKG, counted_PKG))
    return (exact_PKG - mean_PK1) * (differ_PK1 & counted_PKG)


def _means(rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Return each prompt's mean reward mean_PK1 in float64; 0 for a prompt without a reward."""
    sums_PK1 = (rewards_PKG.double() * counted_PKG).sum(dim=-1, keepdim=True)
    return sums_PK1 / counted_PKG.sum(dim=-1, keepdim=True).clamp(min=1)


ADVANTAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "batch": batch_normalized,
    "group": group_normalized,
    "none": centered,
}


def advantages(choice: str | Custom, rewards_PKG: Tensor, counted_PKG: Tensor) -> Tensor:
    """Return advantages_PKG by the recipe's choice, a name in ADVANTAGES or a user's function.

    A user's function gets the rewards_PG of one turn at a time, with the mean reward of the prompt for rollouts without
    a reward.

    Raises:
        PluginError: The function raised, or returned a tensor of another shape or with values that are not finite.
    """
    if isinstance(choice, str):
        return ADVANTAGES[choice](rewards_PKG, counted_PKG)
    function = plugins.loaded(choice.function, "recipe.advantage.function")
    neutral_PKG = torch.where(counted_PKG, rewards_PKG, _means(rewards_PKG, counted_PKG).to(rewards_PKG.dtype))
    of_turns = neutral_PKG.unbind(1)
    turns = [plugins.call(function, choice.function, rewards_PG, **choice.params) for rewards_PG in of_turns]
    for found_PG in turns:
        fits = isinstance(found_PG, Tensor) and found_PG.shape == of_turns[0].shape
        if not fits or not found_PG.is_floating_point() or not bool(found_PG.isfinite().all()):
            raise plugins.PluginError(
                f"{choice.function} returned {plugins.describe(found_PG)}; expected finite advantages_PG of the shape "
                f"of rewards_PG, {tuple(of_turns[0].shape)}, in floating point"
            )
    return torch.stack(turns, dim=1) * counted_PKG


def of_trained(rewards_PKG: Tensor, trained_PKG: Tensor) -> Tensor:
    """Replace the rewards of rollouts without loss with the reward of a trained rollout of the same prompt.

    The zero-variance filter then considers only the trained rollouts. Without this, a prompt whose failures are all
    truncated, and therefore masked, would be trained on its successes only, with positive advantages.

    Args:
        rewards_PKG: Rewards of all rollouts.
        trained_PKG: Boolean mask of the rollouts that may carry loss. If a prompt has none, its first reward is used.
    """
    assert rewards_PKG.shape == trained_PKG.shape and trained_PKG.dtype == torch.bool, trained_PKG.shape
    some_PK1 = rewards_PKG.gather(-1, trained_PKG.int().argmax(dim=-1, keepdim=True))
    return torch.where(trained_PKG, rewards_PKG, some_PK1)


def with_variance(rewards_PKG: Tensor) -> Tensor:
    """Return keep_P, which is true for prompts whose rewards differ, at any turn, by more than rounding (see EPS)."""
    return _differ(rewards_PKG).flatten(1).any(dim=1)


def _differ(rewards_PKG: Tensor) -> Tensor:
    """Return differ_PK1, which is true where the rewards of rollouts differ by more than rounding (see EPS)."""
    scale_PK1 = rewards_PKG.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)
    return rewards_PKG.amax(dim=-1, keepdim=True) - rewards_PKG.amin(dim=-1, keepdim=True) > EPS * scale_PK1


def every_prompt(rewards_PKG: Tensor) -> Tensor:
    """Return keep_P, which is true for all prompts."""
    return torch.ones(len(rewards_PKG), dtype=torch.bool, device=rewards_PKG.device)


ZERO_VARIANCE: dict[str, Callable[[Tensor], Tensor]] = {"drop": with_variance, "keep": every_prompt}
