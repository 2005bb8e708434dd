"""`scalerl ls`: its output, within 80 columns."""

from __future__ import annotations

import json

import pytest
from logged_runs import point, row

from scalerl.cli.main import main
from scalerl.core.status import Heartbeat
from scalerl.training.config import read_config
from scalerl.training.loop.run_dir import RunDirectory


def make_run(path, steps, state="", message=""):
    """Write a run with rows of these steps and an evaluation at every tenth; return its locked directory."""
    run = RunDirectory.create(path, read_config(None, {"steps": 100}))
    run.append("metrics.jsonl", [{**row(step), "generator_tokens_per_s": 123456.7, "step_s": 1.25} for step in steps])
    run.add_points([point(step) for step in (0, *steps) if step % 10 == 0])
    if state:
        with Heartbeat(path) as beating:
            beating.ended(state, message)
    return run


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "a-finished-run-with-a-name-of-many-characters", range(1, 101), "finished").close()
    make_run(tmp_path / "failed", range(1, 8), "failed", "the loss was not finite").close()
    make_run(tmp_path / "new", ()).close()
    (tmp_path / "broken\x1b[31m").mkdir()
    (tmp_path / "broken\x1b[31m" / "config.toml").write_text("nonsense = ")
    return tmp_path


def test_ls_prints_a_json_object_for_each_run(runs, capsys):
    assert main(["ls", str(runs), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["state"], one["step"], len(one["tasks"])) for one in found] == [
        ("finished", 100, 1), ("unreadable", 0, 0), ("failed", 7, 1), ("dead", 0, 1),
    ]  # fmt: skip
    (task,) = found[0]["tasks"].values()
    assert task["pass_rate"] == pytest.approx(0.4118, abs=1e-3) and task["step"] == 100 and task["evaluations"] == 11
    assert task["at_twice"]["low"] < task["at_twice"]["mean"] < task["at_twice"]["high"] and task["problem"] == ""
    (task,) = found[2]["tasks"].values()
    assert task["at_twice"] is None is task["action"] and "after training began" in task["problem"]
    assert "run.json" in found[1]["detail"]


def test_ls_lists_every_run_with_state_step_pass_rate_forecast_and_advice(runs, capsys):
    assert main(["ls", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [
        ["broken\\x1b[31m", "unreadable", "run.json"], ["failed", "failed", "7/100"], ["new", "dead", "0/100"],
    ]  # fmt: skip
    name, state, step, rate, ahead, advice = lines[1].split()
    assert (name, state, step, rate) == ("a-finished-..-characters", "finished", "100/100", "0.412")
    low, high = map(float, ahead.split("-"))
    assert 0.4125 < low <= high < 0.6
    assert advice in ("continue", "stop", "unknown")
    assert all(len(line) <= 80 for line in lines)
