"""The generator process on this machine: spawned, connected by a pipe, and ended together with the trainer."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Protocol

from scalerl.core.processes import ChildContext
from scalerl.rollouts.weights import WeightChannel
from scalerl.rollouts.worker import Build, First, serve


class WorkerHandle(Protocol):
    """The trainer's handle of the generator process, on this or another machine."""

    connection: Connection
    """Carries messages to and from the process."""
    name: str
    """Name of the process in messages."""

    def obituary(self) -> str:
        """Return a description of how the process ended."""
        ...

    def end(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the process to end after a stop message, then kill it."""
        ...


Launch = Callable[[WeightChannel, Build, First], WorkerHandle]
"""Starts the generator process and returns immediately."""


class SpawnedWorker:
    """A child process."""

    def __init__(
        self, channel: WeightChannel, build: Build, first: First, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process, with additional environment variables."""
        context = ChildContext()
        self.connection, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(child_end, channel, build, first), name="generator")
        self._process.environment = environment or {}
        self._process.start()
        atexit.register(self._process.kill)  # runs before multiprocessing's handler, which would wait forever
        child_end.close()  # otherwise the end of the process would not close the pipe
        self.name = f"the generator process ({self._process.pid})"

    def obituary(self) -> str:
        """Return a description of its exit code or signal."""
        self._process.join(timeout=30)  # the pipe may close seconds before a busy machine reports the end
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}"

    def end(self, wait_s: float) -> None:
        """Wait for the process to end; kill it if it does not end in time."""
        self._process.join(timeout=wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)
