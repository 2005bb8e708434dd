"""Custom losses, advantages and aggregations by import path."""

import pytest
import torch

from scalerl.config.overrides import parse_config, read_config, to_toml
from scalerl.config.recipe import SCALERL, Custom
from scalerl.learn.advantages import advantages
from scalerl.learn.aggregate import token_weights
from scalerl.learn.custom import check_functions
from scalerl.learn.losses import LOSSES, custom

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


def test_the_saved_configuration_restores_functions_and_parameters():
    words = {
        "recipe.loss": {"kind": "custom", "function": "own_functions:capped", "params": {"max_ratio": 8.0}},
        "recipe.advantage": {"kind": "custom", "function": "own_functions:ranks"},
        "recipe.aggregation": {"kind": "custom", "function": "own_functions:last_token"},
    }
    config = read_config(None, words)
    assert config.recipe.loss == own("capped", max_ratio=8.0)
    assert parse_config(to_toml(config), "again") == config
    check_functions(config.recipe)
