import math

import pytest
import torch

from scalerl.training.models import head
from scalerl.training.models.head import HeadRule, token_logprobs


def direct(hidden, weight, bias, targets, temperature, rule):
    """Return log-probabilities and entropies, computed from all logits at once."""
    logp = (rule.logits(hidden, weight, bias) / temperature).log_softmax(dim=1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(dim=1)


def test_two_tokens_by_hand():
    # logits [ln 1, ln 3] = one hidden unit of 1 times these weights: probabilities 1/4 and 3/4
    weight = torch.tensor([[0.0], [math.log(3)]])
    logp, entropy = token_logprobs(torch.ones(2, 1), weight, None, torch.tensor([0, 1]))
    torch.testing.assert_close(logp, torch.log(torch.tensor([0.25, 0.75])))
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(entropy, torch.full((2,), expected))


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 4096])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rule", [HeadRule(), HeadRule(softcap=3.0), HeadRule(scale=0.25, softcap=2.0)], ids=str)
def test_any_chunk_gives_the_same_values_and_gradients(chunk, bias, rule):
    torch.manual_seed(0)
    leaves = [torch.randn(9, 8), torch.randn(50, 8)] + ([torch.randn(50)] if bias else [])
    targets, upstream = torch.randint(0, 50, (9,)), torch.randn(9)
    results = []
    for function in (lambda *a: token_logprobs(*a, chunk=chunk), direct):
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        logp, entropy = function(inputs[0], inputs[1], inputs[2] if bias else None, targets, 0.7, rule)
        (logp * upstream).sum().backward()
        results.append([logp.detach(), entropy.detach(), *(x.grad for x in inputs)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)


def test_the_fp32_head_is_a_hundred_times_more_accurate_than_the_bf16_product():
    torch.manual_seed(1)
    hidden, weight = torch.randn(64, 256).bfloat16(), (torch.randn(1000, 256) / 16).bfloat16()
    targets = torch.randint(0, 1000, (64,))
    truth = (hidden.double() @ weight.double().T).log_softmax(1).gather(1, targets[:, None])[:, 0]
    errors = {}
    for fp32 in (True, False):
        logp, _ = token_logprobs(hidden, weight, None, targets, rule=HeadRule(fp32=fp32))
        errors[fp32] = float((logp.double() - truth).abs().max())
    assert errors[True] < 1e-5 < 1e-3 < errors[False]


def test_no_block_of_logits_is_larger_than_the_chunk(monkeypatch):
    shapes = []
    original = HeadRule.logits
    monkeypatch.setattr(HeadRule, "logits", lambda self, h, w, b: shapes.append(len(w)) or original(self, h, w, b))
    hidden = torch.randn(3, 4, requires_grad=True)
    logp, _ = token_logprobs(hidden, torch.randn(1000, 4), None, torch.arange(3), chunk=128)
    logp.sum().backward()
    assert max(shapes) == 128 and len(shapes) == 2 * math.ceil(1000 / 128)


@pytest.fixture
def on_tensor_cores(monkeypatch):
    """Take the form of a GPU; on CPU the products of bf16 factors are computed in FP32, which is exact too."""
    monkeypatch.setattr(head, "on_tensor_cores", lambda h, w: h.dtype == w.dtype == torch.bfloat16)


def exact_head(hidden, weight, bias, targets, upstream):
    """Return log-probabilities and gradients in float64."""
    leaves = [part.detach().double().requires_grad_() for part in (hidden, weight, bias)]
    logits = (leaves[0] @ leaves[1].t() + leaves[2]) / 0.7
    logp = logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return [logp.detach(), *torch.autograd.grad((logp * upstream).sum(), leaves)]


def bf16_head(device="cpu"):
    torch.manual_seed(5)
    parts = torch.randn(64, 96), torch.randn(500, 96) / 8, torch.randn(500)
    leaves = [part.bfloat16().to(device).requires_grad_() for part in parts]
    return leaves, torch.randint(0, 500, (64,), device=device), torch.randn(64, device=device)


def assert_exact(leaves, targets, upstream, compiled=False):
    rule = head.HeadRule(compiled=compiled)
    logp, _ = token_logprobs(*leaves, targets, temperature=0.7, rule=rule, chunk=128)
    found = [logp.detach(), *torch.autograd.grad((logp * upstream).sum(), leaves)]
    exact = exact_head(*leaves, targets, upstream)
    assert float((found[0].double() - exact[0]).abs().max()) < 1e-5
    for ours, truth in zip(found[1:], exact[1:], strict=True):
        # the gradient of a block is rounded to bf16 once (0.17%), and so is each result (0.17%)
        assert ours.dtype == torch.bfloat16
        assert float((ours.double() - truth).norm() / truth.norm()) < 0.004


def test_the_head_of_a_gpu_gives_the_float64_values_and_gradients(on_tensor_cores):
    assert_exact(*bf16_head())


def test_blocks_of_a_gpu_use_a_32nd_of_its_free_memory(monkeypatch):
    assert head.chunk_elements(torch.device("cpu")) == head.CHUNK_ELEMENTS
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 24 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 8 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (16 << 30, 80 << 30))
    # 16 GiB free and 16 GiB in torch's cache: 1 GiB of FP32
    assert head.chunk_elements(torch.device("cuda", 0)) == 1 << 28
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 24 << 30)
    assert head.chunk_elements(torch.device("cuda", 0)) == head.CHUNK_ELEMENTS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_the_head_on_a_gpu_gives_the_float64_values_and_gradients(compiled):
    assert_exact(*bf16_head("cuda"), compiled)
