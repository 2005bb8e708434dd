"""Logs to MLflow."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an import of mlflow starts to report its use

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from scalerl.core.serialization import flat
from scalerl.training.trackers.base import LoggedRun

LONGEST_PARAMETER = 500
"""Length to which parameters are cut, in characters; the limit of old versions of MLflow."""

AT_ONCE = 100
"""Number of parameters per request; MLflow's limit."""

MOST_METRICS = 1000
"""Number of metrics per request; MLflow's limit."""

SEND_EVERY_S = 5.0
"""Interval in seconds at which metrics are sent; a process that is killed loses those of the last interval."""

REFUSED = re.compile(r"[^\w\-. /:]")
"""Characters that MLflow does not allow in names."""

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class Tracker:
    """Writes a run through the client of MLflow, which leaves the user's active run in this process unchanged."""

    def __init__(self, experiment: str = "scalerl") -> None:
        """Store the settings; nothing is sent yet."""
        self._experiment = experiment
        self._waiting: list[Metric] = []
        self._sent = time.monotonic()

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Create the run with the configuration as parameters, or continue the one with this id."""
        self._client = MlflowClient()
        if run.id:
            self._client.update_run(run.id, status="RUNNING")
            self._id = run.id
            return run.id
        existing = self._client.get_experiment_by_name(self._experiment)
        experiment = existing.experiment_id if existing else self._client.create_experiment(self._experiment)
        self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        params = [Param(_name(key), str(value)[:LONGEST_PARAMETER]) for key, value in flat(config).items()]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + AT_ONCE])
        return self._id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics. Several steps share a request, because one request per step takes three times the CPU time."""
        now = int(1000 * time.time())
        if len(self._waiting) + len(metrics) > MOST_METRICS or time.monotonic() > self._sent + SEND_EVERY_S:
            self._send()
        self._waiting += [Metric(_name(key), value, now, step) for key, value in metrics.items()]

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log the picture as an artifact, `curve/step_000100.png`."""
        self._send()
        self._client.log_artifact(self._id, str(png), name)

    def finish(self, state: str) -> None:
        """Set the status of the run."""
        self._send()
        self._client.set_terminated(self._id, STATUS[state])

    def _send(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        with _no_collection():
            for first in range(0, len(waiting), MOST_METRICS):
                self._client.log_batch(self._id, metrics=waiting[first : first + MOST_METRICS])


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause Python's garbage collector: the many objects of a batch make it search the whole process for 0.2 s."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _name(text: str) -> str:
    return REFUSED.sub("_", text)
