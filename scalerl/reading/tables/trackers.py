"""Reads runs from trackers: MLflow's stores, Trackio's databases, and runs on wandb."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.core.files import parse_json
from scalerl.core.limits import DATABASE_LOCK_S, DATABASE_S, TRACKER_REQUEST_S
from scalerl.reading.tables.errors import Away, CurveError, TooEarly
from scalerl.reading.tables.grids import labeled
from scalerl.reading.tables.table import Builder, Table, joined_tables, table_of

EXPORT_HINT = "export its history as CSV or JSON (docs/importing.md) and give that file"


NO_CURE = re.compile(
    r"could not find|not found|does not exist|permission|denied|unauthorized|forbidden|\b40[134]\b|api[_ ]key|log ?in",
    re.IGNORECASE,
)
"""Words of an error of wandb's client that another try does not cure."""


class WandbRun:
    """The history of a run on wandb, read with wandb's own client and credentials; read again, only new rows."""

    def __init__(self, path: str) -> None:
        """Store entity/project/run.

        Raises:
            CurveError: The path is not that of a run.
        """
        if path.count("/") != 2:
            raise CurveError(f"wandb:{path} is not a run; give wandb:entity/project/run, as in the address of its page")
        self.path = path
        self._rows, self._last = Builder(), -1

    def read(self) -> Table:
        """Return the history so far.

        Raises:
            CurveError: wandb is not installed or does not answer, or there is no such run.
        """
        try:
            import wandb
        except ImportError as error:
            raise CurveError(f"wandb:{self.path}: reading from wandb needs its package: pip install wandb") from error
        try:
            run = wandb.Api(timeout=int(TRACKER_REQUEST_S)).run(self.path)
            last = getattr(run, "lastHistoryStep", None)
            if isinstance(last, int) and last < self._last:  # the run was rewound
                self._rows, self._last = Builder(), -1
            rows = [dict(row) for row in self._scan(run)]
        except Exception as error:  # the client raises its own errors, those of requests, and others
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            kind = CurveError if NO_CURE.search(f"{type(error).__name__} {reason}") else Away
            text = f"wandb:{self.path} cannot be read ({reason}); check the name and `wandb login`, or {EXPORT_HINT}"
            raise kind(text) from error
        for row in rows:
            self._rows.add(row)
            self._last = max(self._last, int(row["_step"])) if isinstance(row.get("_step"), int | float) else self._last
        if not self._rows.size:
            raise TooEarly(
                f"wandb:{self.path} has no history yet; check the run's page, or try again after its first rows"
            )
        state = str(getattr(run, "state", ""))
        ended = state if state in ("finished", "crashed", "failed", "killed") else ""
        return self._rows.table(form="wandb", name=f"wandb:{self.path}", ended=ended)

    def _scan(self, run: Any) -> Iterable[Any]:
        """Return the rows after the last one that was read; rows without a step are all read again."""
        if self._last < 0:
            self._rows = Builder()
            rows: Iterable[Any] = run.scan_history()
            return rows
        try:
            rows = run.scan_history(min_step=self._last + 1, use_cache=False)
        except TypeError:  # versions before 0.22 have no cache
            rows = run.scan_history(min_step=self._last + 1)
        return rows


# ------------------------------------------------------------------------------------------------------------ SQLite


LONGEST_VALUE = 64 << 20
"""Bytes of the longest text or binary value of a database."""
LOOK = 100_000
"""Instructions of SQLite between looks at the clock, a few milliseconds."""


