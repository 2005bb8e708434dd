"""Packed micro-batches: gradients equal those of padded ones, and no tensor has tokens x tokens entries."""

from dataclasses import replace

import pytest
import torch
from test_families import FAMILIES, learner_gradient, plain_gradient, relative_error, training_batch
from tiny_models import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.learner import checks
from scalerl.training.learner.checks import layout_in_use, sampled_tokens
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.packing import Segments, can_pack, install
from scalerl.training.models.policy import Policy
from scalerl.training.models.rows import PolicyRows

EAGER = ("gemma2-softcap", "gpt-oss")
"""Families whose scores are capped or have sinks."""
OWN = ("biogpt", "bloom", "doge", "falcon", "falcon-alibi", "xglm")  # attention code or scores of their own
PACKABLE = [name for name in FAMILIES if name not in EAGER + OWN]


def attention_by_hand(query_TD, key_TD, value_TD, scaling, window):
    """Return attention over the visible positions, computed one token at a time."""
    out = []
    for t in range(len(query_TD)):
        first = max(0, t - window + 1) if window else 0
        scores = key_TD[first : t + 1] @ query_TD[t] * scaling
        out.append(scores.softmax(0) @ value_TD[first : t + 1])
    return torch.stack(out)


@pytest.mark.parametrize("window", [None, 3, 4, 50])
def test_each_token_attends_only_to_its_sequence_and_window(window):
    torch.manual_seed(0)
    lengths = [11, 10, 4, 9, 1]
    query, key, value = torch.randn(4, 35, 8), torch.randn(2, 35, 8), torch.randn(2, 35, 8)
    found = Segments(lengths, query.device).attention(query[None], key[None], value[None], 0.3, window)
    assert found.shape == (1, 35, 4, 8)
    for head in range(4):
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            expected = attention_by_hand(query[head, own], key[head // 2, own], value[head // 2, own], 0.3, window)
            torch.testing.assert_close(found[0, own, head], expected, atol=1e-5, rtol=1e-5)
            start += length


@pytest.mark.parametrize("name", PACKABLE)
def test_packed_gradients_equal_those_of_the_transformers_forward(name):
    batch = training_batch()
    found = learner_gradient(Policy(tiny_model(name)), batch, micro_batch_tokens=30, packing="packed")
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding", "gemma3-two-ropes"])
def test_recomputed_activations_attend_within_the_same_segments(name):
    batch, options = training_batch(), {"micro_batch_tokens": 30, "packing": "packed"}
    found = learner_gradient(Policy(tiny_model(name)), batch, gradient_checkpointing=True, **options)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5


def test_micro_batches_are_filled_with_tokens_instead_of_padding():
    batch = training_batch()  # lengths 14, 12, 9, 7, 4 in falling order
    assert [(rows.tolist(), width) for rows, width in batch.micro_batches(30)] == [([0, 2], 14), ([1, 4, 3], 9)]
    packed = [(rows.tolist(), width) for rows, width in batch.micro_batches(32, packed=True)]
    assert packed == [([0, 2], 14), ([1, 4, 3], 9)]  # 14 + 12 + 9 > 32
    assert [rows.tolist() for rows, _ in batch.micro_batches(35, packed=True)] == [[0, 2, 1], [4, 3]]
    assert [rows.tolist() for rows, _ in batch.micro_batches(3, packed=True)] == [[0], [2], [1], [4], [3]]


class LargestTensor(TorchDispatchMode):
    """Records the number of entries of the largest tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return out


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding"])
def test_no_mask_of_tokens_x_tokens_is_created(name):
    """With 600 tokens, a mask has 360,000 entries; the largest needed tensors (MLP, logits) have 600 x 48."""
    policy = Policy(tiny_model(name, max_position_embeddings=1024))
    install(policy.model)
    length_B = torch.tensor([300, 300])
    tokens_BT = torch.randint(0, 48, (2, 300))
    trained_BT = (torch.arange(300) >= 1).expand(2, 300)
    with LargestTensor() as seen:
        logp_N, _ = policy(PolicyRows.packed(tokens_BT, trained_BT, length_B, policy.device))
        logp_N.sum().backward()
    assert 600 * 48 <= seen.entries <= 2 * 600 * 48


def test_auto_packs_if_more_than_a_tenth_would_be_padding():
    """Lengths 14 to 4 in rows of 14 are 46 of 70 tokens; with a budget of 14 each rollout is a micro-batch."""
    policy, batch = Policy(tiny_model("qwen3")), training_batch()
    assert SingleLearner(policy, Recipe(loss=Reinforce()), packing="auto").packs(batch)
    assert not SingleLearner(policy, Recipe(loss=Reinforce()), packing="auto", micro_batch_tokens=14).packs(batch)
    assert SingleLearner(policy, Recipe(loss=Reinforce()), packing="packed", micro_batch_tokens=14).packs(batch)
    assert not SingleLearner(policy, Recipe(loss=Reinforce()), packing="padded").packs(batch)
    for name in EAGER:
        assert not SingleLearner(Policy(tiny_model(name)), Recipe(loss=Reinforce()), packing="auto").packs(batch)


@pytest.mark.parametrize("name", ["mistral-sliding", "qwen2-sliding", "gemma3-two-ropes", "phi3-sliding"])
def test_a_layer_that_does_not_pass_its_window_is_not_packed(name, monkeypatch):
    policy = Policy(tiny_model(name, sliding_window=64))  # longer than the compared sequences
    tokens_BT = sampled_tokens(policy)
    assert checks.packing_difference(policy, tokens_BT) < 1e-4
    other = tuple(attention._replace(window=64 - attention.window) for attention in policy.sizes.attention)
    policy.sizes = replace(policy.sizes, attention=other)
    assert checks.packing_difference(policy, tokens_BT) == float("inf")


def layout(name, packing):
    policy = Policy(tiny_model(name))
    return layout_in_use(policy, packing, sampled_tokens(policy))


def test_packing_is_refused_if_scores_are_capped_or_have_sinks(monkeypatch):
    assert layout("qwen3", "padded") == ("padded", "")
    assert layout("qwen3", "packed") == ("packed", "")
    for name in EAGER:
        assert not can_pack(tiny_model(name))
        with pytest.raises(ConfigError, match="eager"):
            layout(name, "packed")
    for name in OWN:
        with pytest.raises(ConfigError, match="allowed: padded, auto"):
            layout(name, "packed")
    monkeypatch.setattr(checks, "packing_difference", lambda policy, tokens_BT: 0.5)
    with pytest.raises(ConfigError, match=r"differ by 0.5 on average .*allowed 0.001"):
        layout("qwen3", "packed")


def test_a_fallback_to_padded_rows_has_its_reason(monkeypatch):
    assert layout("qwen3", "auto") == ("auto", "")
    for name in (*EAGER, *OWN):
        packing, reason = layout(name, "auto")
        assert packing == "padded" and reason.startswith("learner.packing: rows are padded, which costs time, because")
    learner = SingleLearner(Policy(tiny_model("gpt-oss")), Recipe(loss=Reinforce()), packing="auto")
    assert "sinks" in learner.notes()["packing"]
    for packing in ("padded", "packed"):
        assert SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing=packing).notes() == {}
