"""Whole runs with an environment: equal bits after kills, staleness over whole rollouts, a failing environment."""

import os
import random
import shlex
import signal
import time

import numpy as np
import pytest
import runs
from doc_pages import blocks
from tiny_models import tiny_model

from scalerl.core.types import Group, Outcome, Rollout, ScoredGroup
from scalerl.training.loop.metrics import environment_row


@pytest.fixture
def start(lab_model, tmp_path, monkeypatch):
    words = runs.chained(tmp_path)
    monkeypatch.chdir(tmp_path)

    def begin(path, *more):
        return runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *words, *more])

    return begin


def test_metrics_are_means_over_the_rollouts_with_an_environment():
    def group(*ends):
        empty = np.empty(0, np.int32)
        rollouts = tuple(Rollout(empty, empty, empty, empty, False, False, outcome=end) for end in ends)
        return ScoredGroup(Group(None, rollouts, 0), ())

    first = Outcome(3, "environment", 1.0, "", {"guesses": 4.0}, calls=2, observed=30, waited_s=0.5)
    second = Outcome(1, "tokens", 0.0, "", {}, calls=0, observed=10, waited_s=0.1)
    assert environment_row([group(first, None), group(second)]) == {
        "turns": 2, "tool_calls": 1, "observed_tokens": 20, "reply_wait_s": 0.3, "environment/guesses": 4.0
    }  # fmt: skip
    assert environment_row([group(None)]) == {}


@pytest.mark.slow
def test_a_killed_run_with_an_environment_resumes_to_the_same_bits(start, tmp_path):
    text, _ = (whole := start(tmp_path / "whole")).communicate(timeout=300)
    assert whole.returncode == 0, text
    expected, rng = runs.outcome(tmp_path / "whole"), random.Random(4)
    process = start(path := tmp_path / "killed")
    for row in (2, 5, 9):
        runs.wait_for(lambda row=row: len(runs.rows(path, "metrics.jsonl")) >= row, what=f"row {row}")
        time.sleep(rng.random() * 0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = runs.start(["resume", str(path), "--trust"])
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert runs.outcome(path) == expected
    metrics = runs.rows(path, "metrics.jsonl")
    assert len(metrics) == 12 and max(row["staleness_max"] for row in metrics) <= 4
    assert all(1 <= row["turns"] <= 2 and row["tool_calls"] == 0 for row in metrics)
    assert all(row["observed_tokens"] == 0 or 0 <= row["environment/right"] <= 2 for row in metrics)
    assert max(row["reply_wait_s"] for row in metrics) > 0.002 and max(row["parked"] for row in metrics) > 0.1
    assert all(1 <= point["turns"] <= 2 and point["reply_wait_s"] >= 0 for point in runs.rows(path, "points.jsonl"))
    texts = [row["completion"] for row in runs.rows(path, "rollouts.jsonl")]
    assert any("+" in text.partition("⟦")[2] for text in texts)  # the second question is marked as injected


@pytest.mark.slow
def test_a_run_stops_with_the_cause_if_the_environment_fails_too_often(start, tmp_path):
    text, _ = (process := start(tmp_path / "run", "--data.params", "{fails = 3}")).communicate(timeout=300)
    assert process.returncode == 1, text
    assert "chained:Sums.reply raised KeyError: 'no entry'" in text and "at most 5% may fail" in text, text


@pytest.mark.slow
def test_rollouts_without_a_reward_enter_no_pass_rate(start, tmp_path):
    """Every second row fails: the rates of curve and metrics are those of the other rollouts."""
    words = ["--data.params", "{fails = 2}", "--steps", "2", "--evaluation.every", "1", "--evaluation.saved", "32"]
    small = ["--recipe.generations_per_prompt", "2", "--evaluation.prompts", "8"]
    text, _ = (process := start(path := tmp_path / "run", *words, *small)).communicate(timeout=300)
    assert process.returncode == 0, text
    points, rollouts = runs.rows(path, "points.jsonl"), runs.rows(path, "rollouts.jsonl")
    assert len(points) == 3
    for point in points:
        own = [row for row in rollouts if row["step"] == point["step"]]
        failed = [row for row in own if row["ended"] == "problem"]
        assert len(own) == 16 and 0 < len(failed) < 16 and point["failed"] == pytest.approx(len(failed) / 16)
        assert all(row["reward"] is None and row["passed"] is None for row in failed)
        counted = [row["passed"] for row in own if row not in failed]
        assert point["pass_rate"] == pytest.approx(sum(counted) / len(counted))
    metrics = runs.rows(path, "metrics.jsonl")
    assert metrics[-1]["reward_failures"] > 0
    assert all(row["pass_rate"] is None or 0 <= row["pass_rate"] <= 1 for row in metrics)  # None: all rollouts failed


SHORT = [
    "--steps", "2", "--recipe.prompts_per_step", "2", "--recipe.generations_per_prompt", "4",
    "--recipe.length.kind", "none", "--recipe.length.max_tokens", "4", "--evaluation.prompts", "4",
    "--evaluation.samples", "1",
]  # fmt: skip


@pytest.mark.slow
def test_the_files_and_commands_of_the_page_train_on_its_game(user_code, chat, tmp_path, handlers):
    """The page as written: its class, its configuration with a model, its commands (shorter)."""
    user_code("my_environments", blocks("docs/environments.md", "python")[0])
    (tmp_path / "guess.toml").write_text(blocks("docs/environments.md", "toml")[0])
    tiny_model(
        "qwen3", vocab_size=len(chat), max_position_embeddings=4096, eos_token_id=chat.eos_token_id
    ).save_pretrained(tmp_path / "my-model")
    chat.save_pretrained(tmp_path / "my-model")
    commands = [shlex.split(line)[1:] for line in blocks("docs/environments.md", "bash")[0].splitlines()]
    assert [words[0] for words in commands] == ["train", "train"] and "--dry-run" in commands[0]
    for words in commands:
        code, output = runs.call(*words, "--trust", *SHORT)
        assert code == 0, output
    assert all(1 <= row["turns"] <= 6 for row in runs.rows(tmp_path / "runs/guess", "metrics.jsonl"))
