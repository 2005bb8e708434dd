"""Whole runs: their files, determinism, and resumes after kills."""

import contextlib
import os
import random
import re
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import runs

from scalerl.core.status import read_status
from scalerl.reading.pages.run import FollowedRun
from scalerl.training.loop.catalog import METRICS
from scalerl.training.rewards.answers import ANSWER_FORMS


@pytest.fixture
def undisturbed(lab_run):
    return lab_run, lab_run.with_suffix(".txt").read_text()


def test_a_run_writes_all_documented_files(undisturbed):
    path, printed = undisturbed
    for name in ("config.toml", "metrics.jsonl", "points.jsonl", "rollouts/samples.jsonl", "summary.json", "curve.png",
                 "model/config.json", "model/tokenizer.json", "model/model.safetensors",
                 "checkpoints/step_000024"):  # fmt: skip
        assert (path / name).exists(), name
    points, metrics = runs.rows(path, "points.jsonl"), runs.rows(path, "metrics.jsonl")
    assert [p["step"] for p in points] == [0, 6, 12, 18, 24] and [m["step"] for m in metrics] == list(range(1, 25))
    environments = {"turns", "tool_calls", "observed_tokens", "reply_wait_s", "parked"}
    forms = {f"answer_{form}" for form in (*ANSWER_FORMS, "unread")}  # of mathematical answers
    assert {"step", *METRICS} - environments - forms - {"router_disagreement", "kl"} == set().union(*metrics)
    documented = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in documented for name in points[0])
    assert points[0]["flops"] == points[0]["tokens"] == points[0]["device_hours"] == 0
    for earlier, later in pairwise(points):
        assert later["flops"] > earlier["flops"] and later["tokens"] > earlier["tokens"]
        assert later["device_hours"] > earlier["device_hours"]
    assert "24 steps of 4 prompts x 4 generations = 16 completions" in printed
    assert (
        f"run       {path}" in printed
        and "curve.png" in printed
        and re.search(r"^(Continue|Stop|Open|About what you ask for|Go back to)", printed, re.M)
    )
    assert FollowedRun(path).state == "finished" and read_status(path).message.startswith("trained 24 updates")


def test_every_component_of_the_recipe_has_an_effect(undisturbed):
    path, _ = undisturbed
    metrics = runs.rows(path, "metrics.jsonl")
    assert max(m["staleness_max"] for m in metrics) >= 2 and max(m["staleness_max"] for m in metrics) <= 4
    assert any(m["kept_prompts"] < m["prompts"] for m in metrics)
    assert metrics[-1]["epoch"] >= 2 and metrics[-1]["retired_prompts"] > 0
    assert any(m["interruption_rate"] > 0 for m in metrics)
    on_policy = metrics[0]
    assert max(abs(on_policy["log_ratio_min"]), abs(on_policy["log_ratio_max"])) <= 1e-5
    assert all(m.get("log_ratio_fresh", 0.0) <= 1e-5 for m in metrics)


@pytest.mark.slow
def test_the_mismatch_of_an_exact_engine_is_rounding_even_if_weights_change_within_most_rollouts(lab_model, tmp_path):
    """Every step trains tokens of its own weights, but nearly all of them over a cache of older ones."""
    runs.train(lab_model, tmp_path / "run", "--recipe.off_policy.max_lag", "1")
    metrics = runs.rows(tmp_path / "run", "metrics.jsonl")
    assert max(m.get("log_ratio_stale", 0.0) for m in metrics) > 1e-3
    assert all(m.get("log_ratio_fresh", 0.0) <= 1e-5 for m in metrics)


@pytest.mark.slow
def test_the_saved_configuration_repeats_the_run(undisturbed, tmp_path):
    path, _ = undisturbed
    runs.finish("train", str(path / "config.toml"), "--run-dir", str(tmp_path / "again"))
    assert runs.outcome(tmp_path / "again") == runs.outcome(path)


@pytest.mark.slow
def test_checkpoints_in_minutes_are_written_between_steps_and_change_no_bit(undisturbed, lab_model, tmp_path):
    path = tmp_path / "run"
    words = ["--checkpoint.every", "1000", "--checkpoint.every_minutes", "1e-6", "--checkpoint.keep", "100"]
    runs.train(lab_model, path, *words)
    saved = [int(one.name.removeprefix("step_")) for one in sorted((path / "checkpoints").glob("step_*"))]
    assert saved == list(range(1, 25))
    assert runs.outcome(path) == runs.outcome(undisturbed[0])


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe.off_policy", "ppo-off-policy", "--recipe.off_policy.batches", "4", "--recipe.loss", "gspo"],
        ["--recipe.off_policy.max_lag", "0", "--recipe.length", "penalty", "--recipe.length.max_tokens", "30",
         "--recipe.length.cache_tokens", "10", "--recipe.aggregation", "token", "--recipe.advantage", "group",
         "--recipe.zero_variance", "keep", "--recipe.truncated", "keep", "--recipe.retire_pass_rate", "none"],
        ["--rollouts.schedule", "eager", "--recipe.loss", "dapo", "--recipe.length", "none",
         "--recipe.length.max_tokens", "40", "--recipe.aggregation", "sample", "--hardware.dtype", "bfloat16"],
    ],
    ids=["ppo-off-policy", "on-policy", "eager-bf16"],
)  # fmt: skip
@pytest.mark.slow
def test_other_recipes_run(lab_model, tmp_path, words):
    runs.train(lab_model, tmp_path / "run", *(w for w in words), "--steps", "8")
    metrics = runs.rows(tmp_path / "run", "metrics.jsonl")
    bound = 3 if "ppo-off-policy" in words else 0 if "0" in words else 4
    assert len(metrics) == 8 and max(m["staleness_max"] for m in metrics) <= bound
    if bound:
        assert max(m["staleness_max"] for m in metrics) > 0


