"""The library for FP32 products: choice by timing, cache, config.toml, and equal results."""

import json
import tomllib

import numpy as np
import pytest
import runs
import torch
from tiny_models import tiny_model

import scalerl
from scalerl.config import RunConfig, TinyModel, parse_config
from scalerl.config.base import ConfigError, replace
from scalerl.config.hardware import Hardware
from scalerl.models.cpu import matmul, onednn
from scalerl.models.cpu.matmul import Products, choose, products_of
from scalerl.models.policy import Policy
from scalerl.rng import stream_key
from scalerl.rollouts.engine import Request, Sampling
from scalerl.rollouts.interrupt import NEVER, LengthRule
from scalerl.rollouts.local.torch_engine import torch_engine
from scalerl.training.launch import resolve_hardware
from scalerl.training.matmul import resolve_matmul
from scalerl.training.warm_start import make_model, make_tokenizer

WORK = Products(shapes=((8, 4, 2),), rows=16, threads=1, backward=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "took, library",
    [
        ({"onednn": 1.0, "torch": 0.8}, "torch"),
        ({"onednn": 1.0, "torch": 2.0}, "onednn"),
        ({"onednn": 1.0, "torch": 0.98}, "onednn"),  # a difference of 2% is noise
    ],
)
def test_the_clearly_faster_library_is_chosen(took, library):
    assert choose(WORK, lambda work: took) == library


def test_a_machine_keeps_its_first_choice(own_cache):
    assert choose(WORK, lambda work: {"onednn": 1.0, "torch": 0.5}) == "torch"
    assert choose(WORK, lambda work: {"onednn": 0.5, "torch": 1.0}) == "torch"
    (file,) = (own_cache / "matmul").iterdir()
    assert json.loads(file.read_text())["work"]["rows"] == 16
    other = Products(WORK.shapes, rows=32, threads=1, backward=True)
    assert choose(other, lambda work: {"onednn": 0.5, "torch": 1.0}) == "onednn"


def test_the_first_of_two_processes_that_measure_at_once_decides():
    def timed(work):
        assert choose(work, lambda work: {"onednn": 1.0, "torch": 0.5}) == "torch"  # the other process
        return {"onednn": 0.5, "torch": 1.0}

    assert choose(WORK, timed) == "torch"


def test_every_weight_is_counted_once_with_a_tied_head():
    # a Qwen3 with 2 layers of width 32: the shapes of its weights
    policy = Policy(tiny_model("qwen3"))
    products = products_of(policy, 64, 1, backward=False)
    total = sum(out * of * count for out, of, count in products.shapes)
    assert total == policy.sizes.matmul_params


def test_the_timings_of_the_libraries_alternate(monkeypatch):
    asked = []

    def recording(name):
        def product(x_NI, weight_OI):
            asked.append((name, tuple(x_NI.shape), tuple(weight_OI.shape)))
            return x_NI @ weight_OI.t()

        return product

    monkeypatch.setattr(matmul, "LIBRARIES", {name: recording(name) for name in ("onednn", "torch")})
    took = matmul.seconds(WORK)
    assert set(took) == {"onednn", "torch"} and min(took.values()) > 0
    assert asked == [("onednn", (16, 4), (8, 4)), ("torch", (16, 4), (8, 4))] * (1 + matmul.ROUNDS)


def test_a_large_weight_is_timed_in_part_and_scaled_up():
    case = matmul._Case(32_768, 1024, 1, Products(((32_768, 1024, 1),), rows=64, threads=1, backward=False))
    # 8,192 outputs x 1,024 inputs are 2^24 FLOPs a row: 16 rows make 2^28, a quarter of the rows and of the outputs
    assert (case.x_NI.shape, case.weight_OI.shape, case.scale) == ((16, 1024), (8192, 1024), 16.0)


