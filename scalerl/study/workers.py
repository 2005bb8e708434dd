"""Where the processes of a study run: the contract, and processes of this machine. `cluster.jobs` uses Ray."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from scalerl.signals import environment_of_run


class Job(Protocol):
    """A process that was started, such as a ``subprocess.Popen``."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def terminate(self) -> None:
        """Ask it to write a checkpoint and stop; this may take a while."""


class Workers(Protocol):
    """A place to run processes."""

    count: int
    """Number of processes that can run at once."""

    def start(self, command: Sequence[str], log: Path) -> Job:
        """Start a process whose output is added to a log."""


class LocalWorkers:
    """Processes of this machine."""

    def __init__(self, count: int) -> None:
        self.count = count

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a child process in its own session, so that Ctrl-C does not reach it.

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
