"""Logs to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from scalerl.loggers.base import LoggedRun


class Wandb:
    """Writes a run of wandb; files of wandb are in the run directory, also those of its offline mode."""

    def __init__(self, project: str = "scalerl", entity: str = "") -> None:
        """Prepare; nothing is sent."""
        self._project, self._entity = project, entity

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin the run, or continue the one with this id. Offline, `wandb sync` puts its parts together."""
        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            name=run.name,
            dir=str(run.path),
            config=dict(config),
            id=run.id or None,
            resume="allow" if run.id else None,
            reinit="create_new",  # several runs of one process do not end each other
            settings=wandb.Settings(console="off", silent=True),  # the run prints to its own display
        )
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers at wandb's own step."""
        self._run.log(dict(metrics), step=step)

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log the picture; wandb copies it."""
        self._run.log({name: wandb.Image(str(png))}, step=step)

    def finish(self, state: str) -> None:
        """Mark a failed run as failed; any other is finished."""
        self._run.finish(exit_code=1 if state == "failed" else 0)
