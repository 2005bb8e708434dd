"""An evaluation costs the same in a run of any length; notes of a start are written once."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import runs

import scalerl
from scalerl.core.rows import read_rows
from scalerl.core.types import EvalPoint
from scalerl.training.config import read_config
from scalerl.training.learner import checks
from scalerl.training.loop import launch
from scalerl.training.loop import records as records_module
from scalerl.training.loop.records import Records


class Calls:
    """Records how many points each call gets."""

    def __init__(self):
        self.counts = []

    def __getattr__(self, name):
        def call(points, *rest):
            self.counts.append((name, len(points), *rest))
            return []

        return call


def records():
    parts = {name: Calls() for name in ("directory", "display", "warnings", "followers")}
    parts["directory"].append = lambda *words: None
    parts["warnings"].news = lambda events: []
    return Records(parts["directory"], parts["display"], parts["warnings"], parts["followers"]), parts


@pytest.mark.parametrize("tasks", [1, 3])
def test_an_evaluation_costs_the_same_in_a_run_of_any_length(tasks):
    kept, parts = records()
    for step in range(20_000 // tasks):
        kept.evaluated([EvalPoint(step, 0.0, 1.0 * step, step, str(task), 0.5, 0.01, 64, 4) for task in range(tasks)])
    judged = [count for name, count, *_ in parts["display"].counts if name == "point"]
    assert judged[: 1000 // tasks] == list(range(tasks, 1000 + 1, tasks))  # each of the first 1,000
    gaps = [(after - before) / after for before, after in pairwise(judged) if after > 1000]
    assert max(gaps) < 0.02 and judged[-1] >= 0.98 * len(kept.points)
    assert sum(judged) < 150 * len(kept.points) + 500 * 1000  # points read, of all judgments
    assert len(parts["directory"].counts) == len(parts["followers"].counts) == 20_000 // tasks  # every one is written
    logged = [count for _, count, _ in parts["followers"].counts]
    assert logged[-1] in (tasks, len(kept.points)) and sum(logged) < 150 * len(kept.points) + 600 * 1000


def test_forecasts_beside_training_take_at_most_a_two_hundredth_of_its_time(monkeypatch):
    kept, parts = records()
    clock, shown = [0.0], []

    def point(points, forecasts):
        clock[0] += 0.1 * forecasts
        shown.append(forecasts)

    parts["display"].point = point
    monkeypatch.setattr(records_module.time, "monotonic", lambda: clock[0])
    for step in range(101):  # every 3 s; 0.1 s are 0.5% of 20 s
        kept.evaluated([EvalPoint(step, 0.0, 1.0 * step, step, "sums", 0.5, 0.01, 64, 4)], beside=True)
        clock[0] += 3.0
    assert len(shown) == 101 and shown[0] and [n for n, own in enumerate(shown) if own] == list(range(0, 101, 7))
    kept.evaluated([EvalPoint(101, 0.0, 101.0, 101, "sums", 0.5, 0.01, 64, 4)])
    assert shown[-1]  # training pauses anyway


@pytest.mark.slow
def test_a_fallback_to_padded_rows_is_said_at_each_start_and_recorded_once(lab_model, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "packing_difference", lambda policy, tokens_BT: 0.5)
    config = read_config(None, ["--preset", "lab", "--model", str(lab_model), *runs.SMALL, "--steps", "1"])
    scalerl.train(config, run_dir=tmp_path / "run", progress=False)
    lines = []
    display = SimpleNamespace(
        belongs_to=lambda path: None, configured=lambda config: None, point=lambda points: None, note=lines.append
    )
    launch.resume(tmp_path / "run", 2, display, lambda: False).close()
    (line,) = (line for line in lines if "rows are padded" in line)
    assert "differ by 0.5 on average when packed (allowed 0.001)" in line
    notes = [row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "note"]
    assert notes == [{"step": 0, "kind": "note", "key": "packing", "text": line}]
