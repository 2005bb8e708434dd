"""Decoder layers and the head under torch.compile: equal gradients, one compilation for all lengths, and ways back.

The variable-length kernel needs a GPU; here a custom operator with its interface computes the same on CPU.
"""

import pytest
import torch
from test_families import learner_gradient, plain_gradient, relative_error, training_batch
from test_prefix import grouped_batch
from test_varlen import reference
from tiny_models import tiny_model
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.attention import varlen as torch_varlen

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models import packing, torch_compile
from scalerl.training.models.head import HeadRule, token_logprobs
from scalerl.training.models.policy import Policy


def plain(query, key, value, starts_q, starts_k, scale, window):
    longest = (int(starts_q.diff().max()), int(starts_k.diff().max()))
    sides = {"scale": scale, "window_size": (window, 0), "enable_gqa": query.shape[1] != key.shape[1]}
    return reference(query, key, value, starts_q, starts_k, *longest, **sides)


@torch.library.custom_op("scalerl_tests::attention", mutates_args=())
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts_q: torch.Tensor, starts_k: torch.Tensor,
    scale: float, window: int,
) -> torch.Tensor:  # fmt: skip
    return plain(query, key, value, starts_q, starts_k, scale, window).contiguous()


@attention.register_fake
def _(query, key, value, starts_q, starts_k, scale, window):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@torch.library.custom_op("scalerl_tests::attention_gradient", mutates_args=())
def attention_gradient(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts_q: torch.Tensor,
    starts_k: torch.Tensor, scale: float, window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    _, backward = torch.func.vjp(lambda *given: plain(*given, starts_q, starts_k, scale, window), query, key, value)
    gradients = [part.clone(memory_format=torch.contiguous_format) for part in backward(grad)]
    return gradients[0], gradients[1], gradients[2]


@attention_gradient.register_fake
def _(grad, query, key, value, starts_q, starts_k, scale, window):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


attention.register_autograd(
    lambda ctx, grad: (*attention_gradient(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None),
    setup_context=save_inputs,
)


def kernel(query, key, value, starts_q, starts_k, longest_q, longest_k, *, scale, window_size, enable_gqa=False):
    return attention(query, key, value, starts_q, starts_k, scale or query.shape[-1] ** -0.5, window_size[0])


pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def with_kernel(monkeypatch):
    """Let packed rows take the form for GPUs, compiled without a C compiler."""
    monkeypatch.setattr(packing, "takes_varlen", lambda query, value: query.shape[-1] == value.shape[-1])
    monkeypatch.setattr(torch_varlen, "varlen_attn", kernel)
    monkeypatch.setattr(torch_compile, "COMPILER", "aot_eager")
    monkeypatch.setattr(
        "scalerl.training.models.cpu.loops.accelerate_norms", lambda model: None
    )  # calls C: not traceable
    monkeypatch.setattr("scalerl.training.models.cpu.onednn.accelerate", lambda model: None)
    torch_compile.compiled.cache_clear()
    torch._dynamo.reset()
    yield
    torch_compile.compiled.cache_clear()
    torch._dynamo.reset()


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "recompute"),
    [
        ("qwen3", "packed", True), ("qwen3", "shared", False), ("mistral-sliding", "shared", True),
        ("gemma3-two-ropes", "packed", False), ("granite-scaled", "shared", False),
    ],
)  # fmt: skip
def test_compiled_gradients_equal_those_of_the_transformers_forward(name, kind, recompute):
    batch = grouped_batch() if kind == "shared" else training_batch()
    policy, before = Policy(tiny_model(name)), graphs()
    options = {"packing": kind, "gradient_checkpointing": recompute, "compile": True}
    found = learner_gradient(policy, batch, micro_batch_tokens=1000, **options)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5
    assert graphs() > before and policy.rule.compiled


@pytest.mark.slow
def test_inductor_computes_the_same_gradient(monkeypatch):
    monkeypatch.setattr(torch_compile, "COMPILER", "inductor")
    found = learner_gradient(Policy(tiny_model("qwen3")), training_batch(), packing="packed", compile=True)
    assert relative_error(found, plain_gradient(tiny_model("qwen3"), training_batch())) < 1e-5


