"""RMS norms on CPU: values and gradients equal those of torch, and norms with another formula are not replaced."""

import pytest
import torch
from tiny_models import tiny_model

from scalerl.models.cpu.norm import accelerate_norms, rms_norm


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (2, 1, 4, 8)])
def test_values_and_gradients_equal_those_of_torch(shape):
    torch.manual_seed(0)
    leaves = torch.randn(shape), torch.randn(8)
    results = []
    for function in (rms_norm, lambda x, w, eps: torch.nn.functional.rms_norm(x, (8,), w, eps)):
        x, weight_D = (leaf.clone().requires_grad_() for leaf in leaves)
        out = function(x, weight_D, 1e-2)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        results.append([out.detach(), x.grad, weight_D.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(*leaves, 1e-2), results[0][0])


def test_a_transposed_gradient_is_read_correctly():
    torch.manual_seed(0)
    x, weight_D = torch.randn(2, 3, 4, 8).requires_grad_(), torch.ones(8)
    upstream = torch.randn(2, 4, 3, 8)
    (rms_norm(x, weight_D, 1e-6).transpose(1, 2) * upstream).sum().backward()
    found, x.grad = x.grad, None
    (torch.nn.functional.rms_norm(x, (8,), weight_D, 1e-6).transpose(1, 2) * upstream).sum().backward()
    torch.testing.assert_close(found, x.grad)


def test_a_model_keeps_its_logits_and_its_saved_weights(tmp_path):
    plain, fast = tiny_model("qwen3"), tiny_model("qwen3")
    # two layers of two norms around and two of heads, and the last
    assert accelerate_norms(fast) == 2 * 4 + 1
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(fast(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    assert fast.state_dict().keys() == plain.state_dict().keys()


def test_norms_with_another_formula_are_not_replaced():
    assert accelerate_norms(tiny_model("gemma2-softcap")) == 0  # x * (1 + w)
    assert accelerate_norms(tiny_model("qwen3").bfloat16()) == 0
