import math

import pytest
import torch

from scalerl.learn.advantages import (
    ADVANTAGES,
    batch_normalized,
    centered,
    every_prompt,
    group_normalized,
    of_trained,
    with_variance,
)

# two prompts x three rollouts: one passes of three, all pass
REWARDS = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])


def test_centered_subtracts_the_mean_of_each_prompt():
    expected = torch.tensor([[4 / 3, -2 / 3, -2 / 3], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(centered(REWARDS), expected)


def test_batch_normalization_divides_by_the_deviation_over_all_prompts_including_zero_variance():
    # squares: (16 + 4 + 4) / 9 = 8/3 over six entries -> variance 4/9, deviation 2/3
    expected = torch.tensor([[2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(batch_normalized(REWARDS), expected, atol=1e-5, rtol=0)


def test_group_normalization_divides_by_the_deviation_of_each_prompt():
    # variance of (4/3, -2/3, -2/3) is 8/9
    scale = 1 / math.sqrt(8 / 9)
    expected = torch.tensor([[4 / 3 * scale, -2 / 3 * scale, -2 / 3 * scale], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(group_normalized(REWARDS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_equal_rewards_give_zero_finite_advantages(name):
    assert torch.equal(ADVANTAGES[name](torch.full((2, 4), -1.0)), torch.zeros(2, 4))


def test_zero_variance_drops_failed_and_solved_prompts_and_keeps_mixed_ones():
    rewards = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
    assert with_variance(rewards).tolist() == [False, False, True]
    assert every_prompt(rewards).tolist() == [True, True, True]


def test_zero_variance_ignores_rounding_but_not_small_differences():
    rewards = torch.tensor([[0.1 + 0.2, 0.3], [0.3, 0.3001]])
    assert with_variance(rewards).tolist() == [False, True]


def test_the_filter_uses_only_the_rewards_of_trained_rollouts():
    # the only failure of the first prompt is not trained, nor is any rollout of the third
    rewards = torch.tensor([[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0], [0.5, 1.0, 0.0]])
    trained = torch.tensor([[False, True, True], [False, True, True], [False, False, False]])
    assert with_variance(rewards).tolist() == [True, True, True]
    seen = of_trained(rewards, trained)
    assert seen.tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0], [0.5, 0.5, 0.5]]
    assert with_variance(seen).tolist() == [False, True, False]
