"""Tolerances for bf16: two kernels of attention pass every check, and mistakes do not, with weights as trained ones.

"Math" and "flash" are kernels of torch's attention on CPU. They round scores and sums differently.
"""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiny_models import realistic_model
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from scalerl.core.errors import ConfigError
from scalerl.core.types import Rollout
from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.engines.replay import ReplayMismatch, check_current
from scalerl.training.learner import checks, fsdp
from scalerl.training.learner.checks import layout_in_use, sampled_tokens
from scalerl.training.learner.fsdp import ShardedLearner, shard
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models import packing
from scalerl.training.models.policy import Policy
from scalerl.training.models.rows import PolicyRows

RECIPE = Recipe(loss=Reinforce())
LIMIT = 0.1
"""Allowed mean, nats."""


@pytest.fixture(scope="module")
def model():
    return realistic_model()


@pytest.fixture
def policy(model):
    return Policy(copy.deepcopy(model))


@pytest.fixture
def packed_by_math(monkeypatch):
    """Let packed rows use the math kernel; padded ones use flash, torch's choice."""
    flash = packing.causal_attention

    def attention(*arguments):
        with sdpa_kernel(SDPBackend.MATH):
            return flash(*arguments)

    monkeypatch.setattr(packing, "causal_attention", attention)


def scored(policy, tokens_BT, kernel):
    trained_BT = (torch.arange(tokens_BT.shape[1]) >= 1).expand_as(tokens_BT)
    with torch.no_grad(), sdpa_kernel(kernel):
        return policy(PolicyRows.padded(tokens_BT, trained_BT, policy.device))[0]


@pytest.mark.parametrize("kind", ["auto", "packed", "shared"])
def test_another_kernel_of_packed_rows_is_no_reason_to_pad(policy, packed_by_math, kind):
    learner = SingleLearner(policy, RECIPE, packing=kind)
    assert learner._packing == kind and learner.notes() == {}


@pytest.mark.parametrize("mistake", ["across", "later", "scale"])
def test_wrong_attention_of_packed_rows_is_found_in_bf16(policy, monkeypatch, mistake):
    right = packing.Segments.attention

    def wrong(self, query, key, value, scaling=None, window=None):
        if mistake == "across":  # the first token of each sequence is the last of the one before
            key, value = key.roll(1, dims=2), value.roll(1, dims=2)
        if mistake == "later":
            key, value = key.roll(-1, dims=2), value.roll(-1, dims=2)
        return right(self, query, key, value, (scaling or 0.25) * (2 if mistake == "scale" else 1), window)

    monkeypatch.setattr(packing.Segments, "attention", wrong)
    tokens_BT = sampled_tokens(policy)
    kind, reason = layout_in_use(policy, "auto", tokens_BT)
    assert kind == "padded" and "on average when packed (allowed 0.1)" in reason
    with pytest.raises(ConfigError, match="when packed"):
        layout_in_use(policy, "packed", tokens_BT)


def test_dropout_in_updates_is_found_in_bf16(policy, monkeypatch):
    tokens_BT, forward = sampled_tokens(policy), policy.model.model.norm.forward

    def dropped(hidden):
        return torch.nn.functional.dropout(forward(hidden), 0.1, training=torch.is_grad_enabled())

    monkeypatch.setattr(policy.model.model.norm, "forward", dropped)
    with pytest.raises(ConfigError, match="dropout or router noise"):
        checks.check_update(policy, False, tokens_BT)


def rollouts(policy, kernel):
    tokens_BT = sampled_tokens(policy)
    logp_BT = scored(policy, tokens_BT, kernel).view(3, 11)
    own = {"versions": np.ones(11, np.int32), "sampled": np.ones(11, bool), "truncated": True, "interrupted": False}
    return [
        (row[:1].tolist(), Rollout(row[1:].numpy().astype(np.int32), logps.numpy(), **own))
        for row, logps in zip(tokens_BT, logp_BT, strict=True)
    ]


def test_replay_allows_another_kernel_but_no_other_weights(policy):
    given = rollouts(policy, SDPBackend.MATH)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = check_current(policy, 1, given)
        assert 0.01 < found.mean < LIMIT
        with torch.no_grad():
            policy.head_weight.mul_(0.9)
        with pytest.raises(ReplayMismatch, match=r"allowed on average 0.1"):
            check_current(policy, 1, given)


@pytest.fixture
def alone(tmp_path):
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_sharded_bf16_model_packs_with_another_kernel(model, alone, packed_by_math):
    """Its weights are FP32 shards, whose tolerance would be a hundred times smaller."""
    policy = Policy(copy.deepcopy(model).float())
    shard(policy, alone, torch.bfloat16)
    assert policy.head_weight.dtype == torch.float32 and policy.dtype == torch.bfloat16
    learner = ShardedLearner(policy, RECIPE, dtype=torch.bfloat16, packing="packed")
    assert learner.notes() == {}


def test_sharding_allows_another_kernel_but_no_other_weights(model, alone):
    policy, source = Policy(copy.deepcopy(model).float()), Policy(copy.deepcopy(model))
    shard(policy, alone, torch.bfloat16)
    plain = source.forward

    def forward(*arguments):
        with sdpa_kernel(SDPBackend.MATH):
            return plain(*arguments)

    source.forward = forward
    fsdp._check_sharded(policy, source, torch.device("cpu"))
    with torch.no_grad():
        source.head_weight.mul_(0.9)
    with pytest.raises(ConfigError, match=r"on average \(allowed 0.1\) when its weights are sharded"):
        fsdp._check_sharded(policy, source, torch.device("cpu"))
