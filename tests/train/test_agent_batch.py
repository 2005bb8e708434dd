"""Rollouts of several sequences in a batch: one advantage, equal weight, equal prompts together, one record."""

import math
from dataclasses import replace

import pytest
import torch
from test_batch import as_one_turn, group
from texts import rollout

from scalerl.core.serialization import from_plain, to_plain
from scalerl.core.types import Prompt, Rollout, Score
from scalerl.training.config.recipe import SCALERL
from scalerl.training.learner.batch import collate
from scalerl.training.loop.loop import kept_prompts, loss_tokens
from scalerl.training.loop.metrics import batch_row, staleness
from scalerl.training.recipe.advantages import centered
from scalerl.training.recipe.aggregate import token_weights

GOOD, BAD, MISSING = Score(1.0, True), Score(-1.0, False), Score.missing("it failed")


def several(first, *others):
    return replace(first, others=others)


def own(prompt, *arguments, **more):
    return replace(rollout(*arguments, **more), prompt=prompt)


@pytest.fixture
def batch():
    """Rollouts 0 and 1 begin with equal prompts; 0 has a second conversation."""
    first = several(own((1, 2), [5, 6, 7]), own((1, 3), [8]))
    return collate([group([9], first, own((1, 2), [5]), scores=[GOOD, BAD]),
                    group([9], own((4,), [6]), own((4,), [7, 7]), scores=[GOOD, MISSING])])  # fmt: skip


def test_every_sequence_is_a_row_with_its_own_prompt(batch):
    assert batch.tokens_BT.tolist() == [
        [1, 2, 5, 6, 7], [1, 2, 5, 0, 0], [1, 3, 8, 0, 0], [4, 6, 0, 0, 0], [4, 7, 7, 0, 0]
    ]  # fmt: skip
    assert batch.rollout_B.tolist() == [0, 1, 0, 2, 3] and batch.prompt_B.tolist() == [0, 0, 0, 1, 1]
    assert batch.shared_B.tolist() == [0, 0, 1, 2, 2] and batch.prompt_length_B.tolist() == [2, 2, 2, 1, 1]
    assert batch.rewards_PG.shape == (2, 2) and batch.completion_tokens_PG.tolist() == [[4, 1], [1, 2]]
    assert batch_row(batch, batch.rewards_PG, torch.tensor([True, True]))["completion_tokens_max"] == 4


def test_loss_and_filter_go_by_rollouts(batch):
    usable = loss_tokens(batch, SCALERL, oldest=0)
    turns = as_one_turn(batch)
    advantages_B = turns.of_tokens(centered(turns.rewards_PKG, turns.counted_PKG))
    assert advantages_B.tolist() == [1.0, -1.0, 1.0, 0.0, 0.0]
    assert usable.sum(dim=1).tolist() == [3, 1, 1, 1, 0]  # the last rollout has no reward
    assert kept_prompts(as_one_turn(batch), usable, SCALERL).tolist() == [True, False]


def test_a_rollout_of_two_sequences_weighs_as_much_as_one_of_one(batch):
    mask = batch.sampled_BT
    weights = token_weights("sample", mask, batch.prompt_B, batch.rollout_B)
    assert weights.sum(dim=1).tolist() == pytest.approx([3 / 16, 1 / 4, 1 / 16, 1 / 4, 1 / 4])
    weights = token_weights("prompt", mask, batch.prompt_B, batch.rollout_B)
    assert weights.sum(dim=1).tolist() == pytest.approx([3 / 10, 1 / 10, 1 / 10, 1 / 6, 1 / 3])


def test_a_checkpoint_keeps_all_sequences():
    whole = several(own((1, 2), [5, 6]), own((3,), [7]))
    again = from_plain(Rollout, to_plain(whole))
    assert again.prompt == (1, 2) and again.others[0].prompt == (3,) and again.others[0].tokens.tolist() == [7]
    assert again.after(Prompt("", "", (0,), "", "")) == (1, 2) and rollout([1]).after(Prompt("", "", (0,), "", "")) == (
        0,
    )
    earlier = {name: value for name, value in to_plain(rollout([4])).items() if name not in ("prompt", "others")}
    assert from_plain(Rollout, earlier).sequences[0].tokens.tolist() == [4]


def test_a_batch_without_a_sampled_token_has_no_staleness():
    nothing = rollout([4], [False])
    batch = collate([group([9], nothing, nothing, scores=[MISSING, MISSING])])
    assert all(math.isnan(value) for value in staleness(batch, 3, SCALERL.off_policy).values())


def test_blank_rollouts_keep_their_lengths():
    blank = several(own((1, 2), [5, 6]), own((3,), [7])).without_tokens()
    assert [len(one) for one in blank.sequences] == [2, 1] and blank.others[0].tokens.tolist() == [-1]
