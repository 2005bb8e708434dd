"""Many finished runs: their forecasts are kept, they are looked at in turn, and only changes are sent."""

import json
import shutil
import sqlite3
import tracemalloc

import pytest
from watched import add_points, add_steps, write_run

from scalerl.cli.main import main
from scalerl.view import fit_cache, run, watcher
from scalerl.view.fit_cache import FitCache, key_of
from scalerl.view.run import FollowedRun, list_fit
from scalerl.view.watcher import Watcher


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fits(monkeypatch):
    """The forecasts that are computed, by their number of evaluations."""
    counts, compute = [], run.run_outlook

    def counted(points, *rest):
        counts.append(len(points))
        return compute(points, *rest)

    monkeypatch.setattr(run, "run_outlook", counted)
    return counts


def listed(capsys, root):
    assert main(["ls", str(root)]) == 0
    return capsys.readouterr().out


def test_a_finished_run_is_fitted_once_and_one_that_goes_on_each_time(tmp_path, capsys, fits):
    write_run(tmp_path / "runs/done", rows=60, points=12, steps=60)
    write_run(tmp_path / "runs/going", rows=60, points=9, steps=400)
    first = listed(capsys, tmp_path / "runs")
    assert listed(capsys, tmp_path / "runs") == first and sorted(fits) == [9, 9, 12]
    add_points(tmp_path / "runs/done", [12])
    assert listed(capsys, tmp_path / "runs") != first and sorted(fits) == [9, 9, 9, 12, 13]


@pytest.mark.parametrize("damage", [
    lambda cache: (cache / "fits.sqlite").write_bytes(b"no database" * 1000),
    lambda cache: (shutil.rmtree(cache), cache.write_text("a file")),
    lambda cache: sqlite3.connect(cache / "fits.sqlite", isolation_level=None).execute("UPDATE fits SET content = '['"),
    lambda cache: sqlite3.connect(cache / "fits.sqlite", isolation_level=None).execute("DROP TABLE fits"),
])  # fmt: skip
def test_a_damaged_cache_changes_nothing(tmp_path, capsys, cache, damage):
    write_run(tmp_path / "runs/done", rows=60, points=12, steps=60)
    before = listed(capsys, tmp_path / "runs")
    damage(cache)
    assert listed(capsys, tmp_path / "runs") == before == listed(capsys, tmp_path / "runs")


def test_the_key_of_a_forecast_has_all_that_it_depends_on(tmp_path, monkeypatch):
    points = FollowedRun(write_run(tmp_path / "r", rows=3, points=8)).points["arithmetic"]
    others = [(points[:-1], "flops", (None, None)), (points, "step", (None, None)), (points, "flops", (0.1, None))]
    keys = {key_of(points, "flops", (None, None)), key_of(points, "flops", (None, 2.0)), *(key_of(*o) for o in others)}
    monkeypatch.setattr(fit_cache, "_code", lambda: ("another version",))
    assert len(keys) == 5 and key_of(points, "flops", (None, None)) not in keys


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_cache, "MOST", 10)
    kept = FitCache()
    for number in range(30):
        kept.put(str(number), {"number": number})
    assert FitCache().get("19") is None and FitCache().get("20") == {"number": 20}


def test_a_kept_forecast_equals_a_new_one(tmp_path):
    shown = FollowedRun(write_run(tmp_path / "r", rows=60, points=12, steps=60))
    words = (shown.points["arithmetic"], shown.axis)
    new = list_fit(*words)
    assert list_fit(*words, cache=FitCache()) == list_fit(*words, cache=FitCache()) == new
    few = (shown.points["arithmetic"][:2], shown.axis)
    assert list_fit(*few, cache=FitCache()) == list_fit(*few, cache=FitCache()) and list_fit(*few)["problem"]


def test_runs_that_have_ended_are_looked_at_in_turn_and_a_resumed_one_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "RESTING", 4)
    monkeypatch.setattr(watcher, "RESTING_S", 0.0)
    for number in range(12):
        write_run(tmp_path / f"runs/done-{number:02d}", rows=5, points=2, steps=5)
    write_run(tmp_path / "runs/going", rows=5, points=2)
    followed = Watcher([tmp_path / "runs"])
    looked = []
    for one in followed.runs.values():
        monkeypatch.setattr(one, "poll", lambda now=None, one=one, poll=one.poll: looked.append(one.name) or poll(now))
    counts = []
    for _ in range(6):
        before = len(looked)
        followed.poll()
        counts.append(len(looked) - before)
    assert counts == [5] * 6 and looked.count("going") == 6
    assert {looked.count(f"done-{number:02d}") for number in range(12)} == {2}
    add_steps(tmp_path / "runs/done-07", [6])
    for _ in range(4):
        followed.poll()
    assert next(one for one in followed.runs.values() if one.name == "done-07").step == 6
    followed.close()


def test_a_new_run_sends_itself_and_not_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "SEARCH_S", 0.0)
    for number in range(20):
        write_run(tmp_path / f"runs/done-{number:02d}", rows=5, points=2, steps=5)
    followed = Watcher([tmp_path / "runs"])
    followed._fits.submit(lambda: None).result()  # after all fits
    last = followed.changes_since(-1)["version"]
    write_run(tmp_path / "runs/new", rows=5, points=2)
    followed.poll()
    changes = followed.changes_since(last)
    assert [one["name"] for one in changes["runs"]] == ["new"] and len(changes["known"]) == 21
    add_steps(tmp_path / "runs/new", [6])
    last = changes["version"]
    followed.poll()
    changes = followed.changes_since(last)
    assert [one["name"] for one in changes["runs"]] == ["new"] and "known" not in changes
    assert len(json.dumps(changes)) < 2000
    shutil.rmtree(tmp_path / "runs/done-03")
    followed.poll()
    assert len(followed.changes_since(changes["version"])["known"]) == 20
    followed.close()


def test_the_first_of_many_runs_are_shown_while_the_others_are_read(tmp_path, monkeypatch):
    for number in range(7):
        write_run(tmp_path / f"run-{number}", rows=3, points=6)
    monkeypatch.setattr(watcher, "READING_S", 3.0)
    ticks = iter(range(10_000))
    monkeypatch.setattr(watcher.time, "monotonic", lambda: float(next(ticks)))  # a second for each look at the clock
    watching = Watcher([tmp_path])
    counts = [len(watching.runs)]
    while counts[-1] < 7:
        watching.poll()
        counts.append(len(watching.runs))
        assert counts[-1] > counts[-2] and len(counts) < 20
    assert 0 < counts[0] <= 3
    assert sorted(run.name for run in watching.runs.values()) == [f"run-{number}" for number in range(7)]
    watching._search()
    watching.poll()
    assert len(watching.runs) == 7
    watching.close()


def test_runs_of_one_version_share_the_meanings_of_their_metrics_and_the_names_of_their_columns(tmp_path):
    """A run took 70 kB, so that 100,000 took 7 GB."""
    for number in range(21):
        write_run(tmp_path / f"run-{number:02d}", rows=3, points=12)
    first = FollowedRun(tmp_path / "run-00")
    tracemalloc.start()
    others = [FollowedRun(tmp_path / f"run-{number:02d}") for number in range(1, 21)]
    per_run = tracemalloc.get_traced_memory()[0] / 20
    tracemalloc.stop()
    assert all(run.info == first.info or run.info.metrics is first.info.metrics for run in others)
    assert per_run < 35e3
