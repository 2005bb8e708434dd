"""Whole runs with other implementations: several engines, another channel and other staleness rules."""

import os
import random
import signal
import time

import pytest
import runs

TWO = ["--placement.generators", "2", "--rollouts.slots", "32"]


@pytest.fixture(scope="module")
def two_engines(lab_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "two"
    runs.train(lab_model, path, *TWO)
    return path


@pytest.mark.slow
def test_two_engines_give_equal_bits_on_a_busy_machine(two_engines, lab_model, tmp_path):
    runs.train(lab_model, tmp_path / "again", *TWO, "--hardware.trainer_threads", "1")
    assert runs.outcome(tmp_path / "again") == runs.outcome(two_engines)
    metrics = runs.rows(two_engines, "metrics.jsonl")
    assert len(metrics) == 24 and max(m["staleness_max"] for m in metrics) <= 4
    assert max(abs(metrics[0]["log_ratio_min"]), abs(metrics[0]["log_ratio_max"])) <= 1e-5


@pytest.mark.slow
def test_two_engines_give_equal_bits_after_kills_and_resumes(two_engines, lab_model, tmp_path):
    path, rng = tmp_path / "killed", random.Random(3)
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *TWO])
    for row in (5, 14):
        runs.wait_for(lambda row=row: len(runs.rows(path, "metrics.jsonl")) >= row, what=f"row {row}")
        time.sleep(rng.random() * 0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = runs.start(["resume", str(path)])
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert runs.outcome(path) == runs.outcome(two_engines)


@pytest.mark.slow
def test_a_killed_engine_process_ends_the_run_and_is_named(lab_model, tmp_path):
    path = tmp_path / "run"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *TWO])
    runs.wait_for(lambda: len(runs.rows(path, "metrics.jsonl")) >= 3, what="three steps")
    (generator,) = runs.children(process.pid)
    os.kill(runs.children(generator)[-1], signal.SIGKILL)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and f"continue with: scalerl resume {path}" in text, text
    assert "generator 2 of 2 (process " in text or "generator 1 of 2 (process " in text


@pytest.mark.slow
def test_a_directory_channel_gives_the_same_bits_as_shared_memory(lab_model, tmp_path):
    runs.train(lab_model, tmp_path / "memory")
    runs.train(lab_model, tmp_path / "directory", "--rollouts.weights", "directory")
    assert runs.outcome(tmp_path / "directory") == runs.outcome(tmp_path / "memory")
    assert list((tmp_path / "directory/weights").iterdir()) == []  # no files are left


@pytest.mark.parametrize("rule", ["mask", "drop"])
@pytest.mark.slow
def test_other_staleness_rules_keep_the_bound_and_resume_to_the_same_bits(lab_model, tmp_path, rule):
    words = ["--recipe.off_policy.stale", rule, "--recipe.off_policy.max_lag", "2"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    runs.train(lab_model, whole, *words)
    runs.train(lab_model, stopped, *words, "--steps", "12")
    runs.finish("resume", str(stopped), "--steps", "24")
    assert runs.outcome(stopped) == runs.outcome(whole)
    metrics = runs.rows(whole, "metrics.jsonl")
    if rule == "mask":  # the loop itself asserts that no trained token is older than k
        assert max(m["staleness_max"] for m in metrics) > 2 and max(m["stale_share"] for m in metrics) > 0
        assert metrics[-1]["dropped_groups"] == 0
    else:
        assert max(m["staleness_max"] for m in metrics) == 2 and metrics[-1]["dropped_groups"] > 0
        assert max(m["stale_share"] for m in metrics) == 0


@pytest.mark.slow
def test_an_evaluation_within_a_frozen_round_uses_the_newest_weights(lab_model, tmp_path):
    words = ["--recipe.off_policy", "ppo-off-policy", "--recipe.off_policy.batches", "4", "--steps", "8",
             "--recipe.optimizer.warmup_steps", "1"]  # fmt: skip
    runs.train(lab_model, tmp_path / "often", *words, "--evaluation.every", "1")
    runs.train(lab_model, tmp_path / "seldom", *words, "--evaluation.every", "4")
    often, seldom = (runs.outcome(tmp_path / name) for name in ("often", "seldom"))
    for outcome in (often, seldom):
        for row in outcome["metrics.jsonl"]:
            assert row.pop("replay_difference") < 1e-4  # of the last evaluation, which is not the same one
    assert often["model"] == seldom["model"] and often["metrics.jsonl"] == seldom["metrics.jsonl"]
    assert [p for p in often["points.jsonl"] if p["step"] % 4 == 0] == seldom["points.jsonl"]
    results = [(p["pass_rate"], p["mean_tokens"]) for p in often["points.jsonl"]]
    # the weights of each update, not of the round
    assert len(set(results[:4])) > 1 and len(set(results[4:8])) > 1, results
