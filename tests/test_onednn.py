import os
import subprocess
import sys

import pytest
import torch
from tiny_models import tiny_model

from scalerl.training.models.cpu import onednn
from scalerl.training.models.policy import Policy
from scalerl.training.models.rows import PolicyRows

PRODUCTS = """
import torch
from tiny_models import tiny_model
from scalerl.training.models.cpu import onednn
from scalerl.training.models.policy import Policy
from scalerl.training.learner.cpu import resident_bytes

torch.set_num_threads(1)
onednn.used = lambda: True
Policy(tiny_model("qwen3"))
weights = [torch.randn(width, 64) for width in (32, 64, 128)]
with torch.inference_mode():
    onednn.linear(torch.ones(3, 64), weights[0])
    before = resident_bytes()
    for rows in range(1, 301):
        for weight in weights:
            onednn.linear(torch.ones(rows, 64), weight)
print(resident_bytes() - before)
"""


@pytest.mark.slow
def test_products_of_many_sizes_do_not_fill_the_memory():
    """A generator with environments grew by 43 KB per update, and a trainer by 4 MB, up to 480 MB for 768 sizes."""
    environment = {name: value for name, value in os.environ.items() if name not in onednn.CACHES}
    tests = os.path.dirname(__file__)
    environment["PYTHONPATH"] = os.pathsep.join([os.path.dirname(tests), tests])
    words = [sys.executable, "-c", PRODUCTS]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert int(done.stdout) < 100e6, done.stdout


@pytest.fixture(autouse=True)
def on_amd(monkeypatch):
    """Use oneDNN on this processor too."""
    monkeypatch.setattr(onednn, "used", lambda: True)


@pytest.mark.parametrize(("shape", "width", "bias"), [((5, 8), 4, False), ((2, 3, 8), 16, True)])
def test_values_and_gradients_equal_those_of_torch(shape, width, bias):
    torch.manual_seed(0)
    leaves = [torch.randn(shape), torch.randn(width, 8), torch.randn(width) if bias else None]
    results = []
    for function in (onednn.linear, torch.nn.functional.linear):
        inputs = [None if leaf is None else leaf.clone().requires_grad_() for leaf in leaves]
        out = function(*inputs)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        results.append([out.detach(), *(x.grad for x in inputs if x is not None)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-5)


def test_an_accelerated_model_gives_the_same_logits_and_saves_the_same_weights(tmp_path):
    plain, fast = tiny_model("qwen3"), tiny_model("qwen3")
    onednn.accelerate(fast)
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(fast(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    for name, model in (("plain", plain), ("fast", fast)):
        model.save_pretrained(tmp_path / name)
    assert (tmp_path / "plain/model.safetensors").read_bytes() == (tmp_path / "fast/model.safetensors").read_bytes()


def test_amd_processors_use_it_and_others_do_not(monkeypatch):
    monkeypatch.undo()
    for amd in (True, False):
        monkeypatch.setattr(onednn, "amd", lambda amd=amd: amd)
        assert onednn.used.__wrapped__() == amd


def test_trainers_and_engines_on_different_processors_agree(monkeypatch):
    tokens_BT, trained_BT = torch.arange(24).view(2, 12), torch.ones(2, 12, dtype=torch.bool)
    trained_BT[:, 0] = False
    calls, original, found = [], onednn._product, []
    monkeypatch.setattr(onednn, "_product", lambda *values: calls.append(1) or original(*values))
    for amd in (True, False):
        monkeypatch.setattr(onednn, "used", lambda amd=amd: amd)
        calls.clear()
        policy = Policy(tiny_model("qwen3"))
        logp_N, _ = policy(PolicyRows.padded(tokens_BT, trained_BT, policy.device))
        logp_N.sum().backward()
        assert bool(calls) == amd
        found.append([logp_N.detach(), *(p.grad for p in policy.model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
