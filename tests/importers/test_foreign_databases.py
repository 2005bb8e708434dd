"""SQLite databases from elsewhere: views, virtual tables and values that a tracker does not write."""

import itertools
import sqlite3
from types import SimpleNamespace

import pytest

from scalerl.reading.logs import read
from scalerl.reading.tables import trackers
from scalerl.reading.tables.errors import Away, CurveError, TooEarly
from scalerl.reading.tables.trackers import Patience

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select "
MLFLOW = "'r' as run_uuid, 'k' as key, i as value, i as step, i as timestamp from n"
COLUMNS = "(run_uuid, key, value, step, timestamp)"
FOREIGN = {
    "an endless view of MLflow": [f"create view metrics as {ENDLESS}{MLFLOW}"],
    "a virtual table": ["create virtual table metrics using fts5(run_uuid, key, value, step, timestamp)"],
    "no time": [f"create table metrics {COLUMNS}", "insert into metrics values ('a', 'k', 1, 1, null)"],
}


def made(path, *statements):
    with sqlite3.connect(path) as base:
        for statement in statements:
            base.execute(statement)
    base.close()
    return path


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_a_database_that_is_no_store_of_a_tracker_is_an_error_for_which_follow_does_not_wait(tmp_path, statements):
    with pytest.raises(CurveError, match="export the run as CSV") as caught:
        read(made(tmp_path / "log.db", *statements), devices=8)
    assert not isinstance(caught.value, TooEarly | Away)


def test_a_view_is_not_joined(tmp_path):
    rows = [f"insert into metrics values ('a', 'eval/accuracy', {s / 100}, {s}, {60000 * s})" for s in range(1, 31)]
    view = f"create view runs as {ENDLESS} 'a' as run_uuid, 'name' as name, 'RUNNING' as status from n"
    path = made(tmp_path / "log.db", view, f"create table metrics {COLUMNS}", *rows)
    assert read(path, devices=8).values == 30


def asked(query):
    """Return the rows of a query, with a clock that SQLite looks at."""
    base, patience = sqlite3.connect(":memory:"), Patience()
    base.set_progress_handler(patience.look, 1000)
    return patience.ask(base, query)


def test_a_query_that_gives_no_row_in_time_ends_and_a_long_one_with_rows_does_not(monkeypatch):
    clock = itertools.count()  # a second passes with each look
    monkeypatch.setattr(trackers, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    rows = asked(f"{ENDLESS} i from n where i % 100 = 0 and i < 20000")
    assert [next(rows) for _ in range(198)] == [(number,) for number in range(100, 19900, 100)]
    assert next(clock) > 200
    with pytest.raises(sqlite3.DatabaseError, match="no row in 60 s"):
        list(rows)
