"""Whole runs with several tasks, and with a mixture of experts."""

import re
from itertools import pairwise

import pytest
import runs

TABLES = """
preset = "lab"

[[data]]
kind = "arithmetic"
share = 3
operations = [1, 1]
prompts = 60

[[data]]
kind = "programs"
prompts = 30
"""
MIXED = ["--evaluation.every", "3", "--checkpoint.every", "3", "--steps", "12"]


def train(model, path, *words, file=()):
    return runs.finish("train", *map(str, file), "--model", str(model), "--run-dir", str(path), *runs.RECIPE, *words)


@pytest.fixture(scope="module")
def mixed(lab_model, tmp_path_factory):
    """The model was trained only on arithmetic, so its curve of programs is flat at 0 and has no forecast."""
    place = tmp_path_factory.mktemp("mixed")
    (place / "mixed.toml").write_text(TABLES)
    return place / "run", train(lab_model, place / "run", *MIXED, file=[place / "mixed.toml"])


@pytest.mark.slow
def test_every_evaluation_has_a_point_for_each_task_at_the_same_compute(mixed):
    path, printed = mixed
    points = runs.rows(path, "points.jsonl")
    steps = [0, 3, 6, 9, 12]
    assert [(p["step"], p["task"]) for p in points] == [(s, t) for s in steps for t in ("arithmetic", "programs")]
    assert all(point["prompts"] == 16 for point in points)
    spent = ("device_hours", "flops", "tokens", "eval_s")
    for first, second in zip(points[::2], points[1::2], strict=True):
        assert [first[name] for name in spent] == [second[name] for name in spent]
    assert all(later["flops"] > earlier["flops"] for earlier, later in pairwise(points[::2]))
    assert "evaluation at step 12, programs: pass rate 0.000" in printed and "task      programs" in printed
    assert re.search(r"^(Continue|Stop|Open|About what you ask for|Go back to)", printed, re.M)
    assert (path / "curve.png").exists()


@pytest.mark.slow
def test_a_resumed_mixture_gives_the_same_weights_points_and_prompts(mixed, lab_model, tmp_path):
    path, _ = mixed
    train(lab_model, tmp_path / "stopped", *MIXED, "--steps", "6", file=[path.parent / "mixed.toml"])
    runs.finish("resume", str(tmp_path / "stopped"), "--steps", "12")
    assert runs.outcome(tmp_path / "stopped") == runs.outcome(path)
