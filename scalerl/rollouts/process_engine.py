"""Engines in a separate process, behind the engine contract: the coordinator's side and the process's side.

Several processes step in parallel: `advance` requests a step, `poll` waits for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from scalerl.core.processes import ProcessDied
from scalerl.core.remote import LocalRemote, serve
from scalerl.rollouts.engine import NO_WEIGHTS, Engine, Finished, Occupancy, Request, Work

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
        return [RemoteEngine(self, number, *declared) for number, declared in enumerate(self.call("declared"))]


class RemoteEngine:
    """One engine of a process, behind the engine contract. Keeps its last reported occupancy, work and version."""

    def __init__(self, process: EngineProcess, number: int, occupancy: Occupancy, deterministic: bool) -> None:
        self._process, self._number, self._occupancy = process, number, occupancy
        self.deterministic = deterministic
        self.version, self.work = 0 if deterministic else NO_WEIGHTS, Work()
        self._asked = False

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

    def advance(self) -> None:
        """Request a step if there is work; `poll` returns the sequences that it finished."""
        if self.deterministic and self._occupancy.busy:
            self._process.tell("step", self._number, 0.0)
            self._asked = True

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Wait for the requested step; return the sequences that finished."""
        if not self.deterministic:
            return list(self._heard(self._process.call("step", self._number, timeout_s)))
        if not self._asked:
            return []
        self._asked = False
        return list(self._heard(self._process.receive()))

    def swap(self, version: int) -> None:
        """Make the process receive and use new weights."""
        self._call("swap", version)

    def state(self) -> dict[str, Any] | None:
        """Return the engine's state."""
        state: dict[str, Any] | None = self._call("state")
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._call("load_state", dict(state))

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._heard(self._process.call("call", self._number, method, *arguments))

    def _heard(self, answer: tuple[Any, Facts]) -> Any:
        result, (self._occupancy, self.work, self.version) = answer
        return result


Facts = tuple[Occupancy, Work, int]
"""What a RemoteEngine must know after every call: occupancy, work and version of the weights."""


class _Engines:
    """The engines inside the process."""

    def __init__(self, build: BuildEngines) -> None:
        self._engines = build()

    def declared(self) -> list[tuple[Occupancy, bool]]:
        return [(engine.occupancy(), engine.deterministic) for engine in self._engines]

    def _facts(self, number: int) -> Facts:
        engine = self._engines[number]
        return engine.occupancy(), engine.work, engine.version

    def step(self, number: int, timeout_s: float) -> tuple[list[Finished], Facts]:
        self._engines[number].advance()
        return self._engines[number].poll(timeout_s), self._facts(number)

    def call(self, number: int, method: str, *arguments: Any) -> tuple[Any, Facts]:
        return getattr(self._engines[number], method)(*arguments), self._facts(number)
