"""The rewards of turns from which `recipe.turn_credit` computes advantages.

Legend: P prompts, G rollouts per prompt, N = P x G rollouts, B rows (N, or more with agents), T tokens of the longest
prompt plus completion, K turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalerl.core.types import ScoredGroup
from scalerl.training.config.recipe import TurnCredit
from scalerl.training.learner.batch import RolloutTensors, rows_of
from scalerl.training.recipe.credit import of_tokens, returns_to_go


class Credited(NamedTuple):
    """The rewards from which advantages are computed, for each turn of a rollout.

    Example (one prompt, two rollouts of one and two turns, no discount): rewards_PKG = [[[0.5, 1.0], [0.0, 1.0]]],
    counted_PKG = [[[True, True], [False, True]]], turn_BT = [[0, 0, 0, 0], [0, 0, 1, 1]].
    """

    rewards_PKG: Tensor
    """Reward of each of K turns; with the credit `outcome`, a rollout is one turn."""
    counted_PKG: Tensor
    """Turns of rollouts with a reward; a rollout need not have all K."""
    turn_BT: Tensor | None
    """Turn of each token, also that of padding; None: all tokens are of one turn."""
    rollout_B: Tensor
    """Index of the rollout of each row; the rows of one rollout are sequences of an agent."""

    def of_tokens(self, values_PKG: Tensor) -> Tensor:
        """Return values of turns as values_BT of tokens, or as values_B if a rollout is one turn."""
        values_BK = values_PKG.transpose(1, 2).flatten(0, 1)[self.rollout_B]
        return values_BK[:, 0] if self.turn_BT is None else of_tokens(values_BK, self.turn_BT)

    def turns_with(self, tokens_BT: Tensor) -> Tensor:
        """Return which turns have any of some tokens, [P, K, G]."""
        p, k, g = self.rewards_PKG.shape
        turn_BT = torch.zeros(tokens_BT.shape, dtype=torch.long) if self.turn_BT is None else self.turn_BT
        counts_BK = torch.zeros(len(tokens_BT), k, dtype=torch.long).scatter_add_(1, turn_BT, tokens_BT.long())
        counts_NK = torch.zeros(p * g, k, dtype=torch.long).index_add_(0, self.rollout_B, counts_BK)
        return (counts_NK > 0).view(p, g, k).transpose(1, 2)


def credited(
    groups: Sequence[ScoredGroup], rollouts: RolloutTensors, rewards_PG: Tensor, credit: TurnCredit
) -> Credited:
    """Return the rewards of turns by `recipe.turn_credit`: that of the rollout, or the returns from each turn on.

    Args:
        groups: The batch.
        rollouts: The same as tensors.
        rewards_PG: Rewards of the rollouts. What they differ from the scores, the length penalty, counts in the last
            turn.
        credit: The choice.
    """
    if credit.kind == "outcome":
        return Credited(rewards_PG[:, None], rollouts.counted_PG[:, None], None, rollouts.rollout_B)
    scores = [score for group in groups for score in group.scores]
    turns = [max(1, len(score.of_turns)) for score in scores]
    rewards_NK = torch.zeros(len(scores), max(turns), dtype=torch.float64)
    turn_BT = torch.zeros(rollouts.tokens_BT.shape, dtype=torch.long)
    added_N = (rewards_PG - rollouts.rewards_PG).view(-1).double()
    for n, score in enumerate(scores):
        rewards_NK[n, : turns[n]] = torch.tensor(score.of_turns or (score.reward,), dtype=torch.float64)
        rewards_NK[n, turns[n] - 1] += added_N[n]
    for b, (_, n, sequence) in enumerate(rows_of(groups)):
        start = first = int(rollouts.prompt_length_B[b])
        for number, end in sequence.turns:  # the tokens after a turn are those of its reply, then those of the next
            turn_BT[b, start:] = min(number, turns[n] - 1)
            start = first + end
    has_NK = torch.arange(max(turns)) < torch.tensor(turns)[:, None]
    returns_NK = returns_to_go(rewards_NK, credit.discount).to(rewards_PG.dtype)
    shape = (*rewards_PG.shape, max(turns))
    counted_PKG = (has_NK & rollouts.counted_PG.view(-1, 1)).view(shape).transpose(1, 2)
    return Credited(returns_NK.view(shape).transpose(1, 2), counted_PKG, turn_BT, rollouts.rollout_B)
