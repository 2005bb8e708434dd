import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from texts import rollout

from scalerl.config.base import replace
from scalerl.config.recipe import SCALERL, PipelineRL, PpoOffPolicy
from scalerl.training.batch import collate, staleness
from scalerl.training.learner.base import TrainBatch
from scalerl.training.loop import kept_prompts, trained_tokens
from scalerl.types import Group, Prompt, Score, ScoredGroup, Visit


def group(prompt, *rollouts, scores=None):
    scores = [Score(0.0, False)] * len(rollouts) if scores is None else scores
    return ScoredGroup(Group(Visit(Prompt("0" * 16, "", tuple(prompt), "", "t"), 0, 0), rollouts, 0), tuple(scores))


def test_prompt_completion_and_padding_are_at_the_right_positions():
    first = [rollout([7, 8, 9], [True, False, True], versions=3), rollout([4])]
    second = [rollout([2, 3], truncated=True), rollout([1])]
    one = group([5, 6], *first, scores=[Score(1.0, True), Score(-1.0, False)])
    batch = collate([one, group([1], *second, scores=[Score(0.25, False), Score(0.5, True)])])
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 8, 9], [5, 6, 4, 0, 0], [1, 2, 3, 0, 0], [1, 1, 0, 0, 0]]
    assert batch.sampled_BT.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
    torch.testing.assert_close(batch.behavior_BT[0], torch.tensor([0.0, 0.0, -0.1, 0.0, -0.3]))
    assert batch.version_BT[0].tolist() == [0, 0, 3, 0, 3]
    assert batch.prompt_B.tolist() == [0, 0, 1, 1] and batch.length_B.tolist() == [5, 3, 3, 2]
    assert batch.truncated_B.tolist() == [False, False, True, False]
    assert batch.interrupted_B.tolist() == [True, False, False, False]
    assert batch.completion_tokens_PG.tolist() == [[3, 1], [2, 1]]
    assert batch.rewards_PG.tolist() == [[1.0, -1.0], [0.25, 0.5]]
    assert batch.passed_PG.tolist() == [[True, False], [False, True]]


def test_the_staleness_of_sampled_tokens_is_measured_and_bounded_unless_old_ones_are_masked():
    """At update 7, the sampled tokens are 4, 4, 0 and 2 updates old; the inserted one, of version 0, does not count."""
    rows = rollout([4, 5, 6], [True, True, False], versions=[3, 3, 0]), rollout([4, 5], versions=[7, 5])
    batch = collate([group([1], *rows)])
    ages = staleness(batch, 7, PipelineRL(max_lag=4))
    assert ages == {"staleness_mean": 2.5, "staleness_max": 4.0, "stale_share": 0.0}
    assert staleness(batch, 7, PipelineRL(max_lag=3, stale="mask"))["stale_share"] == 0.5
    for policy in (PipelineRL(max_lag=3), PipelineRL(max_lag=3, stale="drop"), PpoOffPolicy(batches=4)):
        with pytest.raises(AssertionError, match="0 to 4 updates old; the bound is 3"):
            staleness(batch, 7, policy)
    with pytest.raises(AssertionError, match="-1 to 3 updates old"):  # weights that do not exist yet
        staleness(batch, 6, PipelineRL(max_lag=8, stale="mask"))


def training(completions, trained_B):
    """Return a batch of completions of the given lengths after a prompt of one token; some rows carry loss."""
    rollouts = collate([group([1], *(rollout([2] * n) for n in completions))])
    trained_BT = rollouts.sampled_BT & torch.tensor(trained_B)[:, None]
    zeros_BT = torch.zeros_like(rollouts.behavior_BT)
    return TrainBatch(
        rollouts.tokens_BT, rollouts.length_B, zeros_BT, torch.zeros(len(completions)), trained_BT, zeros_BT
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(5, 60))
def test_micro_batches_contain_every_trained_row_once_within_the_budget(completions, budget):
    batch = training(completions, [n % 3 != 0 for n in completions])
    seen = []
    for rows, width in batch.micro_batches(budget):
        assert len(rows) * width <= budget or len(rows) == 1
        assert width == int(batch.length_B[rows].max())
        seen += rows.tolist()
    assert sorted(seen) == [i for i, n in enumerate(completions) if n % 3 != 0]


def test_long_and_short_rows_are_in_different_micro_batches():
    batch = training((9, 1, 9, 1), [True] * 4)
    assert [(rows.tolist(), width) for rows, width in batch.micro_batches(20)] == [([0, 2], 10), ([1, 3], 2)]


def test_a_prompt_whose_failures_are_all_truncated_is_dropped():
    passed, failed = Score(1.0, True), Score(-1.0, False)
    cut, whole = rollout([2, 3], truncated=True), rollout([4])
    scores = [failed, passed]
    batch = collate([group([1], cut, whole, scores=scores), group([5], whole, rollout([6, 7]), scores=scores)])
    keep = kept_prompts(batch, batch.rewards_PG, SCALERL)
    assert keep.tolist() == [False, True]
    trained = trained_tokens(batch, keep, SCALERL, oldest=0)
    assert trained.int().tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]]
    # if truncated rollouts are trained, or nothing is filtered, both prompts are kept
    for recipe in (replace(SCALERL, truncated="keep"), replace(SCALERL, zero_variance="keep")):
        assert kept_prompts(batch, batch.rewards_PG, recipe).tolist() == [True, True]
