"""Following files, buckets of series, and searching rollouts."""

import json
import os
import shutil
import threading
import time

import numpy as np
import pytest
from watched import add_event, add_points, add_rollouts, add_steps, rollout, write_run

from scalerl.core.rows import RowFile
from scalerl.reading.pages.rollouts import RolloutIndex
from scalerl.reading.pages.run import FollowedRun
from scalerl.reading.pages.series import alarm_level, bucketed
from scalerl.reading.pages.watcher import Watcher
from scalerl.training.loop.catalog import METRICS


def steps(file):
    return [line.row["step"] for line in file.new_lines()]


def write(path, numbers, mode="w"):
    with path.open(mode) as file:
        file.writelines(json.dumps({"step": number}) + "\n" for number in numbers)


def test_only_new_complete_rows_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    file = RowFile(path)
    assert steps(file) == []
    write(path, [1, 2])
    assert steps(file) == [1, 2] and steps(file) == []
    with path.open("a") as out:
        out.write('{"st')
    assert steps(file) == []
    with path.open("a") as out:
        out.write('ep": 3}\nno JSON\n')
    assert steps(file) == [3] and file.broken == 1 and file.restarts == 0


@pytest.mark.parametrize("then", [[1, 7], [1, 7, 8, 9]])
def test_a_file_that_was_cut_back_is_reread_even_if_it_is_longer_now(tmp_path, then):
    path = tmp_path / "rows.jsonl"
    write(path, [1, 2, 3])
    file = RowFile(path)
    assert steps(file) == [1, 2, 3]
    write(path, then)
    os.utime(path, ns=(1, 1))  # the clock of the file system may be coarse
    assert steps(file) == then and file.restarts == 1
    write(path, [10], "a")
    assert steps(file) == [10] and file.restarts == 1


def test_buckets_keep_minimum_mean_and_maximum():
    value_N = np.zeros(1000)
    value_N[437], value_N[438] = 9.0, -3.0
    buckets = bucketed(np.arange(1.0, 1001.0), value_N, 100)
    assert {len(one) for one in buckets.values()} == {100}
    assert max(buckets["high"]) == 9.0 and min(buckets["low"]) == -3.0
    assert buckets["mean"][43] == 0.6 and buckets["x"][43] == 435.5  # steps 431 to 440: (9 - 3) / 10
    assert bucketed(np.array([1.0, 2.0]), np.array([np.nan, 5.0]), 9) == {
        "x": [2.0], "low": [5.0], "mean": [5.0], "high": [5.0],
    }  # fmt: skip


def test_values_beyond_the_thresholds_have_a_level():
    levels = [alarm_level(METRICS["truncation_rate"], value) for value in (0.05, 0.06, 0.11)]
    assert levels == ["", "caution", "bad"]
    assert alarm_level(METRICS["occupancy"], 0.69) == "caution" == alarm_level(METRICS["reward_failures"], 1)


def test_a_run_shows_the_warnings_of_its_events_until_they_are_over(tmp_path):
    run = FollowedRun(write_run(tmp_path / "run", rows=30), "run")
    run.poll(0.0)
    assert run.warnings() == {}
    add_event(run.path, 31, "warning", "truncated", "7% of the rollouts are truncated")
    add_event(run.path, 32, "warning", "slots", "only 40% of the slots")
    add_event(run.path, 33, "over", "truncated")
    assert run.poll(10.0) and list(run.warnings().values()) == ["only 40% of the slots"]
    (run.path / "events.jsonl").unlink()  # a resume from an earlier checkpoint
    run.poll(20.0)
    assert run.warnings() == {}


def test_a_metric_that_run_json_does_not_describe_is_shown_under_its_own_name(tmp_path):
    run = FollowedRun(write_run(tmp_path / "run", rows=30), "run")
    add_steps(run.path, range(31, 41), **{"environment/guesses": 2.5, "note": "text"})
    run.poll(10.0)
    own = {metric["name"]: metric for metric in run.metrics(10)}["environment/guesses"]
    assert own["label"] == "environment/guesses" and own["group"] == "other" and own["last"] == 2.5
    assert run.series("environment/guesses", 0, 99, 10)["mean"] == [2.5] * 10
    with pytest.raises(ValueError, match="note"):
        run.series("note", 0, 99, 10)


