"""Handling of dead processes: tracebacks are saved, and a run on a cluster returns to its last checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied
from scalerl.rollouts.pipeline import WorkerDied
from scalerl.training.learner.ranks import LearnerDied
from scalerl.training.session import Session

DIED = (WorkerDied, LearnerDied)
"""Errors for the end of a process that the run needs. Engines that die are replaced and do not raise these."""


ERRORS = "errors.log"
"""File in a run directory with the tracebacks of processes and user functions that failed."""


def recorded(error: ProcessDied | PluginError, directory: Path) -> str:
    """Append the traceback of a failed process or user function to errors.log, and return the message with its path.

    Args:
        error: The error; without a traceback nothing is written.
        directory: The run directory.
    """
    if not error.trace:
        return str(error)
    path = directory / ERRORS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n{error.trace.rstrip()}\n\n")
    except OSError as full:  # a full disk may be the cause
        return f"{error} (its traceback could not be written to {path}: {full.strerror})"
    return f"{error} (traceback: {path})"


class Recovery:
    """Counts how often a run went back to the same checkpoint."""

    def __init__(self) -> None:
        self._left, self._from = -1, -1

    def allows(self, session: Session) -> bool:
        """Return whether a run whose process died may return to its last checkpoint once more.

        This is allowed only on a cluster, whose nodes may be lost and replaced. Each new checkpoint resets the count.
        """
        placement = session.config.placement
        if placement.backend != "ray":
            return False
        latest = max(session.checkpoints.steps(), default=0)
        if latest != self._from:
            self._from, self._left = latest, placement.restarts
        self._left -= 1
        return self._left >= 0
