"""Complete runs on a local Ray cluster with killed engines and coordinators, without lost work."""

import os
import random
import re
import signal
import time

import pytest
import runs

from scalerl.training.learner.checkpoint import CheckpointStore, load_plain

pytest.importorskip("ray", reason="needs Ray")

RAY = ["--placement.backend", "ray", "--placement.ray_address", "local", "--placement.generators", "2"]
WORDS = [*runs.SMALL]


def begin(lab_model, path, *words):
    return runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *WORDS, *RAY, *words])


def actors(pid, name):
    return [child for child in runs.descendants(pid) if runs.command_of(child).startswith(f"ray::{name}")]


def kill_one(pid, name, rng):
    """Kill one actor of a kind as soon as it exists."""
    runs.wait_for(lambda: actors(pid, name), what=f"an actor {name}")
    os.kill(rng.choice(actors(pid, name)), signal.SIGKILL)


def account(path):
    """Return how many visits were drawn, and how many of them are trained, dropped or pending."""
    latest = CheckpointStore(path / "checkpoints", 2).latest()
    trainer, generator = load_plain(latest, "trainer"), load_plain(latest, "generator")
    progress = trainer["progress"]
    waiting = [visit["index"] for visit in generator["queue"] + [entry[1] for entry in generator["open"]]]
    groups = [*generator["finished"].values()]
    for _, formed, _, dropped in generator["untrained"]:
        groups += formed.values()
        waiting += [visit["index"] for visit in dropped]
    waiting += [group["visit"]["index"] for group in groups] + [visit["index"] for visit in generator["dropped"]]
    assert len(set(waiting)) == len(waiting)  # no visit occurs twice
    return progress["drawn_groups"], progress["trained_groups"] + progress["dropped_groups"] + len(waiting)


@pytest.fixture(scope="module")
def killed(lab_model, tmp_path_factory):
    """Return a run whose engines were killed repeatedly, its output, and the number of kills."""
    path, rng, kills = tmp_path_factory.mktemp("ray") / "killed", random.Random(7), 0
    process = begin(lab_model, path)
    for row in (3, 7, 11, 15):
        runs.wait_for(lambda row=row: len(runs.rows(path, "metrics.jsonl")) >= row, 120, f"row {row}")
        time.sleep(rng.random() * 0.1)
        kill_one(process.pid, "EngineActor", rng)
        kills += 1
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return path, text, kills


@pytest.mark.slow
def test_engines_that_are_killed_are_replaced_and_every_prompt_is_trained_once(killed):
    path, text, kills = killed
    metrics = runs.rows(path, "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 25))
    assert metrics[-1]["engine_restarts"] in (kills - 1, kills)  # the last may have been killed as the run ended
    assert metrics[-1]["resampled"] > 0 and "unfinished sequences are sampled again" in " ".join(text.split())
    drawn, accounted = account(path)
    assert drawn == accounted > 24 * 4
    assert max(row["staleness_max"] for row in metrics) <= 4
    assert max(abs(metrics[0]["log_ratio_min"]), abs(metrics[0]["log_ratio_max"])) <= 1e-5  # it is on policy


@pytest.mark.slow
def test_after_a_coordinator_is_killed_the_run_resumes_from_its_last_checkpoint(lab_model, tmp_path):
    """Before it, the actor of the evaluations beside training is killed, which is replaced without a restart."""
    path = tmp_path / "run"
    process = begin(lab_model, path, "--placement.scorers", "1", "--evaluation.overlap", "true")
    runs.wait_for(lambda: runs.rows(path, "metrics.jsonl"), 120, "a step")
    kill_one(process.pid, "EvaluationActor", random.Random(1))
    runs.wait_for(lambda: list(path.glob("checkpoints/step_*")), 120, "a checkpoint")
    assert actors(process.pid, "ScorerActor")
    kill_one(process.pid, "CoordinatorActor", random.Random(1))
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "the coordinator (Ray actor) ended" in " ".join(text.split()), text
    assert "resumed at step" in text and "another process repeats it" in " ".join(text.split())
    assert [row["step"] for row in runs.rows(path, "metrics.jsonl")] == list(range(1, 25))
    points = runs.rows(path, "points.jsonl")
    assert [point["step"] for point in points] == [0, 6, 12, 18, 24]
    assert all(point["replay_difference"] < 1e-4 for point in points)
    drawn, accounted = account(path)
    assert drawn == accounted


@pytest.mark.slow
def test_a_signal_stops_a_run_on_a_cluster_with_a_checkpoint_of_its_last_step(lab_model, tmp_path):
    """With the device `auto`, Ray starts before the run catches signals."""
    path, number = tmp_path / "run", signal.SIGTERM
    words = ["--checkpoint.every", "1000", "--steps", "1000", "--hardware.device", "auto"]
    process = begin(lab_model, path, *words)
    runs.wait_for(lambda: runs.rows(path, "metrics.jsonl"), 120, "a step")
    os.kill(process.pid, number)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, text
    assert "stopping after this step, with a checkpoint" in text and "Traceback" not in text
    steps = CheckpointStore(path / "checkpoints", 2).steps()
    assert steps == [runs.rows(path, "metrics.jsonl")[-1]["step"]]


@pytest.mark.slow
def test_after_a_trainer_rank_is_killed_the_run_resumes_from_its_last_checkpoint(lab_model, tmp_path):
    """A new engine waits for weights that the dead rank held, so the loop would wait for the engine in vain."""
    path = tmp_path / "run"
    words = ["--placement.trainer_ranks", "2", "--steps", "12", "--placement.generators", "1"]
    process = begin(lab_model, path, *words)
    runs.wait_for(lambda: list(path.glob("checkpoints/step_*")), 120, "a checkpoint")
    kill_one(process.pid, "EngineActor", random.Random(1))
    time.sleep(1.0)
    kill_one(process.pid, "RankActor", random.Random(1))
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    printed = " ".join(text.split())
    assert re.search(r"trainer rank [01] of 2 \(Ray actor\) ended: .* during `\w+`", printed), text
    assert "resumed at step" in printed and "died 3 times" not in printed
    assert "(raylet)" not in printed and "\x1b[" not in text
    assert [row["step"] for row in runs.rows(path, "metrics.jsonl")] == list(range(1, 13))
    first = runs.rows(path, "metrics.jsonl")[0]
    assert max(abs(first["log_ratio_min"]), abs(first["log_ratio_max"])) <= 1e-5
    drawn, accounted = account(path)
    assert drawn == accounted


@pytest.mark.slow
def test_a_run_moves_from_one_machine_to_a_cluster_and_back(lab_model, tmp_path):
    path = tmp_path / "run"
    runs.train(lab_model, path, "--steps", "6")
    for steps, backend in ((12, "ray"), (18, "local")):
        text = (path / "config.toml").read_text()
        before = 'backend = "local"' if backend == "ray" else 'backend = "ray"'
        assert before in text
        text = text.replace(before, f'backend = "{backend}"').replace('ray_address = "auto"', 'ray_address = "local"')
        (path / "config.toml").write_text(text)
        runs.finish("resume", str(path), "--steps", str(steps))
    assert [row["step"] for row in runs.rows(path, "metrics.jsonl")] == list(range(1, 19))
    drawn, accounted = account(path)
    assert drawn == accounted
