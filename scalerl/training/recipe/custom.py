"""Check of a user's functions on a made-up batch before training.

Legend: P prompts, G rollouts per prompt, B = P x G, T tokens.
"""

from __future__ import annotations

import torch

from scalerl.core import plugins
from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Custom, CustomLoss, Recipe
from scalerl.training.recipe.advantages import advantages
from scalerl.training.recipe.aggregate import token_weights
from scalerl.training.recipe.losses import custom

TENSORS = {
    "loss": ("logp_BT", "behavior_BT", "advantages_B", "mask_BT"),
    "advantage": ("rewards_PG",),
    "aggregation": ("mask_BT", "prompt_B"),
}
"""Positional arguments of each kind of function; the user's parameters follow as keyword arguments."""


def check_functions(recipe: Recipe) -> None:
    """Call each of the user's functions on a batch of two prompts with three rollouts of up to five tokens.

    Raises:
        ConfigError: A function cannot be imported, takes other arguments, raises, or returns an unexpected value.
    """
    plugins.loaded.cache_clear()  # a notebook may have changed the module since its last run
    for part in TENSORS:
        custom = getattr(recipe, part)
        if isinstance(custom, Custom):
            _check_signature(part, custom)
    rewards_PG = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0]])
    mask_BT = torch.arange(5) < torch.tensor([1, 2, 3, 4, 5, 5])[:, None]
    prompt_B = torch.tensor([0, 0, 0, 1, 1, 1])
    try:
        rewards_PKG = rewards_PG[:, None]
        advantages_B = advantages(recipe.advantage, rewards_PKG, rewards_PKG.isfinite()).view(-1)
        token_weights(recipe.aggregation, mask_BT, prompt_B)
        if isinstance(recipe.loss, CustomLoss):
            per_turn = recipe.turn_credit.kind != "outcome"
            _check_loss(recipe.loss, advantages_B[:, None].repeat(1, 5) if per_turn else advantages_B, mask_BT)
            _check_direction(recipe.loss, mask_BT, per_turn)
    except plugins.PluginError as error:
        raise ConfigError(f"recipe: on a made-up batch of 2 prompts with 3 rollouts, {error}") from None


def _check_signature(part: str, custom: Custom) -> None:
    field = f"recipe.{part}"
    function = plugins.load_function(custom.function, f"{field}.function")
    plugins.check_arguments(function, custom.function, field, TENSORS[part], custom.params)
    signature = plugins.signature_of(function)
    names = [*signature.parameters][: len(TENSORS[part])] if signature is not None else []
    for name, given in zip(names, TENSORS[part], strict=False):
        if name != given and name in TENSORS[part]:
            raise ConfigError(
                f"{field}: {custom.function} has {name} in the place of {given}; the order is "
                f"({', '.join(TENSORS[part])})"
            )


def _check_direction(loss: CustomLoss, mask_BT: torch.Tensor, per_turn: bool) -> None:
    """Check that a step of gradient descent raises the probability of tokens with a positive advantage.

    Of a loss that only lowers those with a negative one, the gradient of the others is zero, which passes.
    """
    if loss.any_direction:
        return
    advantages_B = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    logp_BT, behavior_BT = _made_up(mask_BT)
    good_BT = mask_BT & (advantages_B[:, None] > 0)
    given = advantages_B[:, None].repeat(1, mask_BT.shape[1]) if per_turn else advantages_B
    loss_BT, _ = custom(loss, logp_BT, behavior_BT, given, mask_BT)
    (slope_BT,) = torch.autograd.grad(loss_BT[mask_BT].sum(), logp_BT)
    raised = -float(slope_BT[good_BT].sum())
    if raised < 0:
        raise plugins.PluginError(
            f"a step with {loss.function} lowers the probability of tokens with a positive advantage (their log-"
            f"probabilities change by {raised / int(good_BT.sum()):.2g} times the learning rate; allowed: 0 or more). "
            "Check the sign, which is that of a loss to minimize, and the order of logp_BT, of the policy in training, "
            "and behavior_BT. If it is meant, set recipe.loss.any_direction = true"
        )


def _made_up(mask_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities with gradient, and those of a policy that is a little older."""
    generator = torch.Generator().manual_seed(0)
    logp_BT = -torch.rand(mask_BT.shape, generator=generator)
    behavior_BT = logp_BT + 0.1 * torch.randn(mask_BT.shape, generator=generator)
    return logp_BT.requires_grad_(), behavior_BT


def _check_loss(loss: Custom, advantages_B: torch.Tensor, mask_BT: torch.Tensor) -> None:
    logp_BT, behavior_BT = _made_up(mask_BT)
    loss_BT, _ = custom(loss, logp_BT, behavior_BT, advantages_B, mask_BT)
    if not bool(loss_BT[mask_BT].isfinite().all()):
        raise plugins.PluginError(f"{loss.function} returned a loss that is not finite; expected a number per token")
    if not loss_BT.requires_grad:
        raise plugins.PluginError(
            f"{loss.function} returned a loss without a gradient; expected one that is computed from logp_BT"
        )
