import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerl.training.recipe.aggregate import AGGREGATIONS, prompt_mean, sample_mean, token_mean

# prompt 0: rollouts of 1 and 3 tokens; prompt 1: one of 2 tokens, and one that is filtered out
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
PROMPT = torch.tensor([0, 0, 1, 1])


def test_prompt_mean_weighs_prompts_equally():
    expected = torch.tensor([[1 / 8, 0, 0], [1 / 8, 1 / 8, 1 / 8], [1 / 4, 1 / 4, 0], [0, 0, 0]])
    torch.testing.assert_close(prompt_mean(MASK, PROMPT), expected)


def test_sample_mean_weighs_rollouts_with_tokens_equally():
    expected = torch.tensor([[1 / 3, 0, 0], [1 / 9, 1 / 9, 1 / 9], [1 / 6, 1 / 6, 0], [0, 0, 0]])
    torch.testing.assert_close(sample_mean(MASK, PROMPT), expected)


def test_token_mean_weighs_tokens_equally():
    torch.testing.assert_close(token_mean(MASK, PROMPT), MASK / 6)


@st.composite
def ragged(draw):
    prompts = draw(st.integers(1, 4))
    rows = [draw(st.lists(st.booleans(), min_size=5, max_size=5)) for _ in range(prompts * 2)]
    return torch.tensor(rows), torch.arange(prompts).repeat_interleave(2)


@given(ragged(), st.sampled_from(list(AGGREGATIONS)))
def test_weights_are_nonnegative_and_sum_to_one_for_any_nonempty_mask(batch, name):
    mask_BT, prompt_B = batch
    weights_BT = AGGREGATIONS[name](mask_BT, prompt_B)
    assert (weights_BT >= 0).all() and not weights_BT[~mask_BT].any()
    torch.testing.assert_close(weights_BT.sum(), torch.tensor(1.0 if mask_BT.any() else 0.0), atol=1e-5, rtol=0)
