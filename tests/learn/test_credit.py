"""Credit of turns: returns and advantages worked by hand in float64, and one turn as before."""

import dataclasses

import pytest
import torch
from texts import rollout

from scalerl.core.errors import ConfigError
from scalerl.core.types import Group, Outcome, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config.base import replace
from scalerl.training.config.recipe import (
    SCALERL,
    Custom,
    CustomLoss,
    DiscountedCredit,
    OutcomeCredit,
    Recipe,
    SumCredit,
)
from scalerl.training.learner.batch import collate
from scalerl.training.loop.credit import credited
from scalerl.training.loop.loop import kept_prompts, loss_tokens
from scalerl.training.recipe.advantages import ADVANTAGES, EPS, advantages
from scalerl.training.recipe.credit import of_tokens, returns_to_go
from scalerl.training.recipe.custom import check_functions
from scalerl.training.recipe.losses import LOSSES

f64 = torch.float64


def test_a_return_is_the_reward_of_a_turn_and_the_discounted_later_ones():
    rewards = torch.tensor([[1.0, -0.5, 2.0], [0.25, 1.0, 0.0]], dtype=f64)  # the second has two turns
    expected = torch.tensor([[2.5, 1.5, 2.0], [1.25, 1.0, 0.0]], dtype=f64)
    torch.testing.assert_close(returns_to_go(rewards, 1.0), expected, rtol=0, atol=0)
    expected = torch.tensor([[1 - 0.25 + 0.5, -0.5 + 1.0, 2.0], [0.75, 1.0, 0.0]], dtype=f64)
    torch.testing.assert_close(returns_to_go(rewards, 0.5), expected, rtol=0, atol=1e-15)


def test_a_turn_is_compared_with_the_same_turn_of_the_rollouts_that_have_it():
    """Two prompts, two turns, two rollouts; the last rollout has one turn, and its prompt has nothing to compare."""
    returns = torch.tensor([[[3.0, 1.0], [2.0, 0.0]], [[1.0, 0.0], [5.0, 0.0]]], dtype=f64)
    counted = torch.tensor([[[True, True], [True, True]], [[True, True], [True, False]]])
    deviations = torch.tensor([[[1.0, -1.0], [1.0, -1.0]], [[0.5, -0.5], [0.0, 0.0]]], dtype=f64)
    torch.testing.assert_close(ADVANTAGES["none"](returns, counted), deviations, rtol=0, atol=0)
    of_batch = (4.5 / 7 - 0.0) ** 0.5  # seven turns: 1, 1, 1, 1, 0.25, 0.25, 0 squared; their mean is 0
    torch.testing.assert_close(ADVANTAGES["batch"](returns, counted), deviations / (of_batch + EPS))
    of_prompts = torch.tensor([1.0, (0.5 / 3) ** 0.5], dtype=f64)[:, None, None]
    torch.testing.assert_close(ADVANTAGES["group"](returns, counted), deviations / (of_prompts + EPS))


def scored(*ends):
    """Return a group of rollouts with (tokens of each turn, tokens of each reply, rewards of turns)."""
    rollouts, scores = [], []
    for turns, replies, rewards in ends:
        sampled, until = [], []
        for number, length in enumerate(turns):
            sampled += [True] * length
            until.append(len(sampled))
            sampled += [False] * (replies[number] if number < len(replies) else 0)
        one = rollout(list(range(1, len(sampled) + 1)), sampled)
        end = Outcome(len(turns), "environment", 0.5, "", {}, rewards=rewards)
        rollouts.append(dataclasses.replace(one, outcome=end, turns=tuple(enumerate(until))))
        scores.append(Score(2 * sum(rewards) - 1, True, of_turns=tuple(2 * r for r in rewards)))
    visit = Visit(Prompt("0" * 16, "", (1, 2), "", "t"), 0, 0)
    return ScoredGroup(Group(visit, tuple(rollouts), 0), tuple(scores))


