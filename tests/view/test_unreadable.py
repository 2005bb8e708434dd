"""Runs that cannot be read, or hold rows from elsewhere: each is one row, and the other runs are shown as usual."""

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from robustness.campaign import within
from serving import connection_to, first_event, get, key_of, served
from watched import add_rollouts, point, rollout, write_run

from scalerl.cli.main import main
from scalerl.reading.pages.run import LIFE_S, FollowedRun
from scalerl.reading.pages.server import Pages
from scalerl.reading.pages.watcher import Watcher

DEEP = "[" * 100_000
LONG = "9" * 400


@pytest.fixture
def place():
    """A directory that every user can reach, with a good run; pytest's own directories are private."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    write_run(root / "good", rows=30, points=12)
    write_run(root / "bad", rows=30, points=12)
    yield root
    shutil.rmtree(root)


@contextmanager
def as_stranger():
    """Run a block as a user whom permissions bind: they do not bind root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def listed(capsys, *paths):
    """Return the lines of `scalerl ls` by the first word."""
    assert main(["ls", *map(str, paths)]) == 0
    return {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}


def looked(watcher):
    """Return the runs of the page by name after a poll in which every run is looked at."""
    for run in watcher.runs.values():
        run._looked -= LIFE_S
    watcher._searched -= 9
    watcher.poll()
    changes = watcher.changes_since(-1)
    json.dumps(changes, allow_nan=False)
    assert not changes["problems"]
    return {run["name"]: run for run in changes["runs"]}


def private(name):
    return lambda run: (run / name).chmod(0)


def pipe(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (private("."), "permission denied"),
        (private("points.jsonl"), "permission denied"),
        (pipe("metrics.jsonl"), "regular"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_row_with_the_reason(place, capsys, change, reason):
    listed(capsys, place / "good")  # imports what a stranger may not read
    change(place / "bad")
    with as_stranger(), within(60, "a run that cannot be read"):
        lines = listed(capsys, place)
        assert lines["good"].split()[2] == "30/400" and "unreadable" in lines["bad"] and reason in lines["bad"]
        watcher = Watcher([place])
        try:
            runs = looked(watcher)
        finally:
            watcher.close()
    assert runs["good"]["step"] == 30 and runs["bad"]["state"] == "unreadable" and reason in runs["bad"]["detail"]


ROWS = [
    DEEP, f'{{"step": {LONG}}}', '{"step": NaN}', '{"step": "4"}', "7", "\xe9",
    '{"step": 31, "entropy": NaN, "loss": 1e999, "step_s": -Infinity}',
]  # fmt: skip
"""Lines that no run writes; those without the step of a healthy row are not counted as steps."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:30])
def test_rows_that_no_run_writes_do_not_stop_a_page_or_a_command(place, capsys, row):
    bad = place / "bad"
    for name in ("metrics.jsonl", "points.jsonl", "rollouts.jsonl"):
        with (bad / name).open("ab") as file:
            file.write(row.encode("latin-1") + b"\n")
    for name in ("status.json", "summary.json"):
        (bad / name).write_bytes(row.encode("latin-1"))
    everything(place, capsys)


@pytest.mark.parametrize("value", ["true", '"x"', LONG, "null", "1e308", "-1"], ids=lambda value: value[:20])
def test_points_that_no_run_writes_do_not_stop_a_page_or_a_command(place, capsys, value):
    with (place / "bad" / "points.jsonl").open("a") as file:
        for column in ("step", "device_hours", "flops", "task", "pass_rate", "stderr", "prompts"):
            file.write(json.dumps(point(12, **{column: "@"})).replace('"@"', value) + "\n")
    everything(place, capsys)


def everything(place, capsys):
    """Read the runs with every reader of a growing run, and check that the good run is as usual."""
    with within(60, "a run with such a row"):
        assert listed(capsys, place)["good"].split()[2] == "30/400"
        watcher = Watcher([place])
        try:
            runs = looked(watcher)
            assert runs["good"]["step"] == 30 and runs["good"]["points"] == 12 and not runs["good"]["warnings"]
            run = next(run for run in watcher.runs.values() if run.name == "bad")
            json.dumps(run.rollouts.find({}), allow_nan=False)
            pages = Pages(watcher, lambda: False)
            every = [pages.run_page([run.id]), pages.compare_page(list(watcher.runs))]
            assert all(json.loads(text)["title"] for text in every)
        finally:
            watcher.close()


def test_values_that_are_no_numbers_in_a_rollout_are_unknown(place):
    pipe("status.json")(place / "bad")  # a run without status
    add_rollouts(place / "bad", [rollout(10, 0, reward=float("nan"), versions=[float("inf")]), rollout(10, 1)])
    run = FollowedRun(place / "bad", "bad")
    matches = run.rollouts.find({"kind": "training"})
    assert [row["reward"] for row in matches["rows"]] == [None, -1.0]
    assert run.rollouts.group("training", 0)[0]["versions"] == [None]
    json.dumps(matches, allow_nan=False)


def test_the_server_refuses_rows_that_are_no_numbers_and_closes_streams_quietly(place):
    with served(place) as address:  # which checks that the server printed no error
        run = f"/api/runs/{first_event(address)['runs'][0]['id']}"
        for row in ("inf", "-inf", "nan", "1e999", "x"):
            assert get(address, f"{run}/group?kind=training&row={row}")[0] == 400, row
        assert get(address, f"{run}/group?kind=training&row=1e300")[0] == 404
        streams = [connection_to(address) for _ in range(200)]
        for stream in streams:
            stream.request("GET", "/api/stream", headers=key_of(address))
            assert stream.getresponse().readline().startswith(b"data: ")
        for stream in streams[:150]:
            stream.close()
    for stream in streams:
        stream.close()
