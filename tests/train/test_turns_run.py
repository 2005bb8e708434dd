"""Whole runs with an environment: equal bits after kills, staleness over whole rollouts, a failing environment."""

import os
import random
import signal
import time

import pytest
import runs

MODULE = """
import re, time

class Sums:
    def __init__(self, fails=0):
        self.fails = fails
    def rows(self, count):
        for n in range(count):
            yield {"prompt": f"{n % 10}+{n // 10 % 10}=<think>", "more": n // 7 % 10}
    def reply(self, row, messages):
        time.sleep(0.002)
        if self.fails and row["more"] % self.fails == 0:
            raise KeyError("no entry")
        said = [one["content"] for one in messages if one["role"] == "assistant"]
        a, b = map(int, re.findall(r"[0-9]", row["prompt"]))
        right = [(a + b) % 10, (a + b + row["more"]) % 10]
        score = sum(text[-1:] == str(digit) for text, digit in zip(said, right)) / 2
        return score if len(said) == 2 else f"{right[0]}+{row['more']}=<think>"
"""


def words(tmp_path, path, *more):
    return [
        "train", "--preset", "lab", "--run-dir", str(path), *runs.RECIPE, "--data.kind", "custom",
        "--data.function", "chained:Sums", "--data.prompts", "60", "--data.turns", "2", "--data.reply_tokens", "6",
        "--steps", "12", *more,
    ]  # fmt: skip


@pytest.fixture
def start(lab_model, tmp_path, monkeypatch):
    (tmp_path / "chained.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def begin(path, *more):
        return runs.start([*words(tmp_path, path, *more), "--model", str(lab_model)])

    return begin


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
    texts = [row["completion"] for row in runs.rows(path, "rollouts.jsonl")]
    assert any("+" in text.partition("⟦")[2] for text in texts)  # the second question is marked as injected


@pytest.mark.slow
def test_a_run_stops_with_the_cause_if_the_environment_fails_too_often(start, tmp_path):
    text, _ = (process := start(tmp_path / "run", "--data.params", "{fails = 3}")).communicate(timeout=300)
    assert process.returncode == 1, text
    assert "chained:Sums.reply raised KeyError: 'no entry'" in text and "at most 5% may fail" in text, text
