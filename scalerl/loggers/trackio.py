"""Logs to Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from scalerl.loggers.base import LoggedRun


class Tracker:
    """Writes a run of Trackio, which keeps its numbers in a local store ($TRACKIO_DIR) or sends them to a Space."""

    def __init__(self, project: str = "scalerl", space: str = "") -> None:
        """Store the settings; nothing is sent yet."""
        self._project, self._space = project, space

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin the run, or continue the one with this name, which is the id."""
        self._run = trackio.init(
            project=self._project,
            name=run.id or run.name,
            config=dict(config),
            resume="allow" if run.id else "never",
            space_id=self._space or None,
            embed=False,
        )
        return str(self._run.name)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self._run.log(dict(metrics), step=step)

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log the picture; Trackio copies it."""
        self._run.log({name: trackio.Image(str(png), caption=f"step {step}")}, step=step)

    def finish(self, state: str) -> None:
        """Wait until everything is stored."""
        self._run.finish()
