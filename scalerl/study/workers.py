"""Workers that run the processes of a study: the interface, and processes on this machine. `cluster.jobs` uses Ray."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from scalerl.core.signals import environment_of_run


class Job(Protocol):
    """A process that was started, such as a `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def terminate(self) -> None:
        """Request a stop with a checkpoint, without waiting for it."""


class Workers(Protocol):
    """A place to run processes."""

    count: int
    """Number of processes that can run in parallel."""

    def start(self, command: Sequence[str], log: Path) -> Job:
        """Start a process whose output is appended to a log."""


class LocalWorkers:
    """Processes on this machine."""

    def __init__(self, count: int) -> None:
        self.count = count

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a child process in a separate session, which Ctrl-C does not reach.

        It gets SIGTERM when this process ends.
        """
        with log.open("ab") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment_of_run(),
            )
