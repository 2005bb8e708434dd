"""Going back to an earlier checkpoint: the best one is kept, the advice gives the command, and the command works."""

import json
import shutil

import numpy as np
import pytest
import runs
from pydantic import ValidationError

from scalerl.api import load
from scalerl.core.errors import ConfigError
from scalerl.core.run_files import best_step, held_out_rates, saved_steps
from scalerl.core.types import EvalPoint
from scalerl.reading.pages.analysis import analyze
from scalerl.reading.pages.outlook import way_back
from scalerl.reading.pages.page import page
from scalerl.reading.pages.run import FollowedRun
from scalerl.training.config import LAB
from scalerl.training.config.run import Checkpointing
from scalerl.training.learner.checkpoint import TRAINER_FORMAT, CheckpointStore, save_state
from scalerl.training.loop.run_dir import RunDirectory
from scalerl.training.loop.saved import checkpoint_of

RATES = {10: 0.5, 20: 0.8, 30: 0.6, 40: 0.7, 50: 0.8, 60: 0.3}


def evaluation(step, rate, task="arithmetic"):
    return EvalPoint(
        step=step, device_hours=step / 10, flops=1e12 * step, tokens=step, task=task, pass_rate=rate, stderr=0.003,
        prompts=100, samples_per_prompt=4, truncated=0.0, mean_tokens=20.0, eval_s=1.0,
    )  # fmt: skip


def commit(store, step, rates=None):
    save_state(store.begin(step), "trainer", {"format": TRAINER_FORMAT, "step": step, "cursors": {}})
    store.commit(step, rates)


def test_the_best_checkpoint_outlives_the_last_ones_until_a_better_one(tmp_path):
    store, kept = CheckpointStore(tmp_path, keep=2), []
    for step in RATES:
        commit(store, step, {own: rate for own, rate in RATES.items() if own <= step})
        kept.append(store.steps())
    # of equal ones the last: it was trained longest
    assert kept == [[10], [10, 20], [20, 30], [20, 30, 40], [40, 50], [50, 60]]
    assert store.latest().name == "step_000060"
    commit(CheckpointStore(tmp_path, keep=2), 70, RATES)  # a resume; step 70 was not evaluated
    assert store.steps() == [50, 60, 70]
    assert (store.path(50) / "manifest.json").exists()


def test_without_evaluations_of_their_steps_only_the_last_checkpoints_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for step in (10, 20, 30):
        commit(store, step, {5: 0.9, 15: 0.8})
    assert store.steps() == [30]


@pytest.mark.parametrize(("fields", "near"), [({"keep_every": 120}, 100), ({"every": 30, "keep_every": 10}, 30)])
def test_a_step_to_keep_that_has_no_checkpoint_is_an_error(fields, near):
    with pytest.raises(ValidationError, match=f"keep_every: got .* a multiple of checkpoint.every .*such as {near}"):
        Checkpointing(**fields)


def test_the_rate_of_a_step_is_the_mean_over_the_tasks_without_suites():
    points = [evaluation(10, 0.2), evaluation(10, 0.6, "code"), evaluation(10, 1.0, "aime"), evaluation(20, 0.9)]
    assert held_out_rates(points, ["arithmetic", "code"]) == {10: pytest.approx(0.4)}
    assert held_out_rates([*points, evaluation(20, np.nan, "code")], ["code"]) == {10: 0.6}
    assert best_step([20, 40, 60], {20: 0.5, 40: 0.7, 50: 0.9}) == 40
    assert best_step([], {20: 0.5}) is None and best_step([30], {20: 0.5}) is None


@pytest.fixture
def fallen(tmp_path):
    """A run at 0.5 that has fallen to 0.2, with checkpoints of the steps 10, 30 and 45."""
    run = RunDirectory.create(tmp_path / "run", LAB)
    noise = 0.003 * np.random.default_rng(0).standard_normal(46)
    rates = [0.5 - 0.3 * np.exp(-step / 4) - 0.3 * (step > 42) + noise[step] for step in range(46)]
    run.add_points([evaluation(step, rate) for step, rate in enumerate(rates)])
    run.append("metrics.jsonl", [{"step": step} for step in range(1, 46)])
    run.close()
    (run.path / "checkpoints").mkdir()
    store = CheckpointStore(run.path / "checkpoints", keep=9)
    for step in (10, 30, 45):
        commit(store, step)
    return run.path, rates


