"""The lab's warm start: its vocabulary, its gate, its cache and its log."""

import json
import os
import time
from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from scalerl.core.errors import ConfigError
from scalerl.reading.pages.run import FollowedRun
from scalerl.training.config import PRESETS, TinyModel, WarmStart
from scalerl.training.config.base import replace
from scalerl.training.config.data import ArithmeticTask, ProgramsTask
from scalerl.training.loop import launch, run_model
from scalerl.training.loop import warm_start as module
from scalerl.training.loop.warm_start import (
    fact_accuracy,
    make_model,
    make_tokenizer,
    warm_start,
    warm_start_directory,
    warm_start_fault,
)
from scalerl.training.models.policy import Policy
from scalerl.training.rewards import arithmetic, generated

TASK = (ArithmeticTask(),)
BOTH = (ArithmeticTask(), ProgramsTask())
SMALL = TinyModel(width=16, warm_start=WarmStart(steps=4, batch=4))


def test_the_vocabulary_has_thirty_two_tokens_and_encodes_text_without_loss():
    tokenizer = make_tokenizer()
    text = "7+4*3=<think>7+4=1;~~~1*3=3;</think>3\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(tokenizer) == 32 and len(ids) == len(text) - len("<think>") - len("</think>") + 2
    assert tokenizer.decode(ids) == text and tokenizer.eos_token == "\n"


def test_an_untrained_model_does_not_pass_the_gate_and_nothing_is_saved(tmp_path):
    rows = []
    with pytest.raises(ConfigError, match="at least 99%"):
        warm_start(SMALL, TASK, tmp_path / "made", rows.append)
    assert not (tmp_path / "made").exists() and rows[-1]["fact_accuracy"] < 0.5 and rows[0]["step"] == 4
    assert [row["seed"] for row in rows if "seed" in row] == [0, 1000, 2000]


def test_every_task_of_a_mixture_must_pass_the_gate(tmp_path, monkeypatch):
    accuracies = [1.0, 0.8, 0.99, 1.0]  # arithmetic and programs, from two seeds
    monkeypatch.setattr(module, "fact_accuracy", lambda *args: accuracies.pop(0))
    rows = []
    warm_start(SMALL, BOTH, tmp_path / "made", rows.append)
    tried = [row for row in rows if "seed" in row]
    assert [row["fact_accuracy"] for row in tried] == [0.8, 0.99]
    assert tried[0]["fact_accuracy_arithmetic"] == 1.0 and tried[0]["fact_accuracy_programs"] == 0.8
    monkeypatch.setattr(module, "fact_accuracy", lambda policy, tokenizer, facts: 0.5 if facts[0][0][0] == "," else 1.0)
    with pytest.raises(ConfigError, match=r"50\.0%"):
        warm_start(SMALL, BOTH, tmp_path / "other", rows.append)


def test_the_order_of_traces_does_not_depend_on_the_order_of_the_tables():
    traces = [list(islice(generated.traces(data, SMALL.warm_start, 0.4, 0), 10)) for data in (BOTH, BOTH[::-1])]
    assert traces[0] == traces[1] and ["=" in prompt for prompt, _ in traces[0]] == [True, False] * 5


