"""Engines in a separate process, behind the engine contract: the coordinator's side and the process's side.

Several processes step in parallel: `advance` requests a step, `poll` waits for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from scalerl.core.processes import ProcessDied
from scalerl.core.remote import LocalRemote, serve
from scalerl.rollouts.engine import Engine, Finished, Occupancy, Request, Work

BuildEngines = Callable[[], Sequence[Engine]]
"""Makes engines that share their weights, inside the process; must be picklable."""


class EngineDied(ProcessDied):
    """An engine process ended or failed; the message includes its name."""


class EngineProcess(LocalRemote):
    """The coordinator's side of one process."""

    def __init__(self, build: BuildEngines, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the process.

        Args:
            build: Function that makes the engines inside the process.
            name: Name in messages.
            environment: Additional environment variables.
        """
        super().__init__(
            partial(serve, partial(_Engines, build), ()), f"{name} (process {{}})", EngineDied, environment
        )

    def engines(self) -> list[RemoteEngine]:
        """Wait until the process is ready; return a stand-in for each of its engines."""
        self.receive()
        return [RemoteEngine(self, number, *facts) for number, facts in enumerate(self.call("facts"))]


class RemoteEngine:
    """One engine of a process, behind the engine contract. Keeps its last reported occupancy and work."""

    def __init__(
        self, process: EngineProcess, number: int, occupancy: Occupancy, deterministic: bool, exact_resume: bool
    ) -> None:
        self._process, self._number, self._occupancy = process, number, occupancy
        self.deterministic, self.exact_resume = deterministic, exact_resume
        self.version, self.work = 0, Work()
        self._asked = False

    def occupancy(self) -> Occupancy:
        """Return how full the engine is, including sequences submitted since its last step."""
        return self._occupancy

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences."""
        if requests:
            self._occupancy = self._process.call("submit", self._number, list(requests))

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        self._occupancy = self._process.call("cancel", self._number, set(ids))

    def advance(self) -> None:
        """Request a step if there is work; `poll` returns the sequences that it finished."""
        if self._occupancy.busy:
            self._process.tell("step", self._number)
            self._asked = True

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Wait for the requested step; return the sequences that finished."""
        if not self._asked:
            return []
        self._asked = False
        finished, self._occupancy, self.work, self.version = self._process.receive()
        return list(finished)

    def swap(self, version: int) -> None:
        """Make the process receive and use new weights."""
        self.version = self._process.call("swap", self._number, version)

    def state(self) -> dict[str, Any]:
        """Return the engine's state."""
        return dict(self._process.call("state", self._number))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._occupancy, self.work = self._process.call("load_state", self._number, dict(state))


class _Engines:
    """The engines inside the process: each method calls one engine and returns what its RemoteEngine must know."""

    def __init__(self, build: BuildEngines) -> None:
        self._engines = build()

    def facts(self) -> list[tuple[Occupancy, bool, bool]]:
        return [(e.occupancy(), e.deterministic, e.exact_resume) for e in self._engines]

    def submit(self, number: int, requests: Sequence[Request]) -> Occupancy:
        self._engines[number].submit(requests)
        return self._engines[number].occupancy()

    def cancel(self, number: int, ids: Collection[tuple[int, int]]) -> Occupancy:
        self._engines[number].cancel(ids)
        return self._engines[number].occupancy()

    def step(self, number: int) -> tuple[list[Finished], Occupancy, Work, int]:
        engine = self._engines[number]
        engine.advance()
        return engine.poll(), engine.occupancy(), engine.work, engine.version

    def swap(self, number: int, version: int) -> int:
        self._engines[number].swap(version)
        return self._engines[number].version

    def state(self, number: int) -> dict[str, Any]:
        return self._engines[number].state()

    def load_state(self, number: int, state: Mapping[str, Any]) -> tuple[Occupancy, Work]:
        self._engines[number].load_state(state)
        return self._engines[number].occupancy(), self._engines[number].work
