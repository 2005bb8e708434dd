"""Writes the forecast of a log back to its tracker, under `scalerl/`, with the tracker's own client and credentials."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from scalerl.core.errors import ConfigError
from scalerl.importers.formats import EVENTS, MLFLOW, find_log
from scalerl.importers.growing import bytes_before
from scalerl.importers.points import WRITTEN
from scalerl.importers.tensorboard import WRITTEN as WRITTEN_END
from scalerl.importers.tensorboard import run_name
from scalerl.importers.trackers import mlflow_name, wandb_path
from scalerl.view.outlook import Outlook, Source, forecast_numbers, named_numbers

TRACKERS = "a directory of TensorBoard, a store of MLflow, a database of Trackio, or wandb:entity/project/run"


class Writer(Protocol):
    """Writes numbers to one run of a tracker."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers at a step of training."""

    def close(self) -> None:
        """Send what is left."""


def written_numbers(outlook: Outlook) -> dict[str, float]:
    """Return the forecast and the advice as numbers by the names under which they are written."""
    advice = outlook.advice
    numbers = {**forecast_numbers(outlook), **named_numbers("gain_2x", advice.gain)}
    numbers["stop"] = float(advice.action == "stop")
    return {WRITTEN + name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def last_step(source: Source) -> int:
    """Return the step of training of the last point, or the number of values if the log has no steps."""
    if source.log is None:
        return len(source.curve)
    return int(source.log.rows[-1].get("step", source.log.values))


def writer_of(path: Path, run: str | None) -> Writer:
    """Return the writer to the tracker of a log that was read.

    Args:
        path: The log.
        run: Name of the run that was chosen, if the tracker has several.

    Raises:
        ConfigError: The log is not that of a tracker, its client is not installed, or the run is not there.
    """
    if (name := wandb_path(str(path))) is not None:
        check_client("wandb")
        return WandbWriter(name)
    if path.is_dir():
        kind, places = find_log(path, EVENTS)
        if kind == EVENTS:
            check_client("tensorboard")
            return TensorBoardWriter(directory_of(places, path, run))
        if kind == MLFLOW:
            check_client("mlflow")
            place = next((place for place in places if run in (None, mlflow_name(place), place.name)), places[0])
            return MlflowWriter(place.parents[1].absolute().as_uri(), place.name)
    elif "tfevents" in path.name:
        check_client("tensorboard")
        return TensorBoardWriter(path.parent)
    elif bytes_before(path, 15) == b"SQLite format 3":
        return database_writer(path, run)
    raise ConfigError(
        f"--write: {path} is not the log of a tracker to which a forecast can be written; allowed: {TRACKERS}"
    )


def check_client(module: str) -> None:
    """Check that the client of a tracker is installed.

    Raises:
        ConfigError: It is not.
    """
    if find_spec(module) is None:
        raise ConfigError(f"--write: writing to this tracker needs its own package: pip install {module}")


def directory_of(files: list[Path], top: Path, run: str | None) -> Path:
    """Return the directory of the event files of a run."""
    places = list(dict.fromkeys(file.parent for file in files))
    if run is not None:
        return next((place for place in places if run_name(place, top) == run), top)
    return places[0] if len(places) == 1 else top


def database_writer(path: Path, run: str | None) -> Writer:
    """Return the writer to a database of MLflow or Trackio."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as base:
        names = {name for _, name, *_ in base.execute("pragma table_info(metrics)")}
        if "run_uuid" in names:
            check_client("mlflow")
            query = (
                "select run_uuid, name from runs where ? is null or run_uuid = ? or name = ? order by start_time desc"
            )
            row = base.execute(query, (run, run, run)).fetchone()
            if row is None:
                raise ConfigError(f"--write: {path} has no run {run!r}")
            return MlflowWriter(f"sqlite:///{path.absolute()}", str(row[0]))
        check_client("trackio")
        identity = "run_id" if "run_id" in names else "null"  # versions of 2025 have names only
        query = f"select run_name, {identity} from metrics where ? is null or run_name = ? order by id desc"
        row = base.execute(query, (run, run)).fetchone()
        if row is None:
            raise ConfigError(f"--write: {path} has no run {run or 'yet'}")
    return TrackioWriter(path, *row)


class TensorBoardWriter:
    """Adds one event file to the directory of a run, which the readers of logs leave out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write one event; the first one opens the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._directory), filename_suffix=WRITTEN_END)
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MlflowWriter:
    """Adds metrics to the run itself, which other processes may do while it trains."""

    def __init__(self, uri: str, run: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an import of mlflow starts to report its use
        from mlflow.tracking import MlflowClient

        self._client, self._run = MlflowClient(uri), run

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log one batch."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])

    def close(self) -> None:
        """Do nothing; every batch was sent."""


class TrackioWriter:
    """Adds rows to the run itself, through Trackio's storage; `trackio.init` would replace the run's configuration."""

    def __init__(self, database: Path, run: str, run_id: str | None) -> None:
        os.environ["TRACKIO_DIR"] = str(database.absolute().parent)  # read when trackio is imported
        from trackio.sqlite_storage import SQLiteStorage

        self._storage, self._project, self._run = SQLiteStorage, database.stem, run
        self._identity = {} if run_id is None else {"run_id": run_id}

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add one row."""
        self._storage.bulk_log(self._project, self._run, [dict(numbers)], steps=[step], **self._identity)

    def close(self) -> None:
        """Do nothing; every row was written."""


class WandbWriter:
    """Writes to a run beside the one that is followed, because wandb allows one process to write to a run."""

    def __init__(self, path: str) -> None:
        self._entity, self._project, self._id = path.split("/")
        self._run: Any = None

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log one row; the first one opens the run."""
        if self._run is None:
            import wandb

            self._run = wandb.init(
                entity=self._entity, project=self._project, id=f"{self._id}-scalerl", resume="allow",
                name=f"forecast of {self._id}", job_type="forecast",
                settings=wandb.Settings(console="off", silent=True),
            )  # fmt: skip
            self._run.define_metric(f"{WRITTEN}*", step_metric=f"{WRITTEN}step")
        self._run.log({**numbers, f"{WRITTEN}step": step})

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()


class WriteBack:
    """Writes each new forecast; a tracker that does not answer is tried again with the next one, and said once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Store the function that shows a message."""
        self._tell = tell
        self._writer: Writer | None = None
        self._failed = False

    def open(self, path: Path, run: str | None) -> None:
        """Find the tracker of a log; arguments and errors are those of `writer_of`."""
        if self._writer is None:
            self._writer = writer_of(path, run)

    def write(self, source: Source, outlook: Outlook, run: str | None) -> None:
        """Write one forecast.

        Raises:
            ConfigError: There is no tracker, or its client is not installed.
        """
        try:
            self.open(source.path, run)
            assert self._writer is not None
            self._writer.write(written_numbers(outlook), last_step(source))
        except ConfigError:
            raise
        except Exception as error:  # the clients raise errors of their own, of databases and of networks
            if not self._failed:
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                self._tell(f"the forecast cannot be written ({reason}); tried again with the next one")
            self._failed = True
            return
        if self._failed:
            self._failed = False
            self._tell("the forecast can be written again")

    def close(self) -> None:
        """Send what is left."""
        if self._writer is not None:
            self._writer.close()
