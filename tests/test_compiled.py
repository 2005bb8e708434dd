"""The compiled loops agree with torch in values, gradients and NaN, and runs without a compiler use torch."""

import math

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from scalerl.config import RunConfig, TinyModel
from scalerl.config.base import ConfigError, replace
from scalerl.config.hardware import Hardware
from scalerl.models.cpu import compiled
from scalerl.models.cpu.mlp import accelerate_mlps, gated
from scalerl.models.cpu.norm import rms_norm
from scalerl.models.cpu.rotary import rotate
from scalerl.models.cpu.slot_attention import decode_attention
from scalerl.models.policy import Policy
from scalerl.rollouts.engine import Request, Sampling
from scalerl.rollouts.interrupt import NEVER, LengthRule
from scalerl.rollouts.local.torch_engine import check_engine, torch_engine
from scalerl.training.matmul import check_matmul, resolve_kernels

needs_compiler = pytest.mark.skipif(compiled.problem() is not None, reason=str(compiled.problem()))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    compiled.use("torch")
    torch.set_num_threads(before)


def both(compute):
    """Return what `compute` returns with torch and with the compiled loops, which must be called."""
    found = {}
    for kernels in ("torch", "compiled"):
        compiled.use(kernels)
        found[kernels] = compute()
    return found["torch"], found["compiled"]


@needs_compiler
@pytest.mark.parametrize("heads, groups, size, span", [(2, 2, 64, 97), (1, 1, 32, 5), (3, 1, 20, 33), (2, 4, 128, 70)])
def test_attention_agrees_with_torch_for_rows_of_all_lengths(heads, groups, size, span):
    torch.manual_seed(0)
    rows, capacity = 6, span + 3
    keys, values = (torch.randn(rows, capacity, heads, size).transpose(1, 2)[:, :, :span] for _ in range(2))
    query = torch.randn(rows, heads * groups, 1, size)
    last_R = torch.tensor([0, 1, span // 2, span - 2, span - 1, span - 1])
    first_R = torch.tensor([0, 0, 1, span - 2, 0, span - 1])  # sliding windows
    at_K = torch.arange(span)
    visible_RK = (at_K >= first_R[:, None]) & (at_K <= last_R[:, None])
    bias = torch.where(visible_RK, 0.0, -torch.inf)[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, bias, scale=0.3, enable_gqa=True)
    ours, loops = both(lambda: decode_attention(query, keys, values, bias, 0.3))
    torch.testing.assert_close(loops[:, 0], expected[:, :, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loops, ours, atol=1e-5, rtol=1e-5)
    # of one visible position, its value
    torch.testing.assert_close(loops[0, 0], values[0, :, :1].expand(heads, groups, size).reshape(-1, size))


@needs_compiler
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 33), (2, 1, 4, 64)])
def test_norms_agree_with_torch_in_values_and_gradients(shape):
    torch.manual_seed(0)
    leaves, upstream = (torch.randn(shape), torch.randn(shape[-1])), torch.randn(shape)

    def compute():
        x, weight_D = (leaf.clone().requires_grad_() for leaf in leaves)
        out = rms_norm(x, weight_D, 1e-2)
        out.backward(upstream)
        return out.detach(), x.grad, weight_D.grad

    for ours, theirs in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@needs_compiler
