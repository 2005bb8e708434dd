"""Engines in a separate process, behind the engine contract: the coordinator's side and the process's side.

Several processes step in parallel: `begin` requests a step, `poll` waits for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from scalerl.core.processes import ProcessDied
from scalerl.core.remote import LocalRemote, serve
from scalerl.training.engines.engine import Engine, ExactEngine, Finished, Occupancy, Request, Work, step

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
        return [
            (RemoteExactEngine if exact else RemoteEngine)(self, number, facts)
            for number, (exact, facts) in enumerate(self.call("declared"))
        ]


class RemoteEngine:
    """One engine of a process, behind the engine contract. Keeps its last reported occupancy, work and version."""

    def __init__(self, process: EngineProcess, number: int, facts: Facts) -> None:
        self._process, self._number = process, number
        self._occupancy, self.work, self.version = facts

    def occupancy(self) -> Occupancy:
        """Return how full the engine is, including sequences submitted since its last step."""
        return self._occupancy

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences."""
        if requests:
            self._call("submit", list(requests))

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        self._call("cancel", set(ids))

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished."""
        return list(self._call("poll", timeout_s))

    def swap(self, version: int) -> None:
        """Make the process receive and use new weights."""
        self._call("swap", version)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._heard(self._process.call("call", self._number, method, *arguments))

    def _heard(self, answer: tuple[Any, Facts]) -> Any:
        result, (self._occupancy, self.work, self.version) = answer
        return result


class RemoteExactEngine(RemoteEngine):
    """An exact engine of a process."""

    _begun = False

    def begin(self) -> None:
        """Request a step if there is work, and return at once."""
        if self._occupancy.busy:
            self._process.tell("step", self._number)
            self._begun = True

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Wait for the requested step; return the sequences that finished."""
        if not self._begun:
            return []
        self._begun = False
        return list(self._heard(self._process.receive()))

    def state(self) -> dict[str, Any]:
        """Return the engine's state."""
        state: dict[str, Any] = self._call("state")
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._call("load_state", dict(state))


Facts = tuple[Occupancy, Work, int]
"""What a RemoteEngine must know after every call: occupancy, work and version of the weights."""


class _Engines:
    """The engines inside the process."""

    def __init__(self, build: BuildEngines) -> None:
        self._engines = build()

    def declared(self) -> list[tuple[bool, Facts]]:
        return [(isinstance(engine, ExactEngine), facts_of(engine)) for engine in self._engines]

    def step(self, number: int) -> tuple[list[Finished], Facts]:
        engine = self._engines[number]
        assert isinstance(engine, ExactEngine)
        return step(engine), facts_of(engine)

    def call(self, number: int, method: str, *arguments: Any) -> tuple[Any, Facts]:
        engine = self._engines[number]
        return getattr(engine, method)(*arguments), facts_of(engine)


def facts_of(engine: Engine) -> Facts:
    """Return what a `RemoteEngine` knows about an engine."""
    return engine.occupancy(), engine.work, engine.version
