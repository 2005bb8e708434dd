from dataclasses import replace

import torch
from texts import rollout

from scalerl.core.types import Group, Outcome, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config.length import LengthPenalty
from scalerl.training.learner.batch import collate
from scalerl.training.recipe.advantages import advantages
from scalerl.training.recipe.penalty import with_length_penalty


def test_the_penalty_is_linear_over_the_cache_and_only_for_correct_rollouts():
    control = LengthPenalty(max_tokens=14, cache_tokens=2)
    tokens = torch.tensor([[5, 12, 13, 14, 20, 14]])
    passed = torch.tensor([[True, True, True, True, True, False]])
    rewards = torch.where(passed, 1.0, -1.0)
    expected = torch.tensor([[1.0, 1.0, 0.5, 0.0, 0.0, -1.0]])
    torch.testing.assert_close(with_length_penalty(rewards, passed, tokens, control), expected)


def chained(turns, reply, ended="environment"):
    """Return a rollout of turns with these numbers of tokens, and replies of `reply` tokens in between."""
    sampled = [True] * turns[0]
    for turn in turns[1:]:
        sampled += [False] * reply + [True] * turn
    end = Outcome(len(turns), ended, 1.0, "", {}, observed=reply * (len(turns) - 1), longest=max(turns))
    return replace(rollout(range(len(sampled)), sampled), outcome=end)


def test_with_an_environment_the_longest_turn_counts_against_the_limit_of_a_turn():
    """A limit of 14 tokens per turn, penalized from 12; the second to fourth rollout have more than 14 in total."""
    right, missing = Score(1.0, True), Score.missing("no reply")
    made = [chained((5,), 0), chained((5, 5, 5), 40), chained((5, 13, 2), 40), chained((14, 1), 0), chained((3, 3), 9)]
    visit = Visit(Prompt("0" * 16, "", (1,), "", "t"), 0, 0)
    batch = collate([ScoredGroup(Group(visit, tuple(made), 0), (right, right, right, right, missing))])
    assert batch.sampled_PG.tolist() == [[5, 5, 13, 14, 3]]
    control = LengthPenalty(max_tokens=14, cache_tokens=2)
    rewards = with_length_penalty(batch.rewards_PG, batch.passed_PG, batch.sampled_PG, control)
    assert rewards.tolist() == [[1.0, 1.0, 0.5, 0.0, 0.0]]
    # mean of the counted ones 0.625; the rollout without a reward stays out
    found = advantages("none", rewards[:, None], batch.counted_PG[:, None])
    assert found[:, 0].tolist() == [[0.375, 0.375, -0.125, -0.625, 0.0]]