def test_a_run_resumed_from_a_checkpoint_has_only_its_new_rows(tmp_path):
    run = FollowedRun(write_run(tmp_path / "run", rows=100, points=10), "run")
    run.poll(0.0)
    assert len(run.history()["step"]) == 100 and run.step == 100
    (run.path / "metrics.jsonl").unlink()
    (run.path / "points.jsonl").unlink()
    add_steps(run.path, range(1, 41), loss=7.0)
    add_points(run.path, range(4))
    assert run.poll(5.0) and run.step == 40 and len(run.points["arithmetic"]) == 4
    assert len(run.history()["step"]) == 40 and run.series("loss", 0, 99, 10)["mean"] == [7.0] * 10


def test_rollouts_are_found_by_their_columns(tmp_path):
    run = write_run(tmp_path / "run")
    add_rollouts(run, [rollout(step, sample) for step in (10, 20) for sample in range(4)])
    index = RolloutIndex(run)

    def matches(**asked):
        return [(row["step"], row["sample"]) for row in index.find({"kind": "training", **asked})["rows"]]

    assert matches() == [(20, 0), (20, 1), (20, 2), (20, 3), (10, 0), (10, 1), (10, 2), (10, 3)]
    assert matches(step="10", passed="true") == [(10, 0), (10, 2)] == matches(step="10", least_reward="0.5")
    assert matches(truncated="true") == [(20, 3), (10, 3)] == matches(least_tokens="7", most_tokens="7")
    assert matches(ended="tokens") == [(20, 3), (10, 3)] and matches(ended="problem") == []
    assert matches(text="GOT '1', exp") == [(20, 1), (10, 1)] and matches(interrupted="false") == []
    assert [row["sample"] for row in index.group("training", 5)] == [0, 1, 2, 3]
    add_rollouts(run, [rollout(30, 0)])
    assert matches(start="8") == [(10, 3)] and index.find({})["all"] == 0
    assert index.find({"kind": "training"})["steps"] == [30, 20, 10]
    with pytest.raises(IndexError):
        index.row("training", 99)
    for wrong in ({"kind": "all"}, {"step": "ten"}, {"passed": "perhaps"}):
        with pytest.raises(ValueError):
            index.find(wrong)


def test_a_watcher_finds_new_runs_fits_new_evaluations_and_reports_only_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("scalerl.reading.pages.watcher.SEARCH_S", 0.0)
    write_run(tmp_path / "runs/one", rows=10, points=4)
    watcher = Watcher([tmp_path / "runs"])
    before = watcher.changes_since(-1)
    assert [run["name"] for run in before["runs"]] == ["one"]
    write_run(tmp_path / "runs/two", rows=5, points=12)
    watcher.poll()
    until = time.monotonic() + 60
    while (
        not (changed := watcher.changes_since(before["version"])["runs"])
        or not changed[-1]["tasks"]["arithmetic"]["fit"]
    ):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert changed[-1]["name"] == "two" and changed[-1]["tasks"]["arithmetic"]["fit"]["evaluations"] == 12
    two = next(run for run in watcher.runs.values() if run.name == "two")
    fit = two.fits["arithmetic"]
    assert fit["twice"][0] == pytest.approx(two.outlook("arithmetic").forecast.at[0].mean, abs=1e-5)
    last = watcher.changes_since(-1)["version"]
    watcher.poll()
    assert watcher.changes_since(last)["runs"] == []
    watcher.close()


def test_a_removed_run_does_not_stop_other_runs(tmp_path, monkeypatch):
    gone, whole = (write_run(tmp_path / "runs" / name, rows=3, points=2) for name in ("gone", "whole"))
    watcher = Watcher([tmp_path / "runs"])
    shutil.rmtree(gone)
    add_steps(whole, [4])
    for run in watcher.runs.values():
        run._looked = 0.0
    watcher.poll()
    by_name = {run["name"]: run for run in watcher.changes_since(-1)["runs"]}
    assert by_name["whole"]["step"] == 4 and by_name["gone"]["state"] == "unreadable"
    monkeypatch.setattr("scalerl.reading.pages.watcher.SEARCH_S", 0.0)
    watcher.poll()
    assert [run.name for run in watcher.runs.values()] == ["whole"]
    assert watcher.changes_since(-1)["known"] == list(watcher.runs)
    watcher.close()


def test_a_failed_fit_is_reported_and_does_not_stop_others(tmp_path):
    watcher, done = Watcher([tmp_path]), threading.Event()
    watcher.queue("broken", lambda: 1 / 0)
    watcher.queue("next", done.set)
    assert done.wait(20) and watcher.problems == ["ZeroDivisionError: division by zero"]
    watcher.close()
