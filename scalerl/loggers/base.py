"""The interface of loggers. A custom class with these methods is a logger (docs/watching.md)."""

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
    """Result of `start` at the beginning of the run; empty if the run has not been logged before."""
    resumed_step: int | None
    """Number of updates in the resumed checkpoint; None for a new run."""


class Logger(Protocol):
    """Writes to a tracker. All calls come from one separate thread, in the order of the run.

    If a method raises, its data are lost and the run continues. Steps never decrease.
    """

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin a logged run, or continue the one with `run.id`; called once, before everything else.

        Args:
            config: configuration as nested plain values, without `loggers` and `notify`.
            run: run to log.

        Returns:
            The id of the logged run, which is kept in the run directory for a later resume; not empty.
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
            name: name of the picture: `curve`.
            png: file with the picture; it is removed after the call.
            step: number of updates so far.
        """
        ...

    def finish(self, state: str) -> None:
        """End the logged run; called once, after all other methods.

        Args:
            state: state of the run: finished, stopped (it can be resumed) or failed.
        """
        ...
