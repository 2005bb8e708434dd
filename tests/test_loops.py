"""The compiled loops agree with torch in values, gradients and NaN, and computers without a compiler use torch."""

import math
import os

import numpy as np
import pytest
import torch
from sampled import log_probabilities, samples
from tiny_models import tiny_model

from scalerl.training.config.placement import Hardware
from scalerl.training.engines.engine import Sampling
from scalerl.training.loop.resolve import arithmetic, arithmetic_notes
from scalerl.training.models.cpu import loops
from scalerl.training.models.cpu.loops import rms_norm
from scalerl.training.models.policy import Policy

needs_compiler = pytest.mark.skipif(loops.problem() is not None, reason=str(loops.problem()))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("heads, groups, size, span", [(2, 2, 64, 97), (1, 1, 32, 5), (3, 1, 20, 33)])
def test_attention_agrees_with_torch_for_rows_of_all_lengths(heads, groups, size, span):
    torch.manual_seed(0)
    rows, capacity = 6, span + 3
    keys, values = (torch.randn(rows, capacity, heads, size)[:, :span] for _ in range(2))
    query = torch.randn(rows, heads * groups, size)
    last_R = torch.tensor([0, 1, span // 2, span - 2, span - 1, span - 1])
    first_R = torch.tensor([0, 0, 1, span - 2, 0, span - 1])  # sliding windows
    at_K = torch.arange(span)
    visible_RK = (at_K >= first_R[:, None]) & (at_K <= last_R[:, None])
    bias = torch.where(visible_RK, 0.0, -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), bias[:, None, None], scale=0.3, enable_gqa=True
    )
    found = loops.decode_attention(query, keys, values, bias, 0.3)
    torch.testing.assert_close(found, expected[:, :, 0], atol=1e-5, rtol=1e-5)
    # of one visible position, its value
    torch.testing.assert_close(found[0], values[0, 0].repeat_interleave(groups, dim=0))


@needs_compiler
@pytest.mark.parametrize("scale", [1e-3, 1.0, 60.0])
def test_attention_agrees_with_float64_over_the_range_of_exponentials(scale):
    torch.manual_seed(0)
    query, keys, values = torch.randn(3, 2, 16) * scale, torch.randn(3, 40, 2, 16), torch.randn(3, 40, 2, 16)
    found = loops.decode_attention(query, keys, values, torch.zeros(3, 40), 0.25)
    scores_RHK = torch.einsum("rhd,rkhd->rhk", query.double(), keys.double()) * 0.25
    expected = torch.einsum("rhk,rkhd->rhd", scores_RHK.softmax(-1), values.double())
    torch.testing.assert_close(found.double(), expected, atol=2e-6 * max(1.0, scale), rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 33), (2, 1, 4, 64)])
