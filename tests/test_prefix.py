"""Shared prompts: gradients equal those of padded rows, fewer tokens are computed, and "auto" chooses correctly."""

import pytest
import torch
from batches import change
from test_families import learner_gradient, plain_gradient, relative_error, training_batch
from test_packing import attention_by_hand
from tiny_models import tiny_model

from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models import prefix
from scalerl.training.models.policy import Policy
from scalerl.training.models.prefix import SharedPrompts

CPU = torch.device("cpu")


def grouped_batch():
    """Return the batch of the packing tests; rollouts 0, 1 and 3 (lengths 14, 9, 4) share a prompt of 3 tokens."""
    batch = training_batch()
    tokens_BT, trained_BT = batch.rollouts.tokens_BT.clone(), batch.trained_BT.clone()
    prompt_B, prompt_length_B = torch.tensor([7, 7, 2, 7, 5]), torch.tensor([3, 3, 4, 3, 2])
    tokens_BT[[1, 3], :3] = tokens_BT[0, :3]
    trained_BT &= torch.arange(tokens_BT.shape[1]) >= prompt_length_B[:, None]
    assert trained_BT.any(dim=1).all() and trained_BT[[0, 1, 3], 3].all()  # the first token after the shared prompt
    weights_BT = trained_BT / trained_BT.sum()
    return change(
        batch, tokens_BT=tokens_BT, trained_BT=trained_BT, weights_BT=weights_BT, prompt_B=prompt_B,
        shared_B=prompt_B, prompt_length_B=prompt_length_B,
    )  # fmt: skip


def places(length_B, prompt_length_B, first_B):
    """Return the places in the row of each rollout's tokens, prompt and completion."""
    found, prompt_start, start = [], 0, sum(prompt_length_B[first_B].tolist())
    for number, (length, prompt) in enumerate(zip(length_B.tolist(), prompt_length_B.tolist(), strict=True)):
        prompt_start += prompt_length_B[number - 1].item() if number and first_B[number] else 0
        found.append([*range(prompt_start, prompt_start + prompt), *range(start, start + length - prompt)])
        start += length - prompt
    return found


@pytest.mark.parametrize("window", [None, 3, 50])
def test_a_completion_attends_to_its_prompt_and_itself(window):
    torch.manual_seed(0)
    length_B, prompt_length_B = torch.tensor([9, 8, 4, 6, 5]), torch.tensor([3, 3, 3, 5, 1])
    first_B = torch.tensor([True, False, False, True, True])
    tokens = 9 + (6 + 5 + 1) + (1 + 4)  # prompts of 3, 5 and 1, then completions
    query, key, value = torch.randn(4, tokens, 8), torch.randn(2, tokens, 8), torch.randn(2, tokens, 8)
    layout = SharedPrompts.of(length_B, prompt_length_B, first_B, CPU)
    found = layout.attention(query[None], key[None], value[None], 0.3, window)
    assert found.shape == (1, tokens, 4, 8)
    for own in places(length_B, prompt_length_B, first_B):
        for head in range(4):
            expected = attention_by_hand(query[head, own], key[head // 2, own], value[head // 2, own], 0.3, window)
            torch.testing.assert_close(found[0, own, head], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 100])
def test_masks_grow_with_the_tokens_not_with_their_square(window, monkeypatch):
    """Two prompts with completions of 512 and 1,024 tokens, blocks of 64: twice the tokens, twice the entries."""
    monkeypatch.setattr(prefix, "BLOCK_TOKENS", 64)
    entries = []
    for length in (512, 1024):
        lengths, prompts = torch.tensor([length + 30, length + 20]), torch.tensor([30, 20])
        layout = SharedPrompts.of(lengths, prompts, torch.tensor([True, True]), CPU)
        tokens = int(lengths.sum())
        layout.attention(*(torch.randn(1, 2, tokens, 8) for _ in range(3)), window=window)
        entries.append(sum(mask.numel() for mask in layout.masks.values()))
    assert entries[1] < 2.1 * entries[0]


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding", "gemma3-two-ropes", "gemma4", "diffllama", "youtu"])
@pytest.mark.parametrize("budget", [12, 1000])
def test_gradients_equal_those_of_the_transformers_forward(name, budget):
    batch = grouped_batch()
    found = learner_gradient(Policy(tiny_model(name)), batch, micro_batch_tokens=budget, packing="shared")
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5


def test_auto_shares_prompts_if_this_saves_a_tenth_of_the_tokens():
    batch = grouped_batch()  # 40 of 46 tokens
    learner = SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing="auto")
    assert learner.shares(batch)
    assert not learner.shares(change(batch, shared_B=torch.arange(5)))  # nothing in common
    assert not learner.shares(training_batch())  # prompts of one token each
    assert not SingleLearner(Policy(tiny_model("qwen3-moe")), Recipe(loss=Reinforce()), packing="auto").shares(batch)
    assert not SingleLearner(Policy(tiny_model("gemma2-softcap")), Recipe(loss=Reinforce()), packing="auto").shares(
        batch
    )
