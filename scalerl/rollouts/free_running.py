"""Runs engines in a separate thread: calls are queued, and a report returns what has finished since the last one.

Without the thread, every decode step of an engine in another process would cost a round trip.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.core.errors import outcome
from scalerl.core.processes import fault
from scalerl.rollouts.engine import POLL_S, Engine, Finished, Work
from scalerl.rollouts.process_engine import EngineDied

GATHER_S = 0.03
"""Seconds that a report waits for more sequences after the first: sequences end at almost every decode step."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of engines over one model since the last report.

    Example: Report(finished=((Finished(...), ...), ()), works=(Work(steps=120, ...), Work()), version=7)
    """

    finished: tuple[tuple[Finished, ...], ...]
    """Finished sequences per engine."""
    works: tuple[Work, ...]
    """Work per engine since it was made."""
    version: int
    """Version of the weights in use; `NO_WEIGHTS` before the first swap."""


class FreeRunner:
    """Engines that share their weights: the first samples for training and pauses while another one has work."""

    def __init__(self, engines: Sequence[Engine], name: str = "engine") -> None:
        """Start the thread.

        Args:
            engines: Deterministic engines over one model.
            name: Name in messages.
        """
        self._engines, self.name = engines, name
        self._condition = threading.Condition()
        self._commands: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        self._finished: list[list[Finished]] = [[] for _ in engines]
        self._version, self._closed = -1, False
        self._death: tuple[str, str] | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, number: int, method: str, *arguments: Any) -> None:
        """Queue a call of an engine's submit, cancel or swap; calls are executed in order, between two decode steps."""
        with self._condition:
            self._commands.append((number, method, arguments))
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

    def kill(self) -> None:
        """End the thread after the current step."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        """Run until killed.

        Consumes: queued calls. Produces: finished sequences. Waits for: a call, if there is nothing to sample.
        Unblocked by: a call, or `kill`.
        """
        while (step := outcome(self._step)).exception() is None and step.result():
            pass
        if error := step.exception():  # the next report raises
            with self._condition:
                self._death = fault(error)
                self._condition.notify_all()

    def _step(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._commands or self._busy() is not None or self._closed)
            if self._closed:
                return False
            commands, self._commands = self._commands, deque()
        swapped = False
        for number, method, arguments in commands:
            getattr(self._engines[number], method)(*arguments)
            swapped |= method == "swap"
        busy, finished = self._busy(swapped), []
        if busy is not None:
            self._engines[busy].advance()
            finished = self._engines[busy].poll()
        with self._condition:
            if swapped:
                self._version = self._engines[0].version
            if finished and busy is not None:
                self._finished[busy] += finished
            if finished or swapped:
                self._condition.notify_all()
        return True

    def _busy(self, swapped: bool = False) -> int | None:
        """Return the number of the engine to step: the last one that has work."""
        if self._version < 0 and not swapped:
            return None
        numbers = reversed(range(len(self._engines)))
        return next((number for number in numbers if self._engines[number].occupancy().busy), None)


class PolledEngines:
    """Asynchronous engines, such as those of a server, with the interface of a FreeRunner."""

    def __init__(self, engines: Sequence[Engine], end: Callable[[], None]) -> None:
        """Wrap engines.

        Args:
            engines: Asynchronous engines over one model.
            end: Function that ends the server or process that they run on.
        """
        self._engines, self.kill = engines, end
        self._lock = threading.Lock()

    def post(self, number: int, method: str, *arguments: Any) -> None:
        """Call an engine's submit, cancel or swap."""
        with self._lock:
            getattr(self._engines[number], method)(*arguments)

    def report(self, wait_s: float) -> Report:
        """Return the results since the last report; wait up to `wait_s` for a finished sequence.

        Raises:
            EngineDied: An engine failed.
        """
        until = time.monotonic() + wait_s
        while True:
            with self._lock:
                finished = tuple(tuple(engine.poll()) for engine in self._engines)
                works, version = tuple(engine.work for engine in self._engines), self._engines[0].version
            if any(finished) or time.monotonic() >= until:
                return Report(finished, works, version)
            time.sleep(min(POLL_S, wait_s))