def kill_at(path, process, row, victims, rng):
    """Kill processes shortly after the run has written a given number of metrics rows; return its output."""
    # a resumed run truncates its files before it starts its generator
    runs.wait_for(lambda: process.poll() is not None or runs.children(process.pid), what="the generator")
    runs.wait_for(lambda: len(runs.rows(path, "metrics.jsonl")) >= row or process.poll() is not None, what=f"row {row}")
    time.sleep(rng.random() * 0.05)
    generators = runs.children(process.pid) if process.poll() is None else []
    started = runs.descendants(process.pid)
    targets = {"trainer": [process.pid], "generator": generators, "both": [*generators, process.pid]}[victims]
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=120)  # test_signals.py measures how fast processes end
    assert not runs.left_of(started, 60)
    return text


@pytest.mark.slow
def test_six_kills_at_random_times_give_the_same_weights_and_points(undisturbed, lab_model, tmp_path):
    path, rng = tmp_path / "killed", random.Random(7)
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL])
    row = 0
    for kill in range(6):
        row = max(1, min(23, row + rng.randint(0, 5)))
        victims = ("trainer", "generator", "both")[kill % 3]
        text = kill_at(path, process, row, victims, rng)
        if victims == "generator" and process.returncode != 0:
            assert "the generator process" in text and "was killed by signal 9" in text, text
            assert "Traceback" not in text, text
            assert f"continue with: scalerl resume {path}" in text
        row = len(runs.rows(path, "metrics.jsonl"))
        process = runs.start(["resume", str(path)])
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert runs.outcome(path) == runs.outcome(undisturbed[0])


@pytest.mark.slow
def test_a_kill_within_a_frozen_round_resumes_with_the_weights_of_the_round(lab_model, tmp_path):
    words = ["--recipe.off_policy", "ppo-off-policy", "--recipe.off_policy.batches", "3", "--checkpoint.every", "1"]
    words += ["--steps", "9"]
    runs.train(lab_model, tmp_path / "whole", *words)
    path = tmp_path / "killed"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *words])
    kill_at(path, process, 5, "both", random.Random(1))
    runs.finish("resume", str(path))
    assert runs.outcome(path) == runs.outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_stops_the_run_with_a_checkpoint_of_the_last_step(undisturbed, lab_model, tmp_path):
    path, number = tmp_path / "stopped", signal.SIGINT
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL])
    runs.wait_for(lambda: len(runs.rows(path, "metrics.jsonl")) >= 5, what="five steps")
    os.killpg(process.pid, number)  # as a terminal or a service manager does: to the generator too
    text, _ = process.communicate(timeout=60)
    steps = len(runs.rows(path, "metrics.jsonl"))
    assert process.returncode == 128 + number and "Traceback" not in text, text
    assert f"stopped at step {steps}; continue with: scalerl resume {path}" in text
    assert FollowedRun(path).state == "stopped" and read_status(path).message.startswith(f"stopped at step {steps}")
    assert (path / f"checkpoints/step_{steps:06d}").exists()
    runs.finish("resume", str(path))
    assert runs.outcome(path) == runs.outcome(undisturbed[0])


@pytest.mark.slow
def test_a_condition_finishes_the_run_and_a_resume_overrules_it(lab_model, tmp_path):
    path = tmp_path / "conditioned"
    words = ["--evaluation.every", "2", "--evaluation.samples", "4", "--steps", "24", "--stop_when", '["falling"]']
    # a learning rate that destroys the policy within a few updates
    text = runs.train(lab_model, path, *words, "--recipe.optimizer.learning_rate", "0.05", "--evaluation.prompts", "60")
    step = int(re.search(r"step (\d+): stopping, because 'falling' holds: the metric fell by", text)[1])
    assert step < 24 and f"stopped by the condition 'falling'; trained {step} updates" in text
    assert (path / "model/config.json").exists() and len(runs.rows(path, "metrics.jsonl")) == step
    text = runs.finish("resume", str(path))
    assert "this condition is ignored from now on" in text, text
    assert len(runs.rows(path, "metrics.jsonl")) == 24 and "stopping, because" not in text


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped_and_the_run_ends_with_the_same_bits(undisturbed, tmp_path):
    path = tmp_path / "damaged"
    shutil.copytree(undisturbed[0], path)
    part = path / "checkpoints/step_000024/generator.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    text = runs.finish("resume", str(path))
    assert "the checkpoint of step 24 cannot be used: generator.safetensors has other contents than were" in text
    assert "going back to the checkpoint of step 20" in text and "resumed at step 20" in text
    assert runs.outcome(path) == runs.outcome(undisturbed[0])
    assert (path / "checkpoints/damaged_step_000024-001/generator.safetensors").read_bytes() == data


@pytest.mark.slow
def test_a_moved_run_directory_ends_the_run_and_can_be_resumed(lab_model, tmp_path):
    path, there = tmp_path / "run", tmp_path / "moved"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, "--steps", "500"])
    runs.wait_for(lambda: list(path.glob("checkpoints/step_*")), what="a checkpoint")
    path.rename(there)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in text, text
    assert str(path) in text
    assert not path.exists() and runs.rows(there, "points.jsonl")


def test_a_configuration_changed_before_a_resume_is_refused(undisturbed, tmp_path):
    path = tmp_path / "changed"
    shutil.copytree(undisturbed[0], path)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("temperature = 1.0", "temperature = 0.9"))
    code, text = runs.call("resume", str(path))
    assert code == 2 and "recipe.temperature = 0.9" in text and "Traceback" not in text
