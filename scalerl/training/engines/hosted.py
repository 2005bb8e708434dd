"""The handle of exact engines: hosted in a thread, they sample on their own, and nobody waits for their steps.

They run in a separate thread: without it, every decode step of an engine in another process would cost a round trip.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from scalerl.core.errors import outcome
from scalerl.core.processes import fault
from scalerl.training.engines.engine import ExactEngine, Finished, step
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.served import Cancel, EngineCommand, EngineHandle, Report, Submit, Swap

GATHER_S = 0.03
"""Seconds that a report waits for more sequences after the first: sequences end at almost every decode step."""


class HostedEngines(EngineHandle):
    """Exact engines that share their weights: that of training pauses while that of evaluations has work."""

    def __init__(self, engines: Sequence[ExactEngine], name: str = "engine") -> None:
        """Start the thread.

        Args:
            engines: Engines over one model, by lane.
            name: Name in messages.
        """
        self._engines, self.name = engines, name
        self._condition = threading.Condition()
        self._commands: deque[EngineCommand] = deque()
        self._finished: list[list[Finished]] = [[] for _ in engines]
        self._version, self._closed = -1, False
        self._death: tuple[str, str] | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, command: EngineCommand) -> None:
        """Queue a command; commands are executed in order, between two decode steps."""
        with self._condition:
            self._commands.append(command)
            self._condition.notify_all()

    def report(self, wait_s: float) -> Report:
        """Return the results since the last report; wait up to `wait_s` for a finished sequence, a swap or a failure.

        Raises:
            EngineDied: An engine failed.
        """
        with self._condition:
            before = self._version
            self._condition.wait_for(lambda: any(self._finished) or self._version != before or self._death, wait_s)
            if any(self._finished) and wait_s:
                until = time.monotonic() + GATHER_S
                while not self._death and (left := until - time.monotonic()) > 0:
                    self._condition.wait(left)
            if self._death is not None:
                message, trace = self._death
                raise EngineDied(f"{self.name} failed: {message}", trace)
            finished = tuple(tuple(part) for part in self._finished)
            self._finished = [[] for _ in self._engines]
            return Report(finished, tuple(engine.work for engine in self._engines), self._version)

    def stop(self) -> None:
        """End the thread after the current step."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        """Run until stopped.

        Consumes: queued commands. Produces: finished sequences. Waits for: a command, if there is nothing to sample.
        Unblocked by: a command, or `stop`.
        """
        while (done := outcome(self._step)).exception() is None and done.result():
            pass
        if error := done.exception():  # the next report raises
            with self._condition:
                self._death = fault(error)
                self._condition.notify_all()

    def _step(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._commands or self._busy() is not None or self._closed)
            if self._closed:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            self._execute(command)
        swapped = any(isinstance(command, Swap) for command in commands)
        busy, finished = self._busy(swapped), []
        if busy is not None:
            finished = step(self._engines[busy])
        with self._condition:
            if swapped:
                self._version = self._engines[0].version
            if finished and busy is not None:
                self._finished[busy] += finished
            if finished or swapped:
                self._condition.notify_all()
        return True

    def _execute(self, command: EngineCommand) -> None:
        match command:
            case Submit(lane, requests):
                self._engines[lane].submit(requests)
            case Cancel(lane, ids):
                self._engines[lane].cancel(ids)
            case Swap(version):
                self._engines[0].swap(version)

    def _busy(self, swapped: bool = False) -> int | None:
        """Return the lane to step: the last one that has work."""
        if self._version < 0 and not swapped:
            return None
        numbers = reversed(range(len(self._engines)))
        return next((number for number in numbers if self._engines[number].occupancy().busy), None)
