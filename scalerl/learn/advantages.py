"""Advantages and the zero-variance filter, as functions of [P, G] rewards.

Legend: P prompts of the batch, G rollouts of each prompt. counted_PG is true for rollouts with a reward; the others
enter neither means nor standard deviations, and their advantage is 0. With `recipe.turn_credit`, each function takes
[P, K, G] for K turns: means are over the rollouts that have the turn, standard deviations over turns too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.config.recipe import Custom
from scalerl.core import plugins

EPS = 1e-6
"""Added to standard deviations (the paper states no value), and the rounding of rewards.

Rewards of a prompt are equal if they differ by at most this share of the largest absolute reward, or of 1 if all are
smaller. It is 8 times the spacing of float32 numbers.
"""


def batch_normalized(rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Center by prompt and divide by the standard deviation over the whole batch (ScaleRL's J, appendix A.1).

    The standard deviation is computed before the zero-variance filter, so prompts without variance lower it. The paper
    leaves the order open; with rewards of +-1 the other order gives smaller advantages.
    """
    deviations_PG = _deviations(rewards_PG, counted_PG)
    counted_N = deviations_PG[counted_PG]
    scale = counted_N.std(correction=0) if len(counted_N) else 0.0
    return (deviations_PG / (scale + EPS)).to(rewards_PG.dtype)


def group_normalized(rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Center by prompt and divide by the standard deviation of the prompt's rewards (GRPO, ScaleRL eq. 3)."""
    deviations_PG = _deviations(rewards_PG, counted_PG)
    count_P = counted_PG.flatten(1).sum(dim=1).clamp(min=1)
    scale_P = ((deviations_PG**2).flatten(1).sum(dim=1) / count_P).sqrt()
    return (deviations_PG / (scale_P + EPS).view(-1, *[1] * (rewards_PG.ndim - 1))).to(rewards_PG.dtype)


def centered(rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Subtract each prompt's mean reward, without any division (Dr. GRPO)."""
    return _deviations(rewards_PG, counted_PG).to(rewards_PG.dtype)


def _deviations(rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Return the deviations from each prompt's mean in float64, exactly zero for a prompt with equal rewards.

    In float32, the mean of equal rewards is off by rounding, and a division by EPS turns this into an advantage.
    """
    assert rewards_PG.ndim in (2, 3) and rewards_PG.shape == counted_PG.shape, (rewards_PG.shape, counted_PG.shape)
    exact_PG, mean_P1 = rewards_PG.double(), _means(rewards_PG, counted_PG)
    differ_P1 = _differ(of_trained(rewards_PG, counted_PG))
    return (exact_PG - mean_P1) * (differ_P1 & counted_PG)


def _means(rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Return each prompt's mean reward mean_P1 in float64; 0 for a prompt without a reward."""
    sums_P1 = (rewards_PG.double() * counted_PG).sum(dim=-1, keepdim=True)
    return sums_P1 / counted_PG.sum(dim=-1, keepdim=True).clamp(min=1)


ADVANTAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "batch": batch_normalized,
    "group": group_normalized,
    "none": centered,
}


def advantages(choice: str | Custom, rewards_PG: Tensor, counted_PG: Tensor) -> Tensor:
    """Return advantages_PG by the recipe's choice, a name in ADVANTAGES or a user's function.

    A user's function gets the mean reward of the prompt for rollouts without a reward, and the turns of [P, K, G] one
    at a time.

    Raises:
        PluginError: The function raised, or returned a tensor of another shape or with values that are not finite.
    """
    if isinstance(choice, str):
        return ADVANTAGES[choice](rewards_PG, counted_PG)
    if rewards_PG.ndim == 3:
        turns = zip(rewards_PG.unbind(1), counted_PG.unbind(1), strict=True)
        return torch.stack([advantages(choice, *turn) for turn in turns], dim=1)
    function = plugins.loaded(choice.function, "recipe.advantage.function")
    neutral_PG = torch.where(counted_PG, rewards_PG, _means(rewards_PG, counted_PG).to(rewards_PG.dtype))
    found_PG = plugins.call(function, choice.function, neutral_PG, **choice.params)
    fits = isinstance(found_PG, Tensor) and found_PG.shape == rewards_PG.shape and found_PG.is_floating_point()
    if not isinstance(found_PG, Tensor) or not fits or not bool(found_PG.isfinite().all()):
        raise plugins.PluginError(
            f"{choice.function} returned {plugins.describe(found_PG)}; expected finite advantages_PG of the shape of "
            f"rewards_PG, {tuple(rewards_PG.shape)}, in floating point"
        )
    return found_PG * counted_PG


def of_trained(rewards_PG: Tensor, trained_PG: Tensor) -> Tensor:
    """Replace the rewards of rollouts without loss with the reward of a trained rollout of the same prompt.

    The zero-variance filter then considers only the trained rollouts. Without this, a prompt whose failures are all
    truncated, and therefore masked, would be trained on its successes only, with positive advantages.

    Args:
        rewards_PG: Rewards of all rollouts.
        trained_PG: Boolean mask of the rollouts that may carry loss. If a prompt has none, its first reward is used.
    """
    assert rewards_PG.shape == trained_PG.shape and trained_PG.dtype == torch.bool, (rewards_PG.shape, trained_PG.shape)
    some_P1 = rewards_PG.gather(-1, trained_PG.int().argmax(dim=-1, keepdim=True))
    return torch.where(trained_PG, rewards_PG, some_P1)


def with_variance(rewards_PG: Tensor) -> Tensor:
    """Return keep_P, which is true for prompts whose rewards differ, at any turn, by more than rounding (see EPS)."""
    return _differ(rewards_PG).flatten(1).any(dim=1)


def _differ(rewards_PG: Tensor) -> Tensor:
    """Return differ_P1, which is true where the rewards of rollouts differ by more than rounding (see EPS)."""
    scale_P1 = rewards_PG.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)
    return rewards_PG.amax(dim=-1, keepdim=True) - rewards_PG.amin(dim=-1, keepdim=True) > EPS * scale_P1


def every_prompt(rewards_PG: Tensor) -> Tensor:
    """Return keep_P, which is true for all prompts."""
    return torch.ones(len(rewards_PG), dtype=torch.bool, device=rewards_PG.device)


ZERO_VARIANCE: dict[str, Callable[[Tensor], Tensor]] = {"drop": with_variance, "keep": every_prompt}