@pytest.mark.slow
def test_layers_are_compiled_once_for_all_lengths():
    learner = SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()), packing="packed", compile=True)
    learner.step(training_batch())
    before = graphs()
    for tokens in (37, 20, 16):  # other micro-batches
        learner._budget = tokens
        learner.step(training_batch())
    assert graphs() == before


@pytest.mark.slow
def test_a_layer_that_cannot_be_traced_is_not_compiled(monkeypatch):
    policy = Policy(tiny_model("qwen3"))
    norm = policy.model.model.layers[1].input_layernorm
    monkeypatch.setattr(norm, "forward", lambda x, own=norm.forward: own(x) * float(x.sum() != 7.5))
    recipe, expected = Recipe(loss=Reinforce()), "cannot trace a layer of Qwen3ForCausalLM as a whole; allowed: false"
    with pytest.raises(ConfigError, match=expected):
        SingleLearner(policy, recipe, packing="packed", compile=True)
    learner = SingleLearner(policy, recipe, packing="packed", compile="auto")
    assert not learner.compiled and not policy.rule.compiled
    assert all("forward" not in vars(layer) for layer in policy.model.model.layers)


@pytest.mark.slow
def test_without_a_compiler_layers_are_trained_as_before(monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(torch_compile, "COMPILER", fail)
    recipe = Recipe(loss=Reinforce())
    with pytest.raises(ConfigError, match=r"torch.compile fails \(.*Failed to find C compiler"):
        SingleLearner(Policy(tiny_model("qwen3")), recipe, packing="packed", compile=True)
    learner = SingleLearner(Policy(tiny_model("qwen3")), recipe, packing="packed", compile="auto")
    assert not learner.compiled
    torch_compile.compiled.cache_clear()
    found = learner_gradient(Policy(tiny_model("qwen3")), training_batch(), packing="packed", compile="auto")
    assert relative_error(found, plain_gradient(tiny_model("qwen3"), training_batch())) < 1e-5


@pytest.mark.parametrize(
    ("name", "packing_", "reason"),
    [("qwen3-moe", "packed", "a mixture of experts"), ("qwen3", "padded", "torch's variable-length kernel"),
     ("bloom", "auto", "torch's variable-length kernel")],
)  # fmt: skip
def test_what_is_never_compiled_says_why(name, packing_, reason):
    options = {"packing": packing_, "compile": True}
    with pytest.raises(ConfigError, match=rf"learner.compile: got true, but .*{reason}.*; allowed: false, auto"):
        SingleLearner(Policy(tiny_model(name)), Recipe(loss=Reinforce()), **options)
    assert not SingleLearner(Policy(tiny_model(name)), Recipe(), packing=packing_, compile="auto").compiled


@pytest.mark.parametrize("nucleus", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_compiled_head_equals_the_plain_one(softcap, nucleus):
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 16, dtype=torch.float32, requires_grad=True) for n in (5, 70))
    bias, targets = torch.randn(70, requires_grad=True), torch.tensor([3, 69, 0, 31, 32])
    kept = (torch.arange(5).repeat(2), torch.cat([targets, torch.tensor([1, 2, 3, 4, 5])])) if nucleus else None
    found = []
    for compiled in (True, False):
        rule = HeadRule(softcap=softcap, scale=0.5, compiled=compiled)
        logps, entropy = token_logprobs(hidden, weight, bias, targets, 0.7, rule, chunk=32, nucleus=kept)
        found.append([logps, entropy, *torch.autograd.grad(logps.dot(torch.arange(1.0, 6)), (hidden, weight, bias))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_sharded_layers_are_compiled(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from scalerl.training.learner.fsdp import ShardedLearner, shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = tiny_model("qwen3")
        policy = Policy(model)
        shard(policy, init_device_mesh("cpu", (1,)), torch.float32)
        learner = ShardedLearner(policy, Recipe(loss=Reinforce()), packing="packed", compile=True)
        learner._add_gradients(training_batch())
        found = {name: own.grad.full_tensor() for name, own in policy.model.named_parameters()}
        assert relative_error(found, plain_gradient(tiny_model("qwen3"), training_batch())) < 1e-5
        assert learner.compiled and isinstance(policy.model, nn.Module)
    finally:
        dist.destroy_process_group()
