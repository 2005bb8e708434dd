"""Custom losses, advantages and aggregations by import path."""

import pytest
import torch

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import replace
from scalerl.training.config.recipe import SCALERL, Custom, CustomLoss, Reinforce
from scalerl.training.recipe.advantages import advantages
from scalerl.training.recipe.aggregate import token_weights
from scalerl.training.recipe.custom import check_functions
from scalerl.training.recipe.losses import LOSSES, custom

MODULE = """
    import torch

    def capped(logp_BT, behavior_BT, advantages_B, mask_BT, max_ratio=5.0):
        ratio_BT = (logp_BT.detach() - behavior_BT).exp()
        return -ratio_BT.clamp(max=max_ratio) * advantages_B[:, None] * logp_BT, ratio_BT > max_ratio

    def ranks(rewards_PG, scale=1.0):
        return scale * (rewards_PG - rewards_PG.median(dim=1, keepdim=True).values)

    def last_token(mask_BT, prompt_B):
        last_BT = mask_BT & (mask_BT.cumsum(1) == mask_BT.sum(1, keepdim=True))
        return last_BT / last_BT.sum().clamp(min=1)

    def wrong_sign(logp_BT, behavior_BT, advantages_B, mask_BT):
        return advantages_B[:, None] * logp_BT

    def swapped_ratio(logp_BT, behavior_BT, advantages_B, mask_BT):
        return -(behavior_BT - logp_BT).exp() * advantages_B[:, None]

    def swapped_names(behavior_BT, logp_BT, advantages_B, mask_BT):
        return capped(logp_BT, behavior_BT, advantages_B, mask_BT)

    def clipped(logp_BT, behavior_BT, advantages_B, mask_BT):
        ratio_BT, advantages_BT = (logp_BT - behavior_BT).exp(), advantages_B[:, None]
        return -torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(0.8, 1.2) * advantages_BT)

"""


@pytest.fixture(autouse=True)
def module(user_code):
    user_code("own_functions", MODULE)


def own(name, **params):
    return Custom(function=f"own_functions:{name}", params=params)


def test_a_custom_loss_equals_the_built_in_loss_with_the_same_equation():
    generator = torch.Generator().manual_seed(0)
    behavior, mask = -torch.rand(4, 6, generator=generator), torch.ones(4, 6, dtype=torch.bool)
    logp, advantages_B = behavior + torch.randn(4, 6, generator=generator), torch.tensor([1.0, -1.0, 0.5, 2.0])
    params = SCALERL.loss.__class__(max_ratio=1.5)
    for theirs, ours in zip(
        LOSSES["cispo"](params, logp, behavior, advantages_B, mask),
        custom(own("capped", max_ratio=1.5), logp, behavior, advantages_B, mask),
        strict=True,
    ):
        assert torch.equal(theirs, ours)


def test_custom_advantages_and_weights_get_their_parameters():
    rewards = torch.tensor([[[1.0, 2.0, 6.0]]])
    counted = torch.ones(1, 1, 3, dtype=torch.bool)
    assert advantages(own("ranks", scale=0.5), rewards, counted).tolist() == [[[-0.5, 0.0, 2.0]]]
    mask = torch.tensor([[True, True, False], [True, False, False]])
    weights = token_weights(own("last_token"), mask, torch.tensor([0, 1]))
    assert weights.tolist() == [[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]]


def checked(name, **fields):
    check_functions(replace(SCALERL, loss=CustomLoss(function=f"own_functions:{name}", **fields)))


def test_a_loss_that_lowers_good_tokens_does_not_start_unless_it_is_meant():
    # d loss / d log p of a good token is 1 with the wrong sign, so a step changes log p by -1 times the rate
    with pytest.raises(ConfigError, match=r"wrong_sign lowers .* change by -1 times the learning rate"):
        checked("wrong_sign")
    with pytest.raises(ConfigError, match=r"swapped_ratio lowers .* recipe.loss.any_direction = true"):
        checked("swapped_ratio")
    with pytest.raises(ConfigError, match="swapped_names has behavior_BT in the place of logp_BT; the order is"):
        checked("swapped_names")
    checked("wrong_sign", any_direction=True)


@pytest.mark.parametrize("name", ["capped", "clipped"])
def test_losses_that_raise_good_tokens_or_leave_them_start(name):
    checked(name)


def test_the_advantages_of_the_direction_are_not_those_of_the_recipe():
    """Of a recipe whose rewards are all alike, no advantage is positive."""
    flat = replace(SCALERL, advantage=own("ranks", scale=0.0))
    with pytest.raises(ConfigError, match="wrong_sign lowers"):
        check_functions(replace(flat, loss=CustomLoss(function="own_functions:wrong_sign")))
    check_functions(replace(flat, loss=Reinforce()))
