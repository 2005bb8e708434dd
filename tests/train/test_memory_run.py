"""Runs and their memory: the first command with one's own model under limits, killed generators, smaller resumes."""

import json
import os
import re
import resource
import signal
import subprocess
from types import SimpleNamespace

import pytest
import runs

from scalerl.core.errors import ConfigError
from scalerl.core.machine import Memory
from scalerl.training.config import read_config
from scalerl.training.loop import launch
from scalerl.training.machines import sizing
from scalerl.training.models.build import PolicySpec


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    """A directory with a model of SmolLM2-135M's sizes and random weights, and the README's prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("smol")
    config = LlamaConfig(
        hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
        vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192, bos_token_id=1, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place / "my-model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<|eos|>", "<|pad|>", *alphabet]
    words += [f"<{n}>" for n in range(49152 - len(words))]
    inner = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|eos|>", pad_token="<|pad|>")
    tokenizer.save_pretrained(place / "my-model")
    rows = [{"prompt": f"What is {a} * {b}?", "answer": str(a * b)} for a in range(2, 22) for b in range(5, 20)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


COMMAND = ["train", "--model", "./my-model", "--data", "prompts.jsonl", "--task", "math"]
FEW = ["--steps", "1", "--recipe.prompts_per_step", "1", "--recipe.length.thinking_tokens", "[8, 12]",
       "--recipe.length.answer_tokens", "8", "--evaluation.prompts", "4", "--device", "cpu"]  # fmt: skip


@pytest.mark.slow
def test_a_models_first_command_trains_under_a_limit(smol, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))  # noqa: E731
    words = runs.command(*COMMAND, *FEW, "--run-dir", str(tmp_path / "run"))
    done = subprocess.run(words, cwd=smol, capture_output=True, text=True, preexec_fn=limit, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 8.0 GB are free (the limit of a process (ulimit -v))" in done.stdout
    assert "duration (estimate): " in done.stdout
    config = read_config(tmp_path / "run/config.toml", [])
    assert config.rollouts.slots >= 8 and isinstance(config.learner.gradient_checkpointing, bool)


@pytest.mark.slow
def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(smol, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.chdir(smol)
    monkeypatch.setattr(PolicySpec, "load", lambda *given: loaded.append(given))
    monkeypatch.setattr(sizing, "host_memory", lambda: Memory(4e9, 3.9e9, "the control group (memory.max)"))
    config = read_config(None, [*COMMAND[1:], *FEW])
    display = SimpleNamespace(note=lambda text: None, configured=lambda config: None, belongs_to=lambda path: None)
    with pytest.raises(ConfigError, match=r"memory: the run needs up to .* of 4.0 GB are free \(the control group"):
        launch.start(config, tmp_path / "run", display, lambda: False)
    assert not loaded and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_killed_generator_names_memory_and_options_with_which_the_run_continues(lab_model, tmp_path):
    path = tmp_path / "run"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL])
    runs.wait_for(lambda: len(runs.rows(path, "metrics.jsonl")) >= 10, what="ten updates")
    for pid in runs.children(process.pid):
        os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in text
    found = re.search(
        r"killed by signal 9.* because memory ran out: (?:it had taken [\d.]+ GB, and )?the limit is [\d.]+ GB \(.*\). "
        r"To need less memory, resume with fewer sequences, --rollouts.slots (\d+) \(now (\d+)\)", text,
    )  # fmt: skip
    fewer, slots = map(int, found.groups())
    assert slots == read_config(path / "config.toml", []).rollouts.slots and 1 <= fewer <= slots // 2
    runs.finish("resume", str(path), "--rollouts.slots", str(fewer), "--learner.micro_batch_tokens", "300")
    rows = runs.rows(path, "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 25)) and (path / "summary.json").exists()
    assert read_config(path / "config.toml", []).rollouts.slots == fewer


@pytest.mark.slow
def test_a_trainer_without_memory_says_so_and_what_to_change(lab_model, tmp_path, monkeypatch):
    path = tmp_path / "run"
    code = """
import sys
from scalerl.cli import main
from scalerl.training.learner.single import SingleLearner
def fail(*given):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 9 bytes")
SingleLearner.step = fail
sys.exit(main(sys.argv[1:]))
"""
    words = ["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL]
    done = subprocess.run([*runs.command()[:1], "-c", code, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the trainer ran out of memory: it had taken" in done.stderr
    assert re.search(r"resume with .*--learner.micro_batch_tokens \d+ \(now \d+\)", done.stderr)
