"""Many runs: ended ones are looked at less often, at most 1,000 are followed, and only changes are sent."""

import os
import shutil

from watched import add_points, add_steps, write_run

from scalerl.reading.pages import watcher
from scalerl.reading.pages.watcher import Watcher


def test_runs_that_have_ended_are_looked_at_less_often_and_a_resumed_one_is_found(tmp_path, monkeypatch):
    for number in range(3):
        write_run(tmp_path / f"runs/done-{number}", rows=5, points=2, steps=5)
    write_run(tmp_path / "runs/going", rows=5, points=2)
    followed = Watcher([tmp_path / "runs"])
    looked = []
    for one in followed.runs.values():
        monkeypatch.setattr(one, "poll", lambda now=None, one=one, poll=one.poll: looked.append(one.name) or poll(now))
    monkeypatch.setattr(watcher, "SEARCH_S", 1e9)
    followed.poll()
    assert looked == ["going"]
    add_steps(tmp_path / "runs/done-2", [6])
    monkeypatch.setattr(watcher, "SEARCH_S", 0.0)
    followed.poll()
    assert sorted(looked[1:]) == ["done-0", "done-1", "done-2", "going"]
    assert next(one for one in followed.runs.values() if one.name == "done-2").step == 6
    followed.close()


def test_of_more_runs_than_the_limit_those_evaluated_last_are_followed_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "MOST_RUNS", 3)
    monkeypatch.setattr(watcher, "SEARCH_S", 0.0)
    for number in range(5):
        os.utime(write_run(tmp_path / f"run-{number}", rows=3, points=2) / "points.jsonl", (number, number))
    followed = Watcher([tmp_path])
    assert sorted(run.name for run in followed.runs.values()) == ["run-2", "run-3", "run-4"]
    said = "3 of 5 runs are shown, those evaluated last; give a directory with fewer for the others"
    assert followed.changes_since(-1)["problems"] == [said]
    add_points(tmp_path / "run-0", [2])
    followed.poll()
    assert sorted(run.name for run in followed.runs.values()) == ["run-0", "run-3", "run-4"]
    shutil.rmtree(tmp_path / "run-3")
    shutil.rmtree(tmp_path / "run-4")
    followed.poll()
    assert len(followed.runs) == 3 and not followed.limit and followed.changes_since(-1)["problems"] == []
    followed.close()
