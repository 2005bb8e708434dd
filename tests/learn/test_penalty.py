import torch

from scalerl.config.recipe import LengthPenalty
from scalerl.learn.penalty import with_length_penalty


def test_the_penalty_is_linear_over_the_cache_and_only_for_correct_rollouts():
    control = LengthPenalty(max_tokens=14, cache_tokens=2)
    tokens = torch.tensor([[5, 12, 13, 14, 20, 14]])
    passed = torch.tensor([[True, True, True, True, True, False]])
    rewards = torch.where(passed, 1.0, -1.0)
    expected = torch.tensor([[1.0, 1.0, 0.5, 0.0, 0.0, -1.0]])
    torch.testing.assert_close(with_length_penalty(rewards, passed, tokens, control), expected)
