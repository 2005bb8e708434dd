"""Logs to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb sends its own errors to its makers

import wandb

from scalerl.training.trackers.base import LoggedRun


class Tracker:
    """Writes a run of wandb; the files of wandb, including those of its offline mode, are in the run directory."""

    def __init__(self, project: str = "scalerl") -> None:
        """Store the settings; nothing is sent yet."""
        self._project, self._last = project, 0

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin the run, or continue the one with this id. For offline runs, `wandb sync` joins the parts."""
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            dir=str(run.path),
            config=dict(config),
            id=run.id or None,
            resume="allow" if run.id else None,
            reinit="create_new",  # otherwise a new run would end other runs of this process
            settings=wandb.Settings(console="off", silent=True),  # the run prints to its own display
        )
        self._last = self._run.step
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics at the step of wandb, which drops those of a step before its last one.

        The metrics of an evaluation that ended late are logged at the last step, with theirs as `eval/step`.
        """
        late = {"eval/step": step} if step < self._last else {}
        self._last = max(self._last, step)
        self._run.log({**metrics, **late}, step=self._last)

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log the picture; wandb copies it."""
        self._run.log({name: wandb.Image(str(png))}, step=max(step, self._last))

    def finish(self, state: str) -> None:
        """Mark a failed run as failed, and any other run as finished."""
        self._run.finish(exit_code=1 if state == "failed" else 0)
