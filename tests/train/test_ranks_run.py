"""A whole run with two trainer ranks: a dead rank is named, and a resume gives the same bits."""

import os
import signal

import pytest
import runs

TWO = ["--placement.trainer_ranks", "2", "--steps", "8"]


@pytest.fixture(scope="module")
def undisturbed(lab_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "ranks"
    runs.train(lab_model, path, *TWO)
    return path


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_a_resume_gives_the_same_bits(undisturbed, lab_model, tmp_path):
    path = tmp_path / "killed"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *TWO])
    runs.wait_for(lambda: (path / "checkpoints/step_000004").exists(), what="a checkpoint")
    children = runs.children(process.pid)
    started = runs.descendants(process.pid)
    assert len(children) == 3  # two ranks, which are started first, and the generator
    os.kill(children[1], signal.SIGKILL)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in text, text
    assert f"trainer rank 1 of 2 (process {children[1]}) was killed by signal 9" in text
    assert f"continue with: scalerl resume {path}" in text
    assert not runs.left_of(started, 60)
    text = runs.finish("resume", str(path))
    # the last one before the eighth, which ends the run
    assert "resumed at step 4" in text, text
    assert runs.outcome(path) == runs.outcome(undisturbed)
    first = runs.rows(path, "metrics.jsonl")[0]
    assert first["grad_norm"] > 0 and max(abs(first["log_ratio_min"]), abs(first["log_ratio_max"])) <= 1e-5


@pytest.mark.slow
def test_a_run_continues_with_more_and_with_fewer_trainer_ranks(lab_model, tmp_path):
    """One process, two ranks, and one process again; each reads the checkpoint of the one before."""
    path = tmp_path / "run"
    runs.train(lab_model, path, "--steps", "4")
    for ranks, steps in ((2, 8), (1, 12)):
        text = runs.finish("resume", str(path), "--placement.trainer_ranks", str(ranks), "--steps", str(steps))
        assert f"resumed at step {steps - 4}" in text, text
    rows = runs.rows(path, "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["replay_difference"] < 1e-3
    assert (path / "checkpoints/step_000008/learner").is_dir()
    assert (path / "checkpoints/step_000012/learner.safetensors").exists()