def test_the_advice_to_go_back_gives_the_checkpoint_that_exists_and_the_command(fallen, capsys):
    from scalerl.cli.main import main

    path, rates = fallen
    command = f"scalerl resume {path} --from-step 30"
    best = f"The best checkpoint, step 30 (pass rate {rates[30]:.3f}): {command}"
    assert load(path).advise().sentence.endswith(best)
    assert main(["fit", str(path)]) == 0
    assert best in capsys.readouterr().out
    assert main(["fit", str(path), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice["action"] == "go back" and command in advice["sentence"]
    assert main(["report", str(path), "-o", str(path.parent / "page.html")]) == 0
    assert best in capsys.readouterr().out and command in (path.parent / "page.html").read_text()
    watched = FollowedRun(path)
    assert best in watched.outlook("arithmetic").lines()[0]
    analysis = analyze([watched.source("arithmetic")], outlooks=[watched.outlook("arithmetic")])
    (cards,) = [
        block["cards"] for block in page(watched, {"arithmetic": analysis})["blocks"] if block["kind"] == "cards"
    ]
    assert [card["lines"][-1].endswith(best) for card in cards if card["title"] == "Advice"] == [True]
    shutil.rmtree(path / "checkpoints/step_000030")
    assert "step 10" in load(path).advise().sentence  # always one that exists
    shutil.rmtree(path / "checkpoints")
    assert "No checkpoint from before the fall is left" in load(path).advise().sentence
    two = [evaluation(10, 0.4), evaluation(10, 0.2, "code")]
    commit(CheckpointStore(path, keep=1), 10)
    (path / "checkpoints").mkdir()
    (path / "step_000010").rename(path / "checkpoints/step_000010")
    assert "step 10 (mean pass rate 0.300)" in way_back(path, two, ["arithmetic", "code"])


@pytest.mark.parametrize(
    ("saved", "step", "what"),
    [
        ([15, 25, 55], 25, "the last checkpoint before the best evaluation, step 25"),  # none was evaluated
        ([15, 60], 15, "the last checkpoint before the best evaluation, step 15"),  # 60 is fallen
        ([20, 25, 60], 20, "the best checkpoint, step 20 (pass rate 0.600)"),
        ([10, 60], 10, "the best checkpoint, step 10 (pass rate 0.500)"),
    ],
)
def test_going_back_leads_to_a_checkpoint_from_before_the_fall(tmp_path, saved, step, what):
    (tmp_path / "checkpoints").mkdir()
    for each in saved:
        (tmp_path / f"checkpoints/step_{each:06d}").mkdir()
    rates = [evaluation(at, rate) for at, rate in ((10, 0.5), (20, 0.6), (30, 0.65), (40, 0.3), (60, 0.2))]
    text = way_back(tmp_path, rates, ["arithmetic"])
    assert what[4:] in text and text.endswith(f"--from-step {step}")
    assert "No checkpoint from before the fall" in way_back(tmp_path / "none", rates, ["arithmetic"])


def test_a_step_without_a_usable_checkpoint_is_refused_and_nothing_changes(fallen):
    path, _ = fallen
    run, store = RunDirectory.resume(path), CheckpointStore(path / "checkpoints", keep=2)
    for step in (0, -1, 31, 46):
        with pytest.raises(ConfigError, match=rf"--from-step: got {step}, but .* no checkpoint .*allowed: 10, 30, 45"):
            checkpoint_of(run, store, step)
    file = store.path(30) / "trainer.json"
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ConfigError, match=r"got 30, but its checkpoint cannot be used: trainer.json .*others: 10, 45"):
        checkpoint_of(run, store, 30)
    assert checkpoint_of(run, store, 10).path == store.path(10) and store.steps() == [10, 30, 45]
    run.close()


def test_later_checkpoints_are_removed_newest_first(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=9)
    for step in (10, 20, 30, 40):
        commit(store, step)
    removed = []
    monkeypatch.setattr(shutil, "rmtree", lambda path: removed.append(path.name))  # as if killed before it removes
    store.remove_after(20)
    assert removed == [".step_000040.removed", ".step_000030.removed"] and store.steps() == [10, 20]
    monkeypatch.undo()
    CheckpointStore(tmp_path, keep=9)
    assert sorted(path.name for path in tmp_path.glob("*step*")) == ["step_000010", "step_000020"]


@pytest.fixture(scope="module")
def whole(lab_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("back") / "whole"
    runs.train(lab_model, path, "--evaluation.every", "4", "--checkpoint.keep", "6")
    return path


@pytest.mark.slow
def test_a_run_that_goes_back_gives_the_same_bits_again(whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    assert saved_steps(path / "checkpoints") == [4, 8, 12, 16, 20, 24]
    text = runs.finish("resume", str(path), "--from-step", "12", "--checkpoint.keep", "1")
    assert "resumed at step 12; later checkpoints and rows were removed" in text, text
    assert runs.outcome(path) == runs.outcome(whole)
    rates = {row["step"]: row["pass_rate"] for row in runs.rows(path, "points.jsonl")}
    steps = saved_steps(path / "checkpoints")
    assert steps[-1] == 24 and best_step([4, 8, 12, 16, 20, 24], rates) in steps and len(steps) <= 2


@pytest.mark.slow
def test_a_run_that_goes_back_with_another_rate_leaves_no_trace_of_the_abandoned_steps(whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    rate = ["--recipe.optimizer.learning_rate", "1e-4"]
    code, text = runs.call("resume", str(path), "--from-step", "10", *rate)
    assert code == 2 and "allowed: 4, 8, 12, 16, 20, 24" in text and "Traceback" not in text
    assert runs.outcome(path) == runs.outcome(whole) and saved_steps(path / "checkpoints")[-1] == 24
    runs.finish("resume", str(path), "--from-step", "8", "--steps", "12", *rate)
    rows = runs.rows(path, "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    # of a warm-up of 20 steps
    assert [row["learning_rate"] for row in rows[8:]] == pytest.approx([4.5e-5, 5e-5, 5.5e-5, 6e-5])
    assert [point["step"] for point in runs.rows(path, "points.jsonl")] == [0, 4, 8, 12]
    assert {row["step"] for row in runs.rows(path, "rollouts.jsonl")} == {0, 4, 8, 12}
    assert saved_steps(path / "checkpoints") == [4, 8, 12]
    assert "after_step = 8" in (path / "config.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "removed directory"])
def test_a_tracker_gets_the_steps_that_are_trained_again(lab_model, tmp_path, how):
    pytest.importorskip("tensorboard", reason="needs the extra `logs`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "run"
    runs.train(lab_model, path, "--loggers", "tensorboard", "--steps", "10", "--checkpoint.keep", "3")
    words = ["--recipe.optimizer.learning_rate", "1e-4"]
    if how == "option":
        words += ["--from-step", "4"]
    else:
        for step in (8, 10):
            shutil.rmtree(path / f"checkpoints/step_{step:06d}", ignore_errors=True)
    text = runs.finish("resume", str(path), *words)
    assert "logger tensorboard: the run went back to step 4, so a new run starts in the tracker" in text, text
    logged = EventAccumulator(str(path / "tensorboard/part-2")).Reload()
    for name in ("learning_rate", "loss", "entropy"):
        expected = [row[name] for row in runs.rows(path, "metrics.jsonl")]
        assert [one.step for one in logged.Scalars(name)] == list(range(1, 11))
        assert [one.value for one in logged.Scalars(name)] == pytest.approx(expected)
    rates = {point["step"]: point["pass_rate"] for point in runs.rows(path, "points.jsonl")}
    scalars = logged.Scalars("eval/arithmetic/pass_rate")
    assert {one.step: one.value for one in scalars} == pytest.approx(rates)
