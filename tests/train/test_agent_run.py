"""Whole runs with an agent: records, staleness, kills at any time, a program that fails, and what is asked first."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest
import runs
from agent_parts import words
from doc_pages import ROOT, blocks


def agents_of(place):
    return [pid for pid in runs.everyone() if str(place / "agent.py") in runs.command_of(pid)]


@pytest.mark.slow
def test_a_run_with_an_agent_trains_on_its_rollouts_and_survives_kills(lab_model, tmp_path):
    path, rng = tmp_path / "run", random.Random(7)
    given = [*words(tmp_path), "--evaluation.overlap", "true", "--trust"]
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *given])
    for row in (1, 3):
        runs.wait_for(lambda row=row: len(runs.rows(path, "metrics.jsonl")) >= row, 120, what=f"row {row}")
        time.sleep(rng.random() * 0.3)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        runs.wait_for(lambda: not agents_of(tmp_path), 15, what="the end of the programs")
        process = runs.start(["resume", str(path), "--trust"])
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    metrics, points = runs.rows(path, "metrics.jsonl"), runs.rows(path, "points.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 7))
    assert all(row["turns"] == 3 and row["environment/conversations"] == 2 for row in metrics)
    assert all(row["environment/forks"] == row["environment/refused"] == 0 for row in metrics)
    assert all(0 <= row["staleness_max"] <= 4 for row in metrics) and sum(row["trained_tokens"] for row in metrics) > 0
    assert [row["step"] for row in points] == [0, 3, 6] and points[-1]["failed"] == 0
    assert all(row["replay_difference"] < 1e-4 for row in points)
    assert all(row["turns"] == 3 for row in points)
    (row, *_) = runs.rows(path, "rollouts.jsonl")
    assert "the next conversation" in row["completion"] and row["ended"] == "environment"
    assert max(abs(r["log_ratio_max"]) for r in runs.rows(path, "rollouts.jsonl") if r["log_ratio_max"]) < 1e-4


@pytest.mark.slow
def test_a_run_whose_program_fails_too_often_stops_with_the_cause(lab_model, tmp_path):
    given = words(tmp_path, fails=5, steps=40)
    code, text = runs.call("train", "--model", str(lab_model), "--run-dir", str(tmp_path / "run"), *given, "--trust")
    assert code == 1 and "the site is away" in text and "agent" in text, text


def test_a_run_asks_before_it_starts_a_program_of_a_file(lab_model, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    words(tmp_path)
    (tmp_path / "run.toml").write_text(
        f'[model]\nkind = "hf"\npath = "{lab_model}"\n[data]\nkind = "agent"\npath = "{tmp_path}/rows.jsonl"\n'
        f'command = ["{sys.executable}", "{tmp_path}/agent.py"]\n'
    )
    code, text = runs.call("train", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run"))
    assert code == 2 and "data.command" in text and "agent.py" in text and "--trust" in text, text


@pytest.mark.slow
def test_the_program_and_the_commands_of_the_page_train_a_tiny_model(tmp_path, monkeypatch):
    """The page as written, with fewer rollouts."""
    monkeypatch.chdir(tmp_path)
    (program,) = (text for text in blocks("docs/environments.md", "python") if "OPENAI_BASE_URL" in text)
    (commands,) = (text for text in blocks("docs/environments.md", "bash") if "agent.py" in text)
    (tmp_path / "agent.py").write_text(program)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [shlex.split(line) for line in commands.replace("\\\n", " ").splitlines()]
    assert [line[0] for line in words] == ["python", "python", "scalerl"]
    subprocess.run([sys.executable, *words[0][1:]], check=True)
    (tmp_path / "rows.jsonl").write_bytes(subprocess.run([sys.executable, words[1][1], "rows"], stdout=-1).stdout)
    assert words[1][2:] == ["rows", ">", "rows.jsonl"]
    shorter = {"--recipe.prompts_per_step": "2", "--recipe.generations_per_prompt": "2", "--steps": "2"}
    train = [shorter.get(before, word) for before, word in zip(words[2], words[2][1:], strict=False)]
    code, text = runs.call(*train, "--evaluation.prompts", "4", "--evaluation.samples", "1")
    assert code == 0, text
    assert all(row["turns"] == 2 for row in runs.rows(tmp_path / "runs/agent", "metrics.jsonl"))
