"""Rotary embeddings on CPU equal those of transformers, and other formulas are not replaced."""

import pickle

import pytest
import torch
from tiny_models import tiny_model
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as of_a_part
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from scalerl.models.cpu.rotary import _agrees, accelerate_rotary, rotate


def test_values_and_gradients_equal_those_of_transformers():
    torch.manual_seed(0)
    leaves = torch.randn(2, 3, 4, 5).transpose(1, 2), torch.randn(2, 3, 1, 5).transpose(1, 2)
    leaves = tuple(torch.cat([leaf, leaf.flip(-1) + 1], dim=-1) for leaf in leaves)  # [2, H, 3, 10]
    cos, sin = torch.randn(2, 3, 10), torch.randn(2, 3, 10)  # any numbers, not those of angles alone
    results = []
    for function in (rotate, apply_rotary_pos_emb):
        q, k = (leaf.clone().requires_grad_() for leaf in leaves)
        turned = function(q, k, cos, sin)
        sum((out * torch.arange(out.numel()).view(out.shape)).sum() for out in turned).backward()
        results.append([turned[0].detach(), turned[1].detach(), q.grad, k.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(rotate(*leaves, cos, sin)[0], results[0][0])


def test_a_quarter_turn_swaps_the_halves():
    q = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    zeros, ones = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    assert rotate(q, q, zeros, ones)[0].flatten().tolist() == [-3.0, -4.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["qwen3", "llama", "olmo2"])
def test_a_model_keeps_its_logits_and_can_still_be_pickled(name):
    plain, fast = tiny_model(name), tiny_model(name)
    assert accelerate_rotary(fast) == 2  # layers
    assert accelerate_rotary(fast) == 0
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(fast(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    again = pickle.loads(pickle.dumps(fast))
    assert torch.equal(again(tokens).logits, fast(tokens).logits)


def test_other_formulas_and_signatures_are_not_replaced():
    assert _agrees(apply_rotary_pos_emb)
    assert not _agrees(lambda q, k, cos, sin, unsqueeze_dim=1: (q * sin[:, None], k * cos[:, None]))
    assert not _agrees(lambda q, k, cos, sin, position_ids=None, unsqueeze_dim=1: rotate(q, k, cos, sin))
    assert not _agrees(of_a_part) and not _agrees(None)
