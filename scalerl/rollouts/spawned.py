"""The generator's process on this machine: spawned, connected by a pipe, and gone when the trainer is."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from scalerl.processes import ChildContext
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.rollouts.worker import Build, First, serve


class WorkerHandle(Protocol):
    """The trainer's side of the generator's process, wherever it runs."""

    connection: Connection
    """Messages to and from it."""
    name: str
    """For messages."""

    def obituary(self) -> str:
        """Return how it ended, in words."""
        ...

    def end(self, wait_s: float) -> None:
        """Wait so long for it to end by itself, which it was told to do; then kill it."""
        ...


Launch = Callable[[WeightChannel, Build, First], WorkerHandle]
"""Starts the generator's process and returns at once."""


class SpawnedWorker:
    """A child process."""

    def __init__(self, channel: WeightChannel, build: Build, first: First) -> None:
        """Start it."""
        context = ChildContext()
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, channel, build, first), name="generator")
        self._process.start()
        atexit.register(self._process.kill)  # before multiprocessing's own handler, which would wait for ever
        theirs.close()  # else the end of the process would not end the pipe
        self.name = f"the generator process ({self._process.pid})"

    def obituary(self) -> str:
        """Return its exit code or signal, in words."""
        self._process.join(timeout=2)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}"

    def end(self, wait_s: float) -> None:
        """Wait for it; kill it where it is in the middle of something long."""
        self._process.join(timeout=wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)
