import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerl.train.batch import collate
from scalerl.types import Group, Prompt, Rollout, Visit


def rollout(tokens, sampled=None, version=0, truncated=False):
    sampled = [True] * len(tokens) if sampled is None else sampled
    return Rollout(
        np.asarray(tokens, np.int32), -0.1 * np.arange(1, len(tokens) + 1, dtype=np.float32),
        np.full(len(tokens), version, np.int32), np.asarray(sampled), truncated, not all(sampled),
    )  # fmt: skip


def group(prompt, *rollouts):
    return Group(Visit(Prompt("0" * 16, "", tuple(prompt), "", "t"), 0, 0), rollouts, 0)


def test_prompt_completion_and_padding_lie_where_they_should():
    batch = collate(
        [
            group([5, 6], rollout([7, 8, 9], [True, False, True], version=3), rollout([4])),
            group([1], rollout([2, 3], truncated=True)),
        ]
    )
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 8, 9], [5, 6, 4, 0, 0], [1, 2, 3, 0, 0]]
    assert batch.sampled_BT.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0]]
    torch.testing.assert_close(batch.behavior_BT[0], torch.tensor([0.0, 0.0, -0.1, 0.0, -0.3]))
    assert batch.version_BT[0].tolist() == [0, 0, 3, 0, 3]
    assert batch.prompt_B.tolist() == [0, 0, 1] and batch.length_B.tolist() == [5, 3, 3]
    assert batch.truncated_B.tolist() == [False, False, True] and batch.interrupted_B.tolist() == [True, False, False]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(5, 60))
def test_micro_batches_hold_every_wanted_row_once_and_keep_the_budget(lengths, budget):
    batch = collate([group([1], *(rollout([2] * n) for n in lengths))])
    wanted = torch.tensor([n % 3 != 0 for n in lengths])
    seen = []
    for rows, width in batch.micro_batches(budget, wanted):
        assert len(rows) * width <= budget or len(rows) == 1
        assert width == int(batch.length_B[rows].max())
        seen += rows.tolist()
    assert sorted(seen) == wanted.nonzero()[:, 0].tolist()


def test_long_and_short_rows_are_kept_apart():
    batch = collate([group([1], *(rollout([2] * n) for n in (9, 1, 9, 1)))])
    assert [(rows.tolist(), width) for rows, width in batch.micro_batches(20, torch.ones(4, dtype=torch.bool))] == [
        ([0, 2], 10),
        ([1, 3], 2),
    ]


def test_collating_nothing_is_a_programming_error():
    with pytest.raises(ValueError):
        collate([])
