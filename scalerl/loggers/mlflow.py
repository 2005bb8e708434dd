"""Logs to MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from scalerl.loggers.base import LoggedRun, flat

LONGEST = 500
"""Characters of a parameter that are kept; stores of MLflow refuse longer ones, from 500 on in old versions."""

AT_ONCE = 100
"""Parameters of one request; MLflow's limit."""

REFUSED = re.compile(r"[^\w\-. /:]")
"""Characters that MLflow refuses in names."""

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow:
    """Writes a run of MLflow by its client, so that a run that the user has open in this process is untouched."""

    def __init__(self, experiment: str = "scalerl", tracking_uri: str = "") -> None:
        """Prepare; nothing is sent."""
        self._experiment, self._uri = experiment, tracking_uri

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Create the run with the configuration as parameters, or continue the one with this id."""
        self._client = MlflowClient(self._uri or None)
        if run.id:
            self._client.update_run(run.id, status="RUNNING")
            self._id = run.id
            return run.id
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        params = [Param(_name(key), str(value)[:LONGEST]) for key, value in flat(config).items()]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + AT_ONCE])
        return self._id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers in one request."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(_name(key), x, now, step) for key, x in metrics.items()])

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log the picture as an artifact, `curve/step_000100.png`."""
        self._client.log_artifact(self._id, str(png), name)

    def finish(self, state: str) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._id, STATUS[state])


def _name(text: str) -> str:
    return REFUSED.sub("_", text)
