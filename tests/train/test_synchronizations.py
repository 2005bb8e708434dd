"""How often the host waits for the device in an update: a fixed number, for any number of micro-batches.

The model is on torch's meta device, which has no values: an operation that needs one must be answered by `Waits`, and
boolean indexing fails. The host's part of an update (rows, indices, weights of tokens) is on CPU as with a GPU. Padded
rows, which GPUs use only for models that cannot be packed, are not tested: transformers reads a value for each of them.
"""

import warnings
from dataclasses import replace

import pytest
import torch
from test_prefix import grouped_batch
from tiny_models import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from scalerl.training.config.recipe import Recipe
from scalerl.training.learner.ranks import expand_segments
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models import packing
from scalerl.training.models.policy import Policy


class Waits(TorchDispatchMode):
    """Counts and answers the operations that read a value from the device."""

    def __init__(self):
        super().__init__()
        self.reads = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].is_meta:
            self.reads.append(name)
            return 1.0
        source = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        target = args[0].device if name == "copy_" else kwargs.get("device")
        if source is not None and source.is_meta and torch.device(target or "meta").type == "cpu":
            self.reads.append(name)
            return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return function(*args, **kwargs)


def test_segments_grow_on_a_gpu_unless_the_user_configured_the_allocator(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", set_to.append)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "backend:native")
        expand_segments("cuda")
        monkeypatch.delenv(name)
    expand_segments("cpu")
    assert set_to == []
    expand_segments("cuda")
    assert set_to == ["expandable_segments:True"]


@pytest.fixture
def learner(monkeypatch):
    def make(packing_, **options):
        return SingleLearner(Policy(tiny_model(options.pop("name", "qwen3")).to("meta")), Recipe(),
                             packing=packing_, **options)  # fmt: skip

    adamw = torch.optim.AdamW  # torch has no fused kernel for meta
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, **options: adamw(groups, **options | {"fused": False}))
    # the check that packing changes nothing reads values, which meta does not have
    monkeypatch.setattr("scalerl.training.learner.policy_learner.check_update", lambda policy, packed, tokens_BT: None)
    monkeypatch.setattr("scalerl.training.learner.policy_learner.sampled_tokens", lambda policy: None)
    monkeypatch.setattr("scalerl.training.learner.policy_learner.layout_in_use", lambda policy, kind, tokens_BT: (
        kind if kind == "padded" or packing.install(policy.model) is None else "", ""))  # fmt: skip
    return make


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("kind", ["packed", "shared"])
@pytest.mark.parametrize("budget", [12, 1000])
def test_an_update_waits_at_most_4_times_for_any_number_of_micro_batches(learner, kind, budget, kernel, monkeypatch):
    monkeypatch.setattr(packing, "takes_varlen", lambda query, value: kernel)
    made, batch = learner(kind, name="mistral-sliding", micro_batch_tokens=budget), grouped_batch()
    with Waits() as waits:
        stats = made.step(batch)
    # every value is answered with 1: one trained token in each micro-batch
    assert stats.grad_norm == 1.0 and (stats.trained_tokens > 1) == (budget == 12)
    assert len(waits.reads) == 2  # the sums over tokens, and the gradient's norm


def test_a_batch_without_trained_tokens_does_not_wait(learner):
    batch = grouped_batch()
    nothing = replace(batch, trained_BT=torch.zeros_like(batch.trained_BT), weights_BT=0 * batch.weights_BT)
    made = learner("padded")
    with Waits() as waits:
        assert made.step(nothing).trained_tokens == 0
    assert waits.reads == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("kind", ["packed", "shared"])
def test_a_gpu_reports_at_most_4_waits_for_an_update(kind):
    policy, batch = Policy(tiny_model("mistral-sliding").to("cuda", torch.bfloat16)), grouped_batch()
    made = SingleLearner(policy, Recipe(), packing=kind, micro_batch_tokens=12)
    made.step(batch)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")  # setting the mode warns too
        torch.cuda.set_sync_debug_mode("warn")
        try:
            made.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert 1 <= len([one for one in found if "synchronizing" in str(one.message)]) <= 4