def test_a_warm_start_is_trained_once_and_keeps_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GATE", 0.0)
    rows = []
    path = warm_start(SMALL, TASK, tmp_path / "made", rows.append)
    logged = [json.loads(line) for line in (path / "warm_start.json").read_text().splitlines()]
    assert logged == rows and {"loss", "seconds"} < set(logged[0])
    before = (path / "model.safetensors").read_bytes()
    monkeypatch.setattr(module, "_train", lambda *args: pytest.fail("made twice"))
    assert warm_start(SMALL, TASK, path, rows.append) == path
    assert (path / "model.safetensors").read_bytes() == before


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return the directory of a warm start in a cache of its own."""
    monkeypatch.setattr(module, "GATE", 0.0)
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    torch.set_num_threads(1)  # as in the test that trains again; the bits depend on it
    return warm_start(SMALL, TASK, warm_start_directory(SMALL, TASK), lambda row: None)


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # a weight, where nothing else would notice
    path.write_bytes(content)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "damage"), [("model.safetensors", flip), ("tokenizer.json", cut_off), ("config.json", pipe)]
)
def test_a_cached_warm_start_that_was_damaged_is_trained_again_and_the_run_says_so(name, damage, kept, tmp_path):
    whole, notes = (kept / name).read_bytes(), []
    damage(kept / name)
    assert run_model.model_path_of(SMALL, TASK, 1, tmp_path, notes.append) == str(kept)
    assert (kept / name).read_bytes() == whole and warm_start_fault(kept) == ""
    assert name in notes[0] and "is damaged, so it is trained again" in notes[0] and str(kept) in notes[0]


def test_a_damaged_warm_start_that_cannot_be_removed_ends_before_the_training(kept, monkeypatch):
    flip(kept / "model.safetensors")
    monkeypatch.setattr(module.shutil, "rmtree", lambda *args, **kwargs: None)  # it is another user's
    monkeypatch.setattr(module, "_train", lambda *args: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=r"cannot be used \(model.safetensors has other .*or removed.*SCALERL_CACHE"):
        warm_start(SMALL, TASK, kept, lambda row: None)


def test_a_cache_that_cannot_be_written_ends_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(module.os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    monkeypatch.setattr(module, "_train", lambda *args: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=r"no file can be made in .*SCALERL_CACHE"):
        warm_start(SMALL, TASK, tmp_path / "made", lambda row: None)


def test_the_gate_counts_single_steps_by_their_most_likely_digit(monkeypatch):
    """A model that only knows the digits of sums gets 100 of 300 right, and about a tenth of the rest."""
    policy, tokenizer = Policy(make_model(SMALL, make_tokenizer())), make_tokenizer()
    facts = arithmetic.facts()

    def knows_sums(hidden):
        return logits.pop(0)

    logits = []
    for text, digit in facts:
        row = torch.zeros(1, 32)
        row[0, tokenizer.encode(digit if text[1] == "+" else "~")[0]] = 1.0
        logits.append(row)
    monkeypatch.setattr(policy, "logits", knows_sums)
    assert fact_accuracy(policy, tokenizer, facts) == pytest.approx(100 / 300)


def test_experts_share_the_width_of_the_dense_mlp():
    mixture = make_model(replace(SMALL, experts=4, active_experts=2), make_tokenizer())
    dense = make_model(SMALL, make_tokenizer())
    experts = mixture.model.layers[0].mlp.experts
    assert tuple(experts.gate_up_proj.shape) == (4, 2 * 32, 16)  # gate and up of 4 x 16 / 2
    assert tuple(experts.down_proj.shape) == (4, 16, 32)
    router = 2 * 4 * 16  # two layers, four scores of 16 numbers each
    assert Policy(mixture).sizes.matmul_params == Policy(dense).sizes.matmul_params + router


def test_a_run_is_listed_during_its_warm_start_and_leaves_no_directory_if_it_fails(tmp_path, monkeypatch):
    seen = []

    def slow(model, data, directory, report):
        report({"step": 50.0, "loss": 1.0})
        until = time.monotonic() + 60
        while (found := FollowedRun(tmp_path / "run")).detail == "" and time.monotonic() < until:
            time.sleep(0.005)
        seen.append((found.state, found.detail))
        raise ConfigError("the gate")

    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_model, "warm_start", slow)
    notes = []
    display = SimpleNamespace(note=notes.append, belongs_to=lambda path: None)
    with pytest.raises(ConfigError, match="the gate"):
        launch.start(PRESETS["lab"], tmp_path / "run", display, lambda: False)
    steps = PRESETS["lab"].model.warm_start.steps
    assert seen == [("warm start", f"update 50 of {steps} on worked examples")]
    assert not (tmp_path / "run").exists() and "warm start: training" in notes[0]
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="the gate"):
        launch.start(PRESETS["lab"], tmp_path / "run", display, lambda: False)
    assert list((tmp_path / "run").iterdir()) == []
