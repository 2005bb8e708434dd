"""RMS norms on CPU: a model keeps its values and weights, and norms with another formula are not replaced."""

import pytest
import torch
from tiny_models import tiny_model

from scalerl.training.models.cpu import loops
from scalerl.training.models.cpu.loops import accelerate_norms


def replaced(model):
    """Let the norms of a model use the loops; return how many do."""
    accelerate_norms(model)
    return sum("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_keeps_its_logits_and_its_saved_weights(threads, monkeypatch):
    calls, original, missing = [], loops.norm_forward, loops.problem()  # whose first call tries the loops
    monkeypatch.setattr(loops, "norm_forward", lambda *values: calls.append(1) or original(*values))
    plain, fast = tiny_model("qwen3"), tiny_model("qwen3")
    # two layers of two norms around and two of heads, and the last
    assert replaced(fast) == 2 * 4 + 1
    tokens, before = torch.arange(12)[None], torch.get_num_threads()
    calls.clear()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(fast(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    finally:
        torch.set_num_threads(before)
    assert len(calls) == (9 if threads == 1 and missing is None else 0)
    assert fast.state_dict().keys() == plain.state_dict().keys()


def test_norms_with_another_formula_are_not_replaced():
    assert replaced(tiny_model("gemma2-softcap")) == 0  # x * (1 + w)
    assert replaced(tiny_model("qwen3").bfloat16()) == 0
