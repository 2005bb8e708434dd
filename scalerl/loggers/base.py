"""The interface of loggers. A user's class with these methods is a logger (docs/watching.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that is logged.

    Example: LoggedRun(name="scalerl-001", path=Path("runs/scalerl-001"), id="3f2a9c1b", resumed_step=40)
    """

    name: str
    """Name of the run directory."""
    path: Path
    """The run directory."""
    id: str
    """Result of `start` when the run began; empty if the run has not been logged before."""
    resumed_step: int | None
    """Number of updates in the resumed checkpoint; None for a new run."""


class Logger(Protocol):
    """Writes to a tracker. All calls come from one separate thread, in the order of the run.

    A method that raises loses what it was given, and the run continues. Steps never decrease.
    """

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin a logged run, or continue the one with `run.id`; called once, before everything else.

        Args:
            config: the configuration as nested plain values, without `loggers` and `notify`.
            run: which run.

        Returns:
            The id of the logged run, kept in the run directory for a later resume; not empty.
        """
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers by name (docs/metrics.md); all of them are finite.

        Args:
            metrics: metrics of a training step, or of an evaluation (names with `eval/` and `forecast/`).
            step: number of updates so far.
        """
        ...

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log a picture.

        Args:
            name: `curve`.
            png: file that is removed after the call.
            step: updates done.
        """
        ...

    def finish(self, state: str) -> None:
        """End the logged run; called once, last.

        Args:
            state: finished, stopped (it can be resumed) or failed.
        """
        ...
