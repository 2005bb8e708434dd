"""A study in real processes: killed, resumed, shown; its arms are bit-identical to ordinary runs."""

import json
import os
import signal
from pathlib import Path

import pytest
import runs

from scalerl import cli
from scalerl.training.config import read_config, to_toml


@pytest.fixture(scope="module")
def study(lab_model, tmp_path_factory):
    """A study with a broken arm; it is killed with its first run, and the same command resumes it."""
    place = tmp_path_factory.mktemp("study")
    base = read_config(None, ["--model", str(lab_model), *runs.SMALL])
    (place / "small.toml").write_text(to_toml(base))
    (place / "mine.toml").write_text(
        'base = "small.toml"\nseeds = [0]\n[arms.five]\n[arms.gspo]\nrecipe.loss = "gspo"\n'
        "[arms.broken]\nrecipe.optimizer.learning_rate = 1e9\n"
    )
    words = ["study", str(place / "mine.toml"), "-o", str(place / "out")]
    first = runs.start(words)
    run = place / "out/five/seed-0"
    runs.wait_for(lambda: any((run / "checkpoints").glob("step_*")), 120, "a checkpoint")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kill_those_with(str(run))
    assert len(runs.rows(run, "points.jsonl")) < 5  # the run was not finished
    return place, runs.call(*words)


def kill_those_with(word):
    """Kill every process whose command line contains a word, and its child processes."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mine = word in (path / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if mine and int(path.name) != os.getpid():
            for pid in [int(path.name), *runs.children(int(path.name))]:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_study_resumes_and_is_bit_identical_to_an_ordinary_run(study, lab_model, tmp_path):
    place, (code, output) = study
    assert code == 1 and "broken/seed-0 failed with exit code 1: scalerl: step " in output
    config = str(place / "out/five/seed-0.toml")
    code, output = runs.call("train", config, "--run-dir", str(tmp_path / "alone"))
    assert code == 0, output
    assert runs.outcome(place / "out/five/seed-0") == runs.outcome(tmp_path / "alone")


@pytest.mark.slow
def test_a_larger_budget_resumes_the_runs_of_a_smaller_one_bit_identically(study, tmp_path):
    place, _ = study
    words = ["study", str(place / "mine.toml"), "--only", "gspo", "--budget", "32", "--reuse", str(place / "out")]
    code, output = runs.call(*words, "-o", str(tmp_path / "longer"))
    assert code == 0 and "gspo/seed-0: taken over from" in output, output
    longer = tmp_path / "longer/gspo/seed-0"
    assert "resumed at step 24" in longer.with_suffix(".log").read_text()
    code, output = runs.call("train", str(longer / "config.toml"), "--run-dir", str(tmp_path / "alone"))
    assert code == 0, output
    assert runs.outcome(longer) == runs.outcome(tmp_path / "alone")


@pytest.mark.slow
def test_saved_results_are_shown_again(study, capsys):
    place, _ = study
    kept = json.loads((place / "out/results.json").read_text())
    assert [arm["name"] for arm in kept["arms"]] == ["five", "gspo", "broken"]
    assert kept["arms"][2]["effect"] == "unknown" and (place / "out/report.html").exists()
    assert cli.main(["study", "show", str(place / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == kept


@pytest.mark.usefixtures("no_hours")
def test_a_dry_run_names_arms_sizes_and_seeds_and_starts_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", "loo", "--dry-run", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert "11 arms x seeds 0, 1 = 22 runs" in out and "240 steps x 16 x 16" in out
    assert "uniform-sampling" in out and not list(tmp_path.iterdir())
    assert cli.main(["study", "loo", "--dry-run", "--seeds", "4,"]) == 0
    assert "11 arms x seeds 4 = 11 runs" in capsys.readouterr().out
