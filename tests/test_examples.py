"""examples/: every script and the notebook run, with fewer training steps."""

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import runs

from scalerl.core import plugins

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN = ("tiny_model", "own_reward", "own_loss", "own_task", "own_engine", "own_environment", "own_agent", "own_logger")
"""Modules of the examples that a run imports."""
NOTEBOOK = json.loads((EXAMPLES / "forecast_and_train.ipynb").read_text())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty current directory with examples/ on the path; runs have three steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import tiny_model

    monkeypatch.setattr(sys, "argv", ["example"])
    shorter = {"steps": 3, "evaluation": {"prompts": 8, "samples": 2, "every": 3}}
    monkeypatch.setattr(tiny_model, "QUICK", tiny_model.QUICK | shorter)
    yield tmp_path
    plugins.loaded.cache_clear()
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "used", "column"),
    [
        ("own_reward", 'function = "own_reward:letters"', "truncation_rate"),
        ("own_loss", "highest = 1.1", "staleness_mean"),
        ("own_task", 'function = "own_task:Reverse"', "truncation_rate"),
        ("own_environment", 'function = "own_environment:Lookups"', "truncation_rate"),
        ("own_agent", 'function = "own_agent:follow"', "turns"),
        ("own_engine", 'function = "own_engine:Counting"', "replay_difference"),
        ("own_logger", 'function = "own_logger:Lines"', "truncation_rate"),
    ],
)
@pytest.mark.slow
def test_a_script_trains_with_its_plug_in_and_shows_every_step(place, capsys, name, used, column):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert used in (place / "runs/scalerl-001/config.toml").read_text()
    assert len(runs.rows(place / "runs/scalerl-001", "metrics.jsonl")) == 3
    assert re.search(
        rf"step .*{column}\n( +[123]( +\S+){{3}}\n){{3}}Run\('runs/scalerl-001', step 3 of 3\)$", out.strip()
    )


def test_the_uniform_engine_finishes_its_requests(capsys):
    runpy.run_path(str(EXAMPLES / "uniform_engine.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(")")[0] for line in lines) == [f"(0, {number}" for number in range(4)]
    assert all(("truncated" in line) != line.rstrip().endswith("0]") for line in lines)


def test_the_trl_log_is_reproducible_and_its_forecast_contains_the_true_value(place):
    made = runpy.run_path(str(EXAMPLES / "make_trl_log.py"))
    state = made["state"]()
    assert state == json.loads((EXAMPLES / "trl_log/trainer_state.json").read_text())
    done = subprocess.run([sys.executable, EXAMPLES / "forecast_trl_log.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    low, high = map(float, re.search(r"\nat \S+ device-hours: \S+ \((\S+) to (\S+)\)", done.stdout).groups())
    true = 0.22 + (0.71 - 0.22) / (1 + (120 / 1600) ** 1.6)  # the law at twice the 800 steps
    assert low < true < high and high - low < 0.1


@pytest.mark.slow
def test_the_notebook_runs_and_is_stored_without_outputs(place, capsys, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in NOTEBOOK["cells"]) and len(cells) == 7
    text = "\n".join(cells)
    assert text.count('"steps": 48') == text.count('"every": 3') == 1
    names = {}
    for cell in cells:
        short = cell.replace('"steps": 48', '"steps": 9').replace('"every": 3', '"every": 1')
        exec(compile(ast.parse(short), "notebook", "exec"), names)
    out = capsys.readouterr().out
    assert len(names["run"].points) == 10 and len(names["half"]) == 6 and names["run"].finished
    assert (
        "  A       " in out and "the ceiling" in out and "measured: 0." in out and len(names["axes"].figure.axes) == 1
    )
