"""Rewards to advantages, and the zero-variance filter. Functions of [P, G] tensors.

Legend: P prompts of the batch, G rollouts of each prompt.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl import plugins
from scalerl.config.recipe import Custom

EPS = 1e-6
"""Keeps a division finite where every reward is the same; the paper states none."""


def batch_normalised(rewards_PG: Tensor) -> Tensor:
    """Centre by prompt, divide by the standard deviation over the whole batch (ScaleRL's J, appendix A.1).

    The batch is taken before the zero-variance filter: prompts without variance lower the deviation. The paper
    leaves the order open; with rewards of +-1 the other order shrinks advantages.
    """
    advantages_PG = centred(rewards_PG)
    return advantages_PG / (advantages_PG.std(correction=0) + EPS)


def group_normalised(rewards_PG: Tensor) -> Tensor:
    """Centre by prompt, divide by the prompt's own standard deviation (GRPO, ScaleRL eq. 3)."""
    return centred(rewards_PG) / (rewards_PG.std(dim=1, keepdim=True, correction=0) + EPS)


def centred(rewards_PG: Tensor) -> Tensor:
    """Subtract each prompt's mean reward and divide by nothing (Dr. GRPO)."""
    assert rewards_PG.ndim == 2, rewards_PG.shape
    return rewards_PG - rewards_PG.mean(dim=1, keepdim=True)


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "batch": batch_normalised,
    "group": group_normalised,
    "none": centred,
}


def advantages(choice: str | Custom, rewards_PG: Tensor) -> Tensor:
    """Return advantages_PG by the recipe's choice: a name in ADVANTAGES, or a function of the user.

    Raises:
        PluginError: the function raised, or returned something of another shape or not finite.
    """
    if isinstance(choice, str):
        return ADVANTAGES[choice](rewards_PG)
    function = plugins.loaded(choice.function, "recipe.advantage.function")
    found_PG = plugins.call(function, choice.function, rewards_PG.clone(), **choice.params)
    fits = isinstance(found_PG, Tensor) and found_PG.shape == rewards_PG.shape and found_PG.is_floating_point()
    if not isinstance(found_PG, Tensor) or not fits or not bool(found_PG.isfinite().all()):
        raise plugins.PluginError(
            f"{choice.function} returned {plugins.describe(found_PG)}; expected finite advantages_PG of the shape of "
            f"rewards_PG, {tuple(rewards_PG.shape)}, in floating point"
        )
    return found_PG


def of_trained(rewards_PG: Tensor, trained_PG: Tensor) -> Tensor:
    """Return rewards_PG in which a rollout that carries no loss has the reward of one of its prompt's that does.

    The zero-variance filter then sees the trained rollouts alone. Without this a prompt whose failures are all
    truncated, and so masked, would be trained on its successes only: every advantage in its loss would be positive.

    Args:
        rewards_PG: of all rollouts.
        trained_PG: bool; the rollouts that may carry loss. Where a prompt has none, its first reward stands for all.
    """
    assert rewards_PG.shape == trained_PG.shape and trained_PG.dtype == torch.bool, (rewards_PG.shape, trained_PG.shape)
    some_P1 = rewards_PG.gather(1, trained_PG.int().argmax(dim=1, keepdim=True))
    return torch.where(trained_PG, rewards_PG, some_P1)


def with_variance(rewards_PG: Tensor) -> Tensor:
    """Return keep_P: prompts whose rewards differ by more than float rounding."""
    return rewards_PG.amax(dim=1) - rewards_PG.amin(dim=1) > EPS


def every_prompt(rewards_PG: Tensor) -> Tensor:
    """Return keep_P that keeps all."""
    return torch.ones(len(rewards_PG), dtype=torch.bool, device=rewards_PG.device)


ZERO_VARIANCE: dict[str, Callable[[Tensor], Tensor]] = {"drop": with_variance, "keep": every_prompt}
