"""The state of a run, from its files."""

import errno
import json
import os
import time
from types import SimpleNamespace

import pytest
from watched import point, write_run

from scalerl.core.errors import ConfigError
from scalerl.core.rows import RowFile
from scalerl.core.status import Heartbeat, _overwrite, read_status
from scalerl.core.types import EvalPoint
from scalerl.reading.pages import run as view_run
from scalerl.reading.pages.run import FollowedRun, RunView
from scalerl.reading.pages.state import find, pace
from scalerl.training.config import read_config
from scalerl.training.loop.run_info import run_info

NOW = time.time()


@pytest.fixture
def at_now(monkeypatch):
    """The clock of the page stands still at `NOW`, so that ages are exact."""
    monkeypatch.setattr(view_run, "time", SimpleNamespace(time=lambda: NOW))


def age(path, seconds):
    """Set the age at `NOW` of every file of a run directory."""
    files = [file for file in path.iterdir() if file.is_file()]
    assert files
    for file in files:
        os.utime(file, (NOW - seconds,) * 2)


def test_a_run_that_writes_rows_is_training_with_its_speed_and_the_time_left(tmp_path):
    run = write_run(tmp_path / "run", rows=100, points=11, steps=400)
    with Heartbeat(run, every_s=0.05, phase="training"):
        seen = FollowedRun(run)
    assert seen.state == "training" and (seen.step, seen.steps) == (100, 400)
    assert (pace(list(seen.rows)), seen.left_s) == (1.5, 450.0)
    point = seen.points["arithmetic"][-1]
    assert (round(point.pass_rate, 3), round(point.stderr, 3)) == (0.451, 0.006)


@pytest.mark.parametrize(("silent_s", "state"), [(10, "training"), (59, "waiting"), (61, "dead")])
def test_a_run_without_rows_waits_and_is_dead_without_a_heartbeat_for_a_minute(tmp_path, at_now, silent_s, state):
    run = write_run(tmp_path / "run", rows=30)
    with Heartbeat(run, phase="training"):
        age(run, silent_s)
        seen = FollowedRun(run)
    assert seen.state == state and (seen.detail or state == "training")


def test_the_state_tells_how_a_run_ended(tmp_path):
    run = write_run(tmp_path / "run", rows=30)
    with Heartbeat(run) as beating:
        beating.ended("stopped", "stopped at step 30")
    assert (FollowedRun(run).state, FollowedRun(run).detail) == ("stopped", "stopped at step 30")
    with pytest.raises(ValueError), Heartbeat(run):
        raise ValueError("no gradient")
    age(run, 9999)
    assert (FollowedRun(run).state, FollowedRun(run).detail) == ("failed", "no gradient")
    with pytest.raises(KeyboardInterrupt), Heartbeat(run):
        raise KeyboardInterrupt
    assert FollowedRun(run).state == "stopped"


def test_a_heartbeat_renews_its_file_and_survives_a_removed_directory(tmp_path):
    run = write_run(tmp_path / "run")
    with Heartbeat(run, every_s=0.01):
        first = read_status(run).beat
        until = time.monotonic() + 60
        while read_status(run).beat == first:
            assert time.monotonic() < until
        run.rename(tmp_path / "away")
    assert read_status(run) is None and read_status(tmp_path / "away").state == "running"


def test_suites_do_not_count_as_the_pass_rate_of_a_run(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    data = {"kind": "file", "path": str(tmp_path / "own.jsonl"), "name": "main"}
    config = read_config(None, {"model": {"kind": "hf", "path": "m"}, "data": [data], "suites": ["aime-24"]})
    view = RunView(run_info(config), (), [EvalPoint.of(point(1, task=task)) for task in ("main", "aime-24")])
    assert set(view.points) == {"main", "aime-24"} and view.tasks == ["main"]


def test_only_the_end_of_a_file_is_read_without_incomplete_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1000)) + '{"step": 10')
    assert [row["step"] for row in RowFile(file).tail(size=40)] == [998, 999]  # 15 bytes a row, 12 of the half one
    assert len(RowFile(file).tail()) == 1000 and RowFile(tmp_path / "none").tail() == []


def test_runs_and_studies_are_found_below_a_directory(tmp_path):
    one, two = write_run(tmp_path / "runs/one"), write_run(tmp_path / "runs/two")
    inner = write_run(tmp_path / "studies/loo/scalerl/seed-0")
    (tmp_path / "studies/loo/study.toml").write_text("")
    (tmp_path / "runs/notes").mkdir()
    assert find([tmp_path / "runs"]) == ([one, two], [])
    assert find([tmp_path / "runs/two", tmp_path / "studies"]) == ([two, inner], [tmp_path / "studies/loo"])
    with pytest.raises(ConfigError, match="nowhere: no such directory"):
        find([tmp_path / "nowhere"])


def test_a_full_disk_has_room_for_the_end_of_a_run(tmp_path, monkeypatch):
    """A new file finds no block there, but the block of the old one stays."""
    with pytest.raises(OSError, match="No space"), Heartbeat(tmp_path) as beating:
        beating.phase("training")

        def full(path, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        monkeypatch.setattr("scalerl.core.status.write_whole", full)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    status = read_status(tmp_path)
    assert status.state == "failed" and "No space left" in status.message


def test_a_status_that_is_a_pipe_or_a_link_is_not_written_over(tmp_path):
    (tmp_path / "victim").write_text("mine")
    for block in (os.mkfifo, lambda path: os.symlink("victim", path)):
        block(path := tmp_path / "status.json")
        with pytest.raises(OSError):
            _overwrite(path, b"new")
        path.unlink()
    assert (tmp_path / "victim").read_text() == "mine"