class Patience:
    """Ends a query that gives no row for `DATABASE_S`: a database from elsewhere is a program too."""

    def __init__(self) -> None:
        """Begin to wait."""
        self._since = time.monotonic()
        self._raised: BaseException | None = None

    def look(self) -> bool:
        """Return whether to end the query. SQLite calls it, and drops what a handler of a signal raises in it."""
        try:
            return time.monotonic() - self._since > DATABASE_S
        except BaseException as error:
            self._raised = error
            return True

    def ask(self, base: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        Raises:
            sqlite3.DatabaseError: None came in time.
        """
        self._since = time.monotonic()
        try:
            for row in base.execute(query):
                yield row
                self._since = time.monotonic()
        except sqlite3.OperationalError as error:
            if self._raised is not None:
                raise self._raised from None
            if self.look():
                raise sqlite3.DatabaseError(f"a query gave no row in {DATABASE_S:g} s") from error
            raise


def read_sqlite(path: Path) -> Table:
    """Return the runs in the SQLite database of MLflow or Trackio.

    Only tables are read: a view is a query by whoever made the file, which may never end.

    Raises:
        CurveError: The database is that of neither, or cannot be read.
    """
    patience = Patience()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=DATABASE_LOCK_S)) as base:
            base.set_progress_handler(patience.look, LOOK)
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
            ask = partial(patience.ask, base)
            # a virtual table has no page of its own
            found = dict(ask("select name, type = 'table' and rootpage > 0 from sqlite_master "
                             "where type in ('table', 'view')"))  # fmt: skip
            tables = {name for name, stored in found.items() if stored}
            metrics, runs = (
                {column for _, column, *_ in ask(f"pragma table_info({name})")} if name in tables else set()
                for name in ("metrics", "runs")
            )
            named = {"run_uuid", "name", "status"} <= runs
            if {"run_uuid", "key", "value", "step", "timestamp"} <= metrics:
                table = runs_table(mlflow_rows(ask, named))
                return replace(table, form="MLflow", name=path.name, ended=mlflow_end(ask, named))
            if {"run_name", "step", "metrics", "timestamp", "id"} <= metrics:
                return replace(runs_table(trackio_rows(ask)), form="Trackio", name=path.name)
    except sqlite3.OperationalError as error:  # locked, or being created
        raise Away(f"{path} is a database that cannot be read now ({error}); export the run as CSV") from error
    except sqlite3.Error as error:
        raise CurveError(f"{path} is a database that cannot be read ({error}); export the run as CSV") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise CurveError(f"{path} is a database with a value of another kind than its tracker writes ({error}); "
                         "export the run as CSV") from error  # fmt: skip
    listed = [name if stored else f"{name}, which is no table" for name, stored in sorted(found.items())]
    raise (CurveError if found else TooEarly)(
        f"{path} is a SQLite database of neither MLflow nor Trackio (it has {', '.join(listed) or 'no tables'}); "
        "export the run as CSV or JSON lines"
    )


Ask = Callable[[str], Iterator[tuple[Any, ...]]]
"""Returns the rows of a query."""


def mlflow_rows(ask: Ask, named: bool) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield run, step and metrics of each step in MLflow's database."""
    name = "coalesce(runs.name, metrics.run_uuid)" if named else "metrics.run_uuid"
    runs = "left join runs on runs.run_uuid = metrics.run_uuid " if named else ""
    query = f"select {name}, step, timestamp, key, value from metrics {runs}order by timestamp"
    for run, step, timestamp, metric, value in ask(query):
        yield str(run), float(step), {metric: value, "_timestamp": timestamp / 1000}


def mlflow_end(ask: Ask, named: bool) -> str:
    """Return how the only run of MLflow's database ended; "" if it has not, or if there are several."""
    states = [str(state).lower() for (state,) in ask("select status from runs")] if named else []
    return states[0] if len(states) == 1 and states[0] in ENDS.values() else ""


def trackio_rows(ask: Ask) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield run, step and metrics of each row in Trackio's database."""
    for run, step, timestamp, metrics in ask("select run_name, step, timestamp, metrics from metrics order by id"):
        try:
            row = parse_json(metrics)
        except (AttributeError, ValueError):  # it is no text, or no JSON
            continue
        if isinstance(row, dict):
            yield str(run), float(step or 0), {**row, "timestamp": str(timestamp)}


def runs_table(rows: Iterable[tuple[str, float, dict[str, Any]]]) -> Table:
    """Return the table of rows of several runs; cells of one step are one row."""
    runs: dict[str, dict[float, dict[str, Any]]] = {}
    for run, step, cells in rows:
        row = runs.setdefault(run, {}).setdefault(step, {"step": step})
        for name, value in cells.items():
            if not (name == "_timestamp" and name in row):
                row[name] = value
    if not runs:
        raise TooEarly("the tracker has no metrics of any run; give the store of a run that has logged something")
    tables = {run: table_of(steps.values()) for run, steps in runs.items()}
    return joined_tables([labeled(table, run) if len(tables) > 1 else table for run, table in tables.items()])


# ------------------------------------------------------------------------------------------------ MLflow's directories


def mlflow_runs(directory: Path) -> list[Path]:
    """Return the directories with metrics of MLflow's runs at or below a directory (`mlruns`, an experiment, a run)."""
    for depth in ("metrics", "*/metrics", "*/*/metrics"):
        runs = [
            place.parent for place in directory.glob(depth) if place.is_dir() and (place.parent / "params").is_dir()
        ]
        if runs:
            return sorted(runs)
    return []


ENDS = {3: "finished", 4: "failed", 5: "killed"}
"""Ends of a run of MLflow by the number in its meta.yaml."""


def read_mlflow(runs: list[Path], directory: Path) -> Table:
    """Return the metrics of MLflow's runs in a directory.

    Each metric is a file `metrics/NAME` with lines `timestamp value step`.
    """

    def rows() -> Iterator[tuple[str, float, dict[str, Any]]]:
        for run in runs:
            name = mlflow_name(run)
            for file in sorted(path for path in (run / "metrics").rglob("*") if path.is_file()):
                metric = file.relative_to(run / "metrics").as_posix()
                for line in file.read_text(errors="replace").splitlines(keepends=True):
                    parts = line.split()
                    try:
                        timestamp, value, step = float(parts[0]), float(parts[1]), float(parts[2])
                    except (IndexError, ValueError):  # a line that is being written
                        continue
                    if line.endswith("\n"):
                        yield name, step, {metric: value, "_timestamp": timestamp / 1000}

    table, about = runs_table(rows()), runs[0] / "meta.yaml"
    text = about.read_text(errors="replace") if about.is_file() else ""
    state = re.search(r"^status: *(\d{1,9})\b", text, re.MULTILINE)
    ended = ENDS.get(int(state[1]), "") if state and len(runs) == 1 else ""
    return replace(table, form="MLflow", name=directory.name, ended=ended)


def mlflow_name(run: Path) -> str:
    """Return the name of a run in MLflow's directories."""
    for file in (run / "tags" / "mlflow.runName",):
        if file.is_file() and (name := file.read_text(errors="replace").strip()):
            return name
    return run.name
