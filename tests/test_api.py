"""The Python interface: train, resume and load from scripts, and the methods of a run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from itertools import groupby

import matplotlib
import pytest
import runs

import scalerl
from scalerl.api import _configure
from scalerl.training.config.overrides import read_config

matplotlib.use("Agg")

FIELDS = {name[2:]: json.loads(value) for name, value in zip(runs.SMALL[::2], runs.SMALL[1::2], strict=True)}
FIELDS = {name: value for name, value in FIELDS.items() if name != "steps"} | {"evaluation.every": 1}


def script(tmp_path, body):
    """Start a script that has no `if __name__ == "__main__"`."""
    file = tmp_path / "script.py"
    file.write_text("import scalerl\nprint('imported', flush=True)\n" + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )


@pytest.fixture(scope="module")
def trained(lab_model, tmp_path_factory):
    """Return the output of a script that trained a run."""
    place = tmp_path_factory.mktemp("api")
    process = script(
        place,
        f"""
        import torch
        from scalerl.core.status import Heartbeat
        torch.set_default_dtype(torch.float64)
        whole = Heartbeat.phase
        Heartbeat.phase = lambda *words: (print("phase:", words[1], flush=True), whole(*words))
        run = scalerl.train(model={str(lab_model)!r}, run_dir="first", seed=3, steps=6, **{FIELDS})
        print(run, run.finished, torch.get_default_dtype())
        """,
    )
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


@pytest.fixture
def run(lab_run):
    return scalerl.load(lab_run)


@pytest.mark.slow
def test_a_script_without_a_main_guard_trains_once_and_shows_its_steps(trained):
    text = trained
    assert text.count("imported") == 1  # no process of the run imported the script again
    assert "step 6/6" in text and "Run('first', step 6 of 6) True torch.float64" in text


@pytest.mark.slow
def test_a_run_says_when_it_evaluates_trains_and_saves(trained):
    phases = [line.partition(": ")[2] for line in trained.splitlines() if line.startswith("phase: ")]
    initials = "".join(phase[0] for phase, _ in groupby(phases))
    # evaluations at steps 0 to 6, checkpoints after steps 4 and 6, and the model at the end
    assert initials == 5 * "et" + "st" + 2 * "et" + "sts"


def test_a_run_gives_its_configuration_points_and_metrics(run):
    assert (run.config.seed, run.config.recipe.generations_per_prompt, run.step) == (0, 4, 24)
    points, metrics = run.points, run.metrics
    assert list(points["step"]) == [0, 6, 12, 18, 24] and list(metrics["step"]) == list(range(1, 25))
    assert (run.model_path / "config.json").exists()


def test_rows_are_dicts_without_pandas(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["step"] for row in run.points] == [0, 6, 12, 18, 24]


def test_a_run_can_fit_forecast_advise_and_plot(run):
    found, ahead = run.fit(), run.forecast(at=["2x"])
    assert len(found.curve) == 5 and found.curve.metric[-1] == run.points["pass_rate"].iloc[-1]
    assert len(ahead.at) == 1 and ahead.at[0].low <= ahead.at[0].mean <= ahead.at[0].high
    assert run.advise().action in ("continue", "stop", "not known yet")
    axes = run.plot(compute="tokens")
    assert "token" in axes.get_xlabel()


@pytest.mark.slow
def test_an_interrupt_leaves_a_run_that_can_be_resumed(lab_model, tmp_path):
    process = script(
        tmp_path,
        f"""
        run = scalerl.train(model={str(lab_model)!r}, run_dir="first", steps=40, **{FIELDS})
        print("stopped:", run.finished, run.step < 40)
        print("resumed:", run.resume(steps=run.step + 2).finished)
        """,
    )
    runs.wait_for(lambda: len(runs.rows(tmp_path / "first", "metrics.jsonl")) >= 3, 120, "three steps")
    os.kill(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "stopped: False True" in text and "resumed: True" in text


def test_two_underscores_stand_for_a_dot_and_short_names_are_those_of_the_command_line():
    words = ["--model", "m", "--data", "p.jsonl", "--recipe.loss.max_ratio", "8", "--seed", "2"]
    given, _ = _configure(None, {"model": "m", "data": "p.jsonl", "recipe__loss__max_ratio": 8.0, "seed": 2})
    assert given == read_config(None, words)
    # only the given fields of a configuration change, so gspo does not set its default "sample"
    other = [*words[:4], "--seed", "2", "--recipe.loss", "gspo", "--recipe.aggregation", "prompt"]
    assert _configure(given, {"recipe.loss": "gspo"}) == (read_config(None, other), [])