def test_norms_agree_with_torch_in_values_and_gradients(shape):
    torch.manual_seed(0)
    leaves, upstream = (torch.randn(shape), torch.randn(shape[-1])), torch.randn(shape)
    results = []
    for function in (rms_norm, lambda x, w, eps: torch.nn.functional.rms_norm(x, shape[-1:], w, eps)):
        x, weight_D = (leaf.clone().requires_grad_() for leaf in leaves)
        out = function(x, weight_D, 1e-2)
        (
            out.transpose(0, -1) * upstream.transpose(0, -1).contiguous()
        ).sum().backward()  # a gradient with other strides
        results.append([out.detach(), x.grad, weight_D.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@needs_compiler
def test_nan_stays_nan_in_every_loop():
    nan, ones = torch.full((2, 16), math.nan), torch.ones(2, 16)
    assert rms_norm(nan, ones[0], 1e-6).isnan().all()
    query, cache, bias = torch.ones(2, 2, 16), torch.ones(2, 3, 2, 16), torch.zeros(2, 3)
    assert loops.decode_attention(query * math.nan, cache, cache, bias, 1.0).isnan().all()
    assert loops.decode_attention(query, cache * math.nan, cache, bias, 1.0).isnan().all()
    assert loops.decode_attention(query, cache, cache * math.nan, bias, 1.0).isnan().all()
    cache[:, 1] = math.nan  # one of three positions
    assert loops.decode_attention(query, cache, cache, bias, 1.0).isnan().all()


@needs_compiler
def test_callers_with_two_threads_and_other_types_use_torch():
    x = torch.ones(2, 4)
    assert loops.serves(x)
    assert not loops.serves(x.t()) and not loops.serves(x.double()) and not loops.serves(x.to("meta"))
    torch.set_num_threads(2)
    assert not loops.serves(x)


@needs_compiler
@pytest.mark.parametrize("name", ["qwen3", "gemma2-softcap"])
def test_samples_of_a_compiled_engine_pass_the_replay_with_torch(name, monkeypatch):
    policy = Policy(tiny_model(name))
    calls, original = [], loops.decode_attention
    monkeypatch.setattr(loops, "decode_attention", lambda *values: calls.append(1) or original(*values))
    prompts = [(1, 2, 3), (4, 5), (6,), (7, 8, 9), (1, 2)]
    pairs = samples(policy, prompts, slots=4, tokens=12, sampling=Sampling())
    assert bool(calls) == (name != "gemma2-softcap")  # its scores are capped
    monkeypatch.setattr(loops, "serves", lambda *tensors: False)
    for prompt, rollout in pairs:
        np.testing.assert_allclose(rollout.logps, log_probabilities(policy, prompt, rollout), atol=1e-4)


@pytest.fixture
def forgotten(monkeypatch):
    """Let the process forget the library that it loaded, before and after the test."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(loops, "FLAGS", ["-O0" if flag == "-O3" else flag for flag in loops.FLAGS])  # compiles quickly
    for cached in (loops.problem, loops._load):
        cached.cache_clear()
    yield
    for cached in (loops.problem, loops._load):
        cached.cache_clear()


def test_without_a_compiler_torch_is_used_and_the_run_says_so(forgotten, monkeypatch):
    monkeypatch.setattr(loops.shutil, "which", lambda name: None)
    assert not loops.serves(torch.ones(2, 4))
    one, many = (Hardware(device="cpu", generator_threads=n, trainer_threads=n) for n in (1, 4))
    (note,) = arithmetic_notes(one, "")
    assert "no C compiler" in note and arithmetic_notes(many, "") == []


def test_a_run_that_goes_on_elsewhere_says_that_its_results_differ():
    here, hardware = arithmetic("cpu"), Hardware(device="cpu", generator_threads=4, trainer_threads=4)
    assert arithmetic_notes(hardware, here) == [] and torch.__version__ in here
    (note,) = arithmetic_notes(hardware, "another processor")
    assert "another processor" in note and here in note
    assert arithmetic("cuda") == "" and arithmetic_notes(Hardware(device="cuda"), "another processor") == []


@pytest.mark.parametrize(
    "script, reason",
    [
        ("echo 'kernels.c:1: error: no such flag' >&2; exit 1", "kernels.c:1: error: no such flag"),
        ('[ "$1" = --version ] || { shift 11; echo text > "$1"; }', "file too short"),  # it writes no library
    ],
)
def test_a_failing_compiler_is_reported_in_one_line(script, reason, forgotten, tmp_path, monkeypatch):
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n{script}\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    problem = loops.problem()
    assert problem is not None and problem.startswith("the C compiler failed") and reason in problem
    assert "\n" not in problem


def cut_off(library):
    content = library.read_bytes()
    library.unlink()  # this process has loaded it
    library.write_bytes(content[: len(content) // 2])  # loading it would end this process with SIGBUS


def others(library):
    os.chown(library, 4242, -1)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@needs_compiler
@pytest.mark.parametrize("damage", [cut_off, pytest.param(others, marks=needs_root)])
def test_a_library_that_is_cut_off_or_of_another_user_is_compiled_again(damage, forgotten, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    assert loops.problem() is None
    (library,) = tmp_path.glob("kernels/*.so")
    size = library.stat().st_size
    damage(library)
    for cached in (loops.problem, loops._load):
        cached.cache_clear()
    assert loops.problem() is None
    assert library.stat().st_size == size and library.stat().st_uid == os.geteuid()


@needs_compiler
def test_without_a_place_for_the_library_the_process_uses_it_all_the_same(forgotten, tmp_path, monkeypatch):
    """Otherwise the run would have other bits than one with a cache."""
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "a"))
    assert loops.problem() is None
    (library,) = tmp_path.glob("a/kernels/*.so")
    library.unlink()
    os.mkfifo(library)
    for cached in (loops.problem, loops._load):
        cached.cache_clear()
    assert loops.problem() is None and not library.is_file()


@needs_compiler
def test_loops_with_wrong_values_are_not_used(forgotten, monkeypatch):
    monkeypatch.setattr(loops, "decode_attention", lambda query, *others: query)
    assert loops.problem() == "the compiled decode_attention gives wrong values"