def test_every_token_has_the_advantage_of_its_turn():
    """The first rollout has turns of two and one tokens around a reply of one; the second has one turn."""
    group = scored(((2, 1), (1,), (0.25, 0.5)), ((3,), (), (0.5,)))
    batch = collate([group])
    turns = credited([group], batch, batch.rewards_PG, DiscountedCredit(discount=0.5))
    assert turns.rewards_PKG.tolist() == [[[0.5 + 0.5, 1.0], [1.0, 0.0]]]
    assert turns.counted_PKG.tolist() == [[[True, True], [True, False]]]
    assert turns.turn_BT.tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    tokens = turns.of_tokens(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    assert tokens.tolist() == [[1.0, 1.0, 1.0, 1.0, 3.0, 3.0], [2.0] * 6]
    usable = loss_tokens(batch, SCALERL, oldest=0)
    assert turns.turns_with(usable).tolist() == [[[True, True], [True, False]]]
    # returns of 1 and 1 at the first turn, one rollout at the second: nothing to learn from
    assert not kept_prompts(turns, usable, SCALERL).any()
    turns = credited([group], batch, batch.rewards_PG, SumCredit())
    assert turns.rewards_PKG.tolist() == [[[1.5, 1.0], [1.0, 0.0]]] and kept_prompts(turns, usable, SCALERL).all()
    assert credited([group], batch, batch.rewards_PG, OutcomeCredit()).turn_BT is None


def test_equal_scores_are_kept_if_turns_differ():
    group = scored(((1, 1), (1,), (0.5, 0.0)), ((1, 1), (1,), (0.0, 0.5)))
    batch = collate([group])
    usable = loss_tokens(batch, SCALERL, oldest=0)
    turns = credited([group], batch, batch.rewards_PG, SumCredit())
    assert turns.rewards_PKG.tolist() == [[[1.0, 1.0], [0.0, 1.0]]]
    assert kept_prompts(turns, usable, SCALERL).tolist() == [True]
    found = turns.of_tokens(advantages("none", turns.rewards_PKG, turns.counted_PKG))
    assert found.tolist() == [[0.0, 0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.0, 0.5, 0.5]]
    outcome = credited([group], batch, batch.rewards_PG, OutcomeCredit())
    assert kept_prompts(outcome, usable, SCALERL).tolist() == [False]


def test_the_length_penalty_counts_in_the_last_turn():
    group = scored(((1, 1), (1,), (0.5, 0.5)), ((1,), (), (1.0,)))
    batch = collate([group])
    penalized = batch.rewards_PG - torch.tensor([[0.25, 0.5]])
    assert credited([group], batch, penalized, SumCredit()).rewards_PKG.tolist() == [[[1.75, 1.5], [0.75, 0.0]]]


def test_a_rollout_without_environment_is_one_turn_with_its_reward():
    one, other = rollout([4, 5]), rollout([6])
    visit = Visit(Prompt("0" * 16, "", (1,), "", "t"), 0, 0)
    group = ScoredGroup(Group(visit, (one, other), 0), (Score(1.0, True), Score(-1.0, False)))
    batch = collate([group])
    for credit in (SumCredit(), DiscountedCredit(discount=0.1)):
        turns = credited([group], batch, batch.rewards_PG, credit)
        assert turns.rewards_PKG.tolist() == [[[1.0, -1.0]]]
        assert turns.of_tokens(turns.rewards_PKG).tolist() == [[1.0] * 3, [-1.0] * 3]


@pytest.mark.parametrize("kind", ["cispo", "dapo", "grpo", "gspo", "reinforce"])
def test_the_gradient_of_a_token_is_that_of_the_loss_with_the_advantage_of_its_turn(kind):
    draw = torch.Generator().manual_seed(3)
    behavior = -torch.rand(3, 4, dtype=f64, generator=draw)
    moved = 0.01 if kind == "gspo" else 0.3
    logp = behavior + moved * torch.randn(3, 4, dtype=f64, generator=draw)
    mask = torch.ones(3, 4, dtype=torch.bool)
    params = Recipe(loss=kind).loss
    turn = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
    advantage = torch.tensor([[1.0, -2.0], [0.5, 0.0], [-1.0, 3.0]], dtype=f64)
    whole = LOSSES[kind](params, logp, behavior, of_tokens(advantage, turn), mask)
    for number in range(2):
        part = LOSSES[kind](params, logp, behavior, advantage[:, number], mask)
        for found, expected in zip(whole, part, strict=True):
            assert torch.equal(found[turn == number], expected[turn == number])


def test_functions_of_users_get_advantages_of_tokens_and_one_turn_at_a_time(user_code):
    user_code("turn_losses", """
        import torch
        def of_tokens(logp_BT, behavior_BT, advantages_B, mask_BT):
            return -logp_BT * (advantages_B if advantages_B.ndim == 2 else advantages_B[:, None])
        def of_rollouts(logp_BT, behavior_BT, advantages_B, mask_BT):
            return -logp_BT * advantages_B[:, None]
        def ranks(rewards_PG):
            assert rewards_PG.ndim == 2
            return rewards_PG - rewards_PG.amin(dim=1, keepdim=True)
    """)  # fmt: skip
    loss = {name: CustomLoss(function=f"turn_losses:{name}") for name in ("of_tokens", "of_rollouts")}
    per_turn = replace(SCALERL, turn_credit=SumCredit())
    for recipe in (SCALERL, per_turn):
        check_functions(replace(recipe, loss=loss["of_tokens"]))
    check_functions(replace(SCALERL, loss=loss["of_rollouts"]))
    with pytest.raises(ConfigError, match="expected loss_BT"):
        check_functions(replace(per_turn, loss=loss["of_rollouts"]))
    returns = torch.tensor([[[3.0, 1.0], [2.0, 9.0]]])
    counted = torch.tensor([[[True, True], [True, False]]])
    ranks = Custom(function="turn_losses:ranks")
    assert advantages(ranks, returns, counted).tolist() == [[[2.0, 0.0], [0.0, 0.0]]]