def test_the_gated_product_agrees_with_float64_over_the_range_of_exponentials():
    gate = torch.cat([torch.linspace(-120.0, 120.0, 4001), torch.linspace(-3.0, 3.0, 1001)])
    up, upstream = torch.linspace(-2.0, 2.0, len(gate)), torch.linspace(3.0, -1.0, len(gate))

    def compute(dtype):
        a, b = gate.to(dtype).requires_grad_(), up.to(dtype).requires_grad_()
        out = gated(a, b)
        out.backward(upstream.to(dtype))
        return out.detach(), a.grad, b.grad

    exact = compute(torch.float64)
    compiled.use("compiled")
    for ours, theirs in zip(compute(torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-6, rtol=2e-6)


@needs_compiler
def test_rotations_agree_with_torch_in_values_and_gradients_and_share_angles():
    torch.manual_seed(0)
    leaf, upstream = torch.randn(3, 4, 2, 10).transpose(1, 2), torch.randn(3, 4, 2, 10).transpose(1, 2)
    for batch in (1, 3):
        cos, sin = torch.randn(batch, 4, 10), torch.randn(batch, 4, 10)

        def compute(cos=cos, sin=sin):
            x = leaf.clone().requires_grad_()
            out, _ = rotate(x, x, cos, sin)
            out.backward(upstream)
            return out.detach(), x.grad

        for ours, theirs in zip(*both(compute), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@needs_compiler
def test_nan_stays_nan_in_every_loop():
    compiled.use("compiled")
    nan, ones = torch.full((2, 16), math.nan), torch.ones(2, 16)
    assert rms_norm(nan, ones[0], 1e-6).isnan().all()
    assert gated(nan, ones).isnan().all() and gated(ones, nan).isnan().all()
    assert rotate(*2 * (nan.view(1, 1, 2, 16),), *2 * (ones.view(1, 2, 16),))[0].isnan().all()
    query, cache, bias = torch.ones(2, 2, 1, 16), torch.ones(2, 3, 2, 16).transpose(1, 2), torch.zeros(2, 1, 1, 3)
    assert decode_attention(query * math.nan, cache, cache, bias, 1.0).isnan().all()
    assert decode_attention(query, cache * math.nan, cache, bias, 1.0).isnan().all()
    assert decode_attention(query, cache, cache * math.nan, bias, 1.0).isnan().all()


@needs_compiler
def test_values_that_are_not_stored_like_the_keys_are_attended_to_by_torch():
    compiled.use("compiled")
    check_engine(Policy(tiny_model("diffllama")))  # it repeats halves of the values


@needs_compiler
def test_processes_with_two_threads_and_other_types_use_torch():
    compiled.use("compiled")
    x = torch.ones(2, 4)
    assert compiled.serves(x)
    assert not compiled.serves(x.t()) and not compiled.serves(x.double()) and not compiled.serves(x.to("meta"))
    torch.set_num_threads(2)
    assert not compiled.serves(x)


@needs_compiler
@pytest.mark.parametrize("name", ["qwen3", "llama", "olmo2", "mistral"])
def test_log_probabilities_and_gradients_of_a_model_agree(name):
    tokens_BT = torch.arange(24).view(2, 12)
    trained_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    trained_BT[:, 0] = False

    def compute():
        policy = Policy(tiny_model(name))
        logp_N, _ = policy(tokens_BT, trained_BT)
        logp_N.sum().backward()
        return [logp_N.detach(), *(p.grad for p in policy.model.parameters())]

    for ours, theirs in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma2-softcap"])
def test_samples_of_a_compiled_engine_pass_the_replay_with_torch(name):
    policy = Policy(tiny_model(name))
    compiled.use("compiled")
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=12)
    made = torch_engine(policy, slots=4, prompt_tokens=3, rule=rule, sampling=Sampling())
    prompts = [(1, 2, 3), (4, 5), (6,), (7, 8, 9), (1, 2)]
    made.submit([Request((i, 0), prompt, key=i) for i, prompt in enumerate(prompts)])
    finished = []
    while made.occupancy().busy:
        finished += made.poll()
    assert len(finished) == len(prompts)
    compiled.use("torch")
    for done in finished:
        tokens = torch.tensor([*prompts[done.id[0]], *done.rollout.tokens.tolist()])
        with torch.no_grad():
            logps_NV = policy.logits(policy.hidden(tokens[None])[0]).log_softmax(-1)
        start = len(prompts[done.id[0]])
        expected = logps_NV[start - 1 : -1].gather(1, tokens[start:, None])[:, 0].numpy()
        np.testing.assert_allclose(done.rollout.logps, expected, atol=1e-4)


def test_gated_mlps_are_replaced_and_others_are_not():
    assert accelerate_mlps(tiny_model("qwen3")) == 2  # layers
    assert accelerate_mlps(tiny_model("gemma2-softcap")) == 0  # GELU
    assert accelerate_mlps(tiny_model("qwen3").bfloat16()) == 0


@pytest.fixture
def forgotten(monkeypatch):
    """Let the process forget the library that it loaded, before and after the test."""
    monkeypatch.delenv("CC", raising=False)
    for cached in (compiled.problem, compiled._load):
        cached.cache_clear()
    yield
    for cached in (compiled.problem, compiled._load):
        cached.cache_clear()


@pytest.fixture
def no_compiler(forgotten, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)


def config(kernels):
    return replace(RunConfig(model=TinyModel()), hardware=Hardware(kernels=kernels))


def test_without_a_compiler_a_run_uses_torch_and_a_request_for_loops_is_refused(no_compiler):
    assert compiled.problem() == "there is no C compiler (cc, gcc or clang) on PATH"
    assert resolve_kernels(config("auto"), pytest.fail, resumed=False).hardware.kernels == "torch"
    message = r"hardware.kernels: got 'compiled', but there is no C compiler .* on PATH; allowed: auto, torch"
    with pytest.raises(ConfigError, match=message):
        check_matmul(Hardware(device="cpu", kernels="compiled"))
    with pytest.raises(ConfigError, match=message):
        compiled.use("compiled")


def test_a_run_resumed_without_a_compiler_continues_with_torch_and_a_note(no_compiler):
    notes = []
    assert resolve_kernels(config("compiled"), notes.append, resumed=True).hardware.kernels == "torch"
    assert len(notes) == 1 and "differ by rounding" in notes[0]


@needs_compiler
def test_a_resumed_run_keeps_its_code_and_uses_torch_without_a_recorded_choice():
    for recorded, used in (("compiled", "compiled"), ("torch", "torch"), ("auto", "torch")):
        assert resolve_kernels(config(recorded), pytest.fail, resumed=True).hardware.kernels == used
        assert compiled.serves(torch.ones(2)) == (used == "compiled")
    assert resolve_kernels(config("auto"), pytest.fail, resumed=False).hardware.kernels == "compiled"
    assert check_matmul(Hardware(device="cuda")).kernels == "torch"
    with pytest.raises(ConfigError, match=r"hardware.kernels: got 'compiled', but the device is a GPU"):
        check_matmul(Hardware(device="cuda", kernels="compiled"))


@pytest.mark.parametrize(
    "script, reason",
    [
        ("echo 'kernels.c:1: error: no such flag' >&2; exit 1", "kernels.c:1: error: no such flag"),
        ('[ "$1" = --version ] && echo fake', "exit status 1"),
        ('[ "$1" = --version ] || { shift 11; echo text > "$1"; }', "file too short"),  # it writes no library
    ],
)
def test_a_failing_compiler_is_reported_in_one_line(script, reason, forgotten, tmp_path, monkeypatch):
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n{script}\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    problem = compiled.problem()
    assert problem is not None and problem.startswith("the C compiler failed") and reason in problem
    assert "\n" not in problem


@needs_compiler
def test_loops_with_wrong_values_are_not_used(forgotten, monkeypatch):
    monkeypatch.setattr(compiled, "gated", lambda gate, up: gate)
    assert compiled.problem() == "the compiled gated gives wrong values"
