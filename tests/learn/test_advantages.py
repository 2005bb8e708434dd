import math

import pytest
import torch

from scalerl.training.recipe.advantages import ADVANTAGES, every_prompt, of_trained, with_variance

# two prompts x three rollouts: one passes of three, all pass
REWARDS = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])


def of(name, rewards, counted=None):
    """Return the advantages of rewards; by default all rollouts have one."""
    counted = torch.ones(rewards.shape, dtype=torch.bool) if counted is None else counted
    return ADVANTAGES[name](rewards[:, None], counted[:, None])[:, 0]


def test_centered_subtracts_the_mean_of_each_prompt():
    expected = torch.tensor([[4 / 3, -2 / 3, -2 / 3], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(of("none", REWARDS), expected)


def test_batch_normalization_divides_by_the_deviation_over_all_prompts_including_zero_variance():
    # squares: (16 + 4 + 4) / 9 = 8/3 over six entries -> variance 4/9, deviation 2/3
    expected = torch.tensor([[2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(of("batch", REWARDS), expected, atol=1e-5, rtol=0)


def test_group_normalization_divides_by_the_deviation_of_each_prompt():
    # variance of (4/3, -2/3, -2/3) is 8/9
    scale = 1 / math.sqrt(8 / 9)
    expected = torch.tensor([[4 / 3 * scale, -2 / 3 * scale, -2 / 3 * scale], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(of("group", REWARDS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_rewards_that_differ_by_rounding_give_exactly_zero_and_smaller_rewards_beside_them_count(name):
    # 1000.1 and the next float32 differ by 6.1e-5; 0.1 + 0.2 is 0.3 plus 5.6e-17
    above = torch.nextafter(torch.tensor(1000.1), torch.tensor(2000.0)).item()
    rewards = torch.tensor([[1000.1, above, 1000.1], [0.1 + 0.2, 0.3, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)
    for typed in (rewards, rewards.float()):
        found = of(name, typed)
        assert found.dtype == typed.dtype
        assert not found[:2].any()
        # deviations of the third prompt: 2/3, -1/3, -1/3; variance 2/9 of the prompt, 2/27 of the batch
        scale = {"none": 1.0, "group": math.sqrt(9 / 2), "batch": math.sqrt(27 / 2)}[name]
        torch.testing.assert_close(found[2], scale * torch.tensor([2 / 3, -1 / 3, -1 / 3]).to(typed), atol=1e-5, rtol=0)


def test_zero_variance_drops_failed_and_solved_prompts_and_keeps_mixed_ones():
    rewards = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
    assert with_variance(rewards).tolist() == [False, False, True]
    assert every_prompt(rewards).tolist() == [True, True, True]


def test_the_filter_uses_only_the_rewards_of_trained_rollouts():
    # the only failure of the first prompt is not trained, nor is any rollout of the third
    rewards = torch.tensor([[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0], [0.5, 1.0, 0.0]])
    trained = torch.tensor([[False, True, True], [False, True, True], [False, False, False]])
    assert with_variance(rewards).tolist() == [True, True, True]
    seen = of_trained(rewards, trained)
    assert seen.tolist() == [[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0], [0.5, 0.5, 0.5]]
    assert with_variance(seen).tolist() == [False, True, False]


@pytest.mark.parametrize("missing", [0.0, 7.0, -1e9])
@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_rollouts_without_a_reward_change_no_other_advantage_and_have_none(name, missing):
    # rewards of 1, -1, -1 in the first prompt and 1, 1 in the second; the third has one reward, the fourth none
    m = missing
    rewards = torch.tensor([[1.0, m, -1.0, -1.0], [m, 1.0, 1.0, m], [m, m, m, 1.0], [m, m, m, m]])
    counted = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]).bool()
    # deviations 4/3, -2/3, -2/3, 0, 0, 0: squares 8/3; variance 8/9 of the first prompt and 4/9 of the batch
    scale = {"none": 1.0, "group": math.sqrt(9 / 8), "batch": 3 / 2}[name]
    expected = torch.zeros(4, 4)
    expected[0] = scale * torch.tensor([4 / 3, 0.0, -2 / 3, -2 / 3])
    torch.testing.assert_close(of(name, rewards, counted), expected, atol=1e-5, rtol=0)
    assert not of(name, rewards, torch.zeros_like(counted)).any()
