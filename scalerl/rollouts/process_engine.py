"""Engines in a separate process, behind the engine contract: the coordinator's side and the process's side.

Several processes step in parallel: `advance` requests a step, `poll` waits for its result. Messages are pickled by
value, so that tensors need no file descriptors.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from scalerl.core.plugins import PluginError
from scalerl.core.processes import ChildContext, ProcessDied, fault
from scalerl.rollouts.engine import Engine, Finished, Occupancy, Request, Work

BuildEngines = Callable[[], Sequence[Engine]]
"""Makes engines that share their weights, inside the process; must be picklable."""


class EngineDied(ProcessDied):
    """An engine process ended or failed; the message includes its name."""


class EngineProcess:
    """The coordinator's side of one process."""

    def __init__(self, build: BuildEngines, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the process.

        Args:
            build: Function that makes the engines inside the process.
            name: Name in messages.
            environment: Additional environment variables.
        """
        context = ChildContext()
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(child_end, build), name=name, daemon=True)
        self._process.environment = environment or {}
        self._process.start()
        child_end.close()  # otherwise the end of the process would not close the pipe
        self.name = f"{name} (process {self._process.pid})"

    def engines(self) -> list[RemoteEngine]:
        """Wait until the process is ready; return a stand-in for each of its engines."""
        return [
            RemoteEngine(self, number, occupancy, declared)
            for number, (occupancy, declared) in enumerate(self.receive())
        ]

    def send(self, *message: Any) -> None:
        """Send a message: (number of the engine, name of the method, arguments)."""
        with self._told():
            self._connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return the next answer.

        Raises:
            EngineDied: The process ended or failed.
        """
        with self._told():
            kind, content = pickle.loads(self._connection.recv_bytes())
        if kind == "failed":
            reason, trace = content
            raise EngineDied(f"{self.name} failed: {reason}", trace)
        return content

    @contextlib.contextmanager
    def _told(self) -> Any:
        try:
            yield
        except (EOFError, OSError):
            self._process.join(timeout=2)
            raise EngineDied(f"{self.name} ended with exit code {self._process.exitcode}") from None


class RemoteEngine:
    """One engine of a process, behind the engine contract. Keeps its last reported occupancy and work."""

    def __init__(self, process: EngineProcess, number: int, occupancy: Occupancy, declared: tuple[bool, bool]) -> None:
        self._process, self._number, self._occupancy = process, number, occupancy
        self.deterministic, self.exact_resume = declared
        self.version, self.work = 0, Work()
        self._asked = False

    def occupancy(self) -> Occupancy:
        """Return how full the engine is, including sequences submitted since its last step."""
        return self._occupancy

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences."""
        if requests:
            self._process.send(self._number, "submit", list(requests))
            self._occupancy = self._process.receive()

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        self._process.send(self._number, "cancel", set(ids))
        self._occupancy = self._process.receive()

    def advance(self) -> None:
        """Request a step if there is work; `poll` returns the sequences that it finished."""
        if self._occupancy.busy:
            self._process.send(self._number, "poll")
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
        self._process.send(self._number, "swap", version)
        self.version = self._process.receive()

    def state(self) -> dict[str, Any]:
        """Return the engine's state."""
        self._process.send(self._number, "state")
        return dict(self._process.receive())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._process.send(self._number, "load_state", dict(state))
        self._occupancy, self.work = self._process.receive()


def serve(connection: Connection, build: BuildEngines) -> None:
    """Run the engines of one process until the coordinator ends.

    Consumes: messages. Produces: one answer to each. Waits for: a message.
    Unblocked by: a message, or the death of the coordinator, which ends this process.
    """
    try:
        engines = build()
        _answer(connection, "ready", [(e.occupancy(), (e.deterministic, e.exact_resume)) for e in engines])
        while True:
            number, method, *arguments = pickle.loads(connection.recv_bytes())
            _answer(connection, method, ANSWERS[method](engines[number], *arguments))
    except (BrokenPipeError, EOFError, ConnectionResetError):
        return  # the coordinator has ended
    except PluginError as error:  # raised by a user's engine: the message includes the location
        _answer(connection, "failed", (str(error), ""))
    except Exception as error:  # a worker may die here: the coordinator receives the traceback and raises
        with contextlib.suppress(OSError):
            _answer(connection, "failed", fault(error))


def _answer(connection: Connection, kind: str, content: Any) -> None:
    connection.send_bytes(pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL))


def _submit(engine: Engine, requests: Sequence[Request]) -> Occupancy:
    engine.submit(requests)
    return engine.occupancy()


def _cancel(engine: Engine, ids: Collection[tuple[int, int]]) -> Occupancy:
    engine.cancel(ids)
    return engine.occupancy()


def _poll(engine: Engine) -> tuple[list[Finished], Occupancy, Work, int]:
    engine.advance()
    return engine.poll(), engine.occupancy(), engine.work, engine.version


def _swap(engine: Engine, version: int) -> int:
    engine.swap(version)
    return engine.version


def _load_state(engine: Engine, state: Mapping[str, Any]) -> tuple[Occupancy, Work]:
    engine.load_state(state)
    return engine.occupancy(), engine.work


ANSWERS: dict[str, Callable[..., Any]] = {
    "submit": _submit,
    "cancel": _cancel,
    "poll": _poll,
    "swap": _swap,
    "state": lambda engine: engine.state(),
    "load_state": _load_state,
}
"""Handlers by message; the process sends back what they return."""
