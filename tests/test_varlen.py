"""Attention with torch's variable-length kernel: its layout on CPU with a plain reference, and the kernel on a GPU."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from batches import change
from test_families import learner_gradient, plain_gradient, relative_error, training_batch
from test_prefix import grouped_batch
from tiny_models import tiny_model
from torch import nn
from torch.nn.attention import varlen as torch_varlen

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models import packing
from scalerl.training.models.packing import Segments, takes_varlen, varlen_attention
from scalerl.training.models.policy import Policy
from scalerl.training.models.prefix import SharedPrompts

CPU = torch.device("cpu")


def reference(query, key, value, *sequences, scale, window_size, enable_gqa=False):
    """Compute what the kernel documents, one sequence at a time in float64; the mask is aligned at the last key."""
    assert enable_gqa == (query.shape[1] != key.shape[1]) and window_size[1] == 0
    starts_q, starts_k, *longest = sequences
    assert starts_q.dtype == starts_k.dtype == torch.int32
    out, ends = [], [list(pairwise(starts.tolist())) for starts in (starts_q, starts_k)]
    assert longest == [max(end - start for start, end in pairs) for pairs in ends]
    for own, seen in zip(*ends, strict=True):
        parts = (query[slice(*own)], key[slice(*seen)], value[slice(*seen)])
        age = torch.arange(len(parts[1]) - len(parts[0]), len(parts[1]))[:, None] - torch.arange(len(parts[1]))
        mask = (age >= 0) & ((age <= window_size[0]) | (window_size[0] < 0))
        args = [part.transpose(0, 1).double() for part in parts]
        mask, options = mask.to(query.device), {"scale": scale, "enable_gqa": enable_gqa}
        out.append(nn.functional.scaled_dot_product_attention(*args, attn_mask=mask, **options).transpose(0, 1))
    return torch.cat(out).to(query.dtype)


@pytest.fixture
def on_cpu(monkeypatch):
    """Let packed rows take the form for GPUs, and count the calls of the kernel."""
    calls = []
    monkeypatch.setattr(packing, "takes_varlen", lambda query, value: True)
    monkeypatch.setattr(torch_varlen, "varlen_attn", lambda *args, enable_gqa=False, **options: (
        calls.append(len(args[3])) or reference(*args, enable_gqa=enable_gqa, **options)))  # fmt: skip
    return calls


def shared_layout(device=CPU):
    """Prompts of 3, 5 and 1 tokens with completions of 6, 5 and 1, of 1, and of 4."""
    length_B, prompt_length_B = torch.tensor([9, 8, 4, 6, 5]), torch.tensor([3, 3, 3, 5, 1])
    return SharedPrompts.of(length_B, prompt_length_B, torch.tensor([True, False, False, True, True]), device)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_outputs_and_gradients_equal_those_of_the_buckets(kind, window, on_cpu):
    layout = shared_layout() if kind == "shared" else Segments([11, 9, 5, 1], CPU)
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, 26, 8, requires_grad=True) for heads in (4, 2, 2)]
    weight = torch.randn(1, 26, 4, 8)
    found = []
    for out in (varlen_attention(*inputs, layout.varlen, 0.3, window), layout.attention(*inputs, 0.3, window)):
        assert out.shape == (1, 26, 4, 8)
        found.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert len(on_cpu) == 1


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding", "gemma3-two-ropes"])
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_gradients_equal_those_of_the_transformers_forward(name, kind, on_cpu):
    batch = grouped_batch() if kind == "shared" else training_batch()
    policy = Policy(tiny_model(name))
    found = learner_gradient(policy, batch, micro_batch_tokens=1000, packing=kind)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5
    # one call per layer in each packed row of the checks at the start, and in the micro-batch with all sequences
    assert len(on_cpu) == 4 * policy.sizes.layers and on_cpu[-1] == (9 if kind == "shared" else 6)


def test_a_kernel_that_fails_on_this_gpu_is_an_error_at_the_start(on_cpu, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nException raised from ...")

    monkeypatch.setattr(torch_varlen, "varlen_attn", fail)
    with pytest.raises(ConfigError, match=r"fails \(FlashAttention only .* newer.\); allowed: padded$"):
        SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing="auto")


def test_long_rollouts_share_their_prompts_unless_a_gpu_needs_masks(on_cpu, monkeypatch):
    monkeypatch.setattr("scalerl.training.learner.policy_learner.LONGEST_SHARED", 13)  # the longest rollout has 14
    learner = SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing="auto")
    assert learner.policy.varlen and learner.shares(grouped_batch())
    assert learner.packs(change(training_batch(), length_B=torch.full((5,), 14)))  # without any padding to save
    monkeypatch.setattr(packing, "takes_varlen", lambda query, value: False)
    learner = SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing="auto")
    assert not learner.policy.varlen and learner.shares(grouped_batch())
    monkeypatch.setattr(Policy, "device", SimpleNamespace(type="cuda"))
    assert not learner.shares(grouped_batch())


def test_the_kernel_takes_half_precision_on_gpus_with_one_head_size(monkeypatch):
    def taken(size, other=None, dtype=torch.bfloat16, cuda=True, capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        query, value = (SimpleNamespace(is_cuda=cuda, dtype=dtype, shape=(1, 4, 9, n)) for n in (size, other or size))
        return takes_varlen(query, value)

    assert taken(64) and taken(128) and taken(256) and taken(96, dtype=torch.float16)
    assert not (taken(64, dtype=torch.float32) or taken(64, cuda=False) or taken(64, capability=(7, 5)))
    assert not (taken(192, 128) or taken(100) or taken(512))  # latent attention, no multiple of 8, too wide


def test_the_call_fits_the_installed_torch_and_its_predecessor(monkeypatch):
    """Meta tensors run the real function without its kernel. Torch 2.11 has no option for fewer key heads."""
    inputs = [torch.zeros(1, heads, 26, 8, device="meta", requires_grad=True) for heads in (4, 2, 2)]
    out = varlen_attention(*inputs, shared_layout(torch.device("meta")).varlen, 0.3, 3)
    assert out.shape == (1, 26, 4, 8) and out.is_meta
    assert [x.shape for x in torch.autograd.grad(out.sum(), inputs)] == [x.shape for x in inputs]

    def of_2_11(query, *others, return_aux=None, scale=None, window_size=(-1, -1)):
        return query

    monkeypatch.setattr(torch_varlen, "varlen_attn", of_2_11)
    assert varlen_attention(*inputs, shared_layout(torch.device("meta")).varlen, 0.3, None).shape == (1, 26, 4, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("window", [None, 3, 50])
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_the_kernel_computes_the_reference(kind, window, monkeypatch):
    device = torch.device("cuda")
    layout = shared_layout(device) if kind == "shared" else Segments([11, 9, 5, 1], device)
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, 26, 64, device=device).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    weight, found = torch.randn(1, 26, 4, 64, device=device), []
    for function in (torch_varlen.varlen_attn, reference):
        monkeypatch.setattr(torch_varlen, "varlen_attn", function)
        out = varlen_attention(*inputs, layout.varlen, 0.3, window)
        found.append([out, *torch.autograd.grad((out.float() * weight).sum(), inputs)])
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).detach().float().norm() / theirs.detach().float().norm()) < 0.01  # bf16 has 8 bits