def test_a_policy_uses_the_given_library_and_both_agree(monkeypatch):
    tokens_BT = torch.arange(24).view(2, 12)
    trained_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    trained_BT[:, 0] = False
    found = {}
    for name in ("onednn", "torch"):
        policy = Policy(tiny_model("qwen3"), matmul=name)
        calls = []
        original = onednn._product
        monkeypatch.setattr(
            onednn, "_product", lambda *a, calls=calls, original=original: calls.append(1) or original(*a)
        )
        logp_N, _ = policy(tokens_BT, trained_BT)
        logp_N.sum().backward()
        monkeypatch.setattr(onednn, "_product", original)
        assert bool(calls) == (name == "onednn")
        found[name] = [logp_N.detach(), *(p.grad for p in policy.model.parameters())]
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("engine, trainer", [("onednn", "torch"), ("torch", "onednn"), ("torch", "torch")])
def test_engine_and_trainer_with_different_libraries_pass_the_replay(engine, trainer):
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=12)
    made = torch_engine(
        Policy(tiny_model("qwen3"), matmul=engine), slots=4, prompt_tokens=3, rule=rule, sampling=Sampling()
    )
    made.submit([Request((i, 0), (5, 9, i), stream_key(i)) for i in range(4)])
    finished = [done for _ in range(12) for done in made.poll()]
    assert len(finished) == 4
    policy = Policy(tiny_model("qwen3"), matmul=trainer)
    for done in finished:
        tokens_1T = torch.tensor([[5, 9, done.id[0], *done.rollout.tokens.tolist()]])
        trained_1T = torch.arange(15)[None] >= 3
        with torch.no_grad():
            logp_N, _ = policy(tokens_1T, trained_1T)
        np.testing.assert_allclose(done.rollout.logps, logp_N.numpy(), atol=2e-5)


def test_each_side_is_measured_with_its_rows_and_only_auto_changes():
    text = "[hardware]\ndevice = 'cpu'\ntrainer_threads = 2\ngenerator_threads = 1\n[rollouts]\nslots = 48"
    config = parse_config(text + "\n[placement]\ngenerators = 2", "test")
    asked, policy = [], Policy(tiny_model("qwen3"))

    def chosen(work):
        asked.append((work.rows, work.threads, work.backward))
        return "torch"

    both = resolve_matmul(config, policy, chosen, resumed=False).hardware
    assert (both.generator_matmul, both.trainer_matmul) == ("torch", "torch") and not policy.rule.onednn
    assert asked == [(24, 1, False), (1280, 2, True)]
    half = replace(config, hardware=replace(config.hardware, trainer_matmul="onednn"))
    assert resolve_matmul(half, policy, chosen, resumed=False).hardware.trainer_matmul == "onednn"


def test_a_run_saved_without_this_setting_keeps_onednn():
    config = RunConfig(hardware=Hardware(device="cpu", dtype="float32", generator_threads=1, trainer_threads=1))
    found = resolve_matmul(config, Policy(tiny_model("qwen3")), lambda work: "torch", resumed=True).hardware
    assert (found.generator_matmul, found.trainer_matmul) == ("onednn", "onednn")


def test_onednn_is_refused_on_a_gpu_and_auto_is_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"hardware.trainer_matmul: got 'onednn' with hardware.device = 'cuda'"):
        resolve_hardware(Hardware(device="cuda", trainer_matmul="onednn"))
    assert resolve_hardware(Hardware(device="cuda")).generator_matmul == "torch"


@pytest.mark.slow
def test_a_resumed_run_keeps_its_recorded_choice(tmp_path, monkeypatch):
    tokenizer = make_tokenizer()
    make_model(TinyModel(width=32), tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = [w for w in runs.SMALL if w != "onednn" and not w.endswith("_matmul")]
    fields = {name.removeprefix("--"): plain(value) for name, value in zip(words[::2], words[1::2], strict=True)}
    fields |= {"model": str(tmp_path / "model"), "steps": 4, "evaluation.prompts": 4, "evaluation.samples": 1}
    monkeypatch.setattr(matmul, "choose", lambda work: "torch" if work.backward else "onednn")
    run = scalerl.train(run_dir=tmp_path / "run", progress=False, **fields)
    saved = (tmp_path / "run/config.toml").read_text()
    assert 'generator_matmul = "onednn"' in saved and 'trainer_matmul = "torch"' in saved
    monkeypatch.setattr(matmul, "choose", lambda work: "onednn" if work.backward else "torch")
    hardware = scalerl.resume(run.path, steps=6, progress=False).config.hardware
    assert (hardware.generator_matmul, hardware.trainer_matmul) == ("onednn", "torch")


def plain(word):
    return tomllib.loads(f"x = {word}")["x"]
