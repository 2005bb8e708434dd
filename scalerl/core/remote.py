"""An object in another process: messages to it in order, calls with a time limit, and one form of its death.

`Remote` is the caller's side. It has two carriers: `LocalRemote`, a process of this machine behind a pipe, and
`RayRemote` (training/machines/remote.py), an actor. The process runs a function with its `End` of the carrier, such as
`serve`, which answers calls of an object's methods. All errors that end the function are reported in `host`.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol

from scalerl.core.errors import ConfigError
from scalerl.core.limits import GROUP_GRACE_S, MOST_DEATHS, PROCESS_END_S
from scalerl.core.machine import largest_child, memory_report
from scalerl.core.plugins import PluginError
from scalerl.core.processes import LACKED_MEMORY, ChildContext, ProcessDied, fault

PASSED: tuple[type[Exception], ...] = (ConfigError, PluginError)
"""Errors for the user, which the caller raises unchanged."""

KILLED = f"was killed by signal {signal.SIGKILL:d}"
"""How a process ends that the kernel kills for memory; a user's `kill -9` looks the same."""

RAN_OUT = "most likely by the kernel because memory ran out"

SLICE_S = 0.02
"""Seconds that a group waits for one process before it looks at the next one."""


class End(Protocol):
    """The end of a carrier in the other process. If the caller has ended, its methods end this process."""

    def has_message(self) -> bool:
        """Return whether a message is waiting."""

    def next(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for the next message and return (name of the method, arguments)."""

    def answer(self, kind: str, content: Any) -> None:
        """Send an answer: ("done", result), ("raised", exception) or ("failed", (reason, traceback))."""


class CallerEnded(SystemExit):
    """The caller has ended, so this process ends without a word."""


Body = Callable[[End], None]
"""Function that another process runs; must be picklable."""


def host(end: End, run: Body) -> None:
    """Run a function in the other process, and report the error that ends it."""
    try:
        run(end)
    except CallerEnded:
        raise
    except PASSED as error:
        end.answer("raised", error)
    except BaseException as error:  # a worker may die here: the caller gets the traceback and raises
        end.answer("failed", fault(error))


def serve(build: Callable[[], Any], passed: tuple[type[Exception], ...], end: End) -> None:
    """Build an object and answer calls of its methods; the first answer reports that it is built.

    Each call gets one answer, until the caller ends. After errors of the kinds in `passed`, the object is still usable;
    the caller raises them unchanged.
    """
    target = build()
    end.answer("done", None)
    while True:
        method, arguments = end.next()
        try:
            result = getattr(target, method)(*arguments)
        except passed as error:
            end.answer("raised", error)
        else:
            end.answer("done", result)


class Remote(Protocol):
    """The caller's side of a process. Subclasses carry the messages and end the process."""

    name: str
    """Name of the process in messages."""
    died: type[ProcessDied]
    """Exception that reports its death."""
    pid: int | None = None
    """Process id on this machine; None: it may run on another one."""
    kill: Callable[[], None]
    """Kills the process; may be called from any thread."""
    cure: str = ""
    """What to do if the process lacks memory, for the message about its death."""

    def tell(self, method: str, *arguments: Any) -> None:
        """Send a message and return at once; nothing happens if the process has ended."""
        self.send(self.pack((method, arguments)))

    def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Send a message and return its answer; raises what `receive` raises."""
        self.tell(method, *arguments)
        return self.receive(timeout_s)

    def receive(self, timeout_s: float | None = None, during: str = "") -> Any:
        """Return the next answer.

        Args:
            timeout_s: Time limit in seconds; None: no limit.
            during: What the process does, for messages.

        Raises:
            ProcessDied: `died`: the process ended, failed or did not answer in time.
            Exception: Raised unchanged by the process, as declared there.
        """
        kind, content = self.answer(timeout_s)
        if kind == "raised":
            raise content
        if kind != "done":
            raise self.death(kind, content, during)
        return content

    def answer(self, timeout_s: float | None = None) -> tuple[str, Any]:
        """Return the next answer with its kind: done, raised, failed, ended or late."""
        return self.read() if self.poll(timeout_s) else ("late", f"did not answer within {timeout_s:g} s")

    def death(self, kind: str, content: Any, during: str = "") -> ProcessDied:
        """Return the error for an answer of the kind failed, ended or late."""
        how, (reason, trace) = (content, ("", "")) if kind != "failed" else ("failed", content)
        text = f"{self.name} {how}{during and f' during {during}'}{reason and f': {reason}'}"
        cause = self.memory_cause(kind, content)
        cure = f". To need less memory, {self.cure}" if self.cure and cause is not None else ""
        return self.died(f"{text}{cause or ''}{cure}", trace)

    def memory_cause(self, kind: str, content: Any) -> str | None:
        """Return what to add to the message if memory is the likely cause of an answer failed or ended; else None."""
        # a generator fails with the message of an engine's process that it has started
        lacked = kind == "failed" and (content[0].startswith(LACKED_MEMORY) or RAN_OUT in content[0])
        return "" if lacked else None

    # ------------------------------------------------------------------------------------------------------ the carrier

    def pack(self, message: Any) -> Any:
        """Prepare a message for `send`, once for all processes that get it."""

    def send(self, packed: Any) -> None:
        """Send a message."""

    def poll(self, wait_s: float | None = 0.0) -> bool:
        """Wait for an answer or the end of the process; return whether there is one."""

    def read(self) -> tuple[str, Any]:
        """Return the answer or the end that `poll` has found."""

    def ended(self, wait_s: float = 0.0) -> str:
        """Return how the process ended; empty while it runs."""

    def end(self, wait_s: float = 0.0) -> None:
        """Wait for the end of the process, and kill it if it does not end in time."""


class LocalRemote(Remote):
    """A process of this machine; it ignores stop signals and ends with this process (processes.py)."""

    def __init__(
        self,
        run: Body,
        name: str,
        died: type[ProcessDied] = ProcessDied,
        environment: Mapping[str, str] | None = None,
        cure: str = "",
    ) -> None:
        """Start the process and return at once.

        Args:
            run: Function that the process runs.
            name: Name in messages; `{}` is replaced with the process id.
            died: Exception that reports its death.
            environment: Additional environment variables.
            cure: What to do if the process lacks memory.
        """
        processes = ChildContext()
        self._connection, child_end = processes.Pipe()
        self._process = processes.Process(target=host, args=(_PipeEnd(child_end), run))
        self._process.environment = environment or {}
        self._process.start()
        atexit.register(self._process.kill)  # runs before multiprocessing's handler, which would wait forever
        child_end.close()  # otherwise the end of the process would not close the pipe
        self.pid, self.join, self.kill = self._process.pid, self._process.join, self._process.kill
        self.name, self.died, self.cure, self._peak = name.format(self.pid), died, cure, 0

    def pack(self, message: Any) -> bytes:
        """Pickle a message by value, so that tensors need no file descriptors."""
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)

    def send(self, packed: bytes) -> None:
        """Write a message to the pipe."""
        with contextlib.suppress(OSError):  # the process has ended, which `read` reports
            self._connection.send_bytes(packed)

    def poll(self, wait_s: float | None = 0.0) -> bool:
        """Wait for the pipe."""
        return self._connection.poll(wait_s)

    def read(self) -> tuple[str, Any]:
        """Read an answer from the pipe."""
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            return "ended", self.ended(PROCESS_END_S) or "closed its pipe"
        try:
            kind, content = pickle.loads(message)
        except Exception as error:  # an object of user code, such as an exception with two arguments
            return "failed", fault(error)
        return kind, content

    def ended(self, wait_s: float = 0.0) -> str:
        """Return the exit code or signal in words."""
        before = largest_child()
        self._process.join(timeout=wait_s)
        code = self._process.exitcode
        if code is None:
            return ""
        if code == -signal.SIGKILL:
            peak = largest_child()  # that of this process, unless a larger one has ended before
            self._peak = max(self._peak, peak if peak > before else 0)
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def memory_cause(self, kind: str, content: Any) -> str | None:
        """Return the same for a killed process, too: with the memory that it had taken."""
        if kind == "ended" and content == KILLED:
            return f", {RAN_OUT}: {memory_report(self._peak)}"
        return super().memory_cause(kind, content)

    def end(self, wait_s: float = 0.0) -> None:
        """Wait for the end of the process, and kill it if it does not end in time."""
        self._process.join(timeout=wait_s)
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)


class _PipeEnd:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def has_message(self) -> bool:
        return self._connection.poll(0)

    def next(self) -> tuple[str, tuple[Any, ...]]:
        try:
            method, arguments = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise CallerEnded from None
        return method, arguments

    def answer(self, kind: str, content: Any) -> None:
        message = pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise CallerEnded from None


class Supervisor:
    """Makes calls to an object in a process (`serve`), one at a time. If the process ends, another one gets the call.

    Example:
        supervisor = Supervisor(partial(LocalRemote, partial(serve, Judge, ()), "the judge ({})"))
        supervisor.call("score", "2+2", limit_s=10.0)
    """

    def __init__(self, launch: Callable[[], Remote], note: Callable[[str], None] = lambda text: None) -> None:
        """Prepare; `start`, or the first call, starts the process.

        Args:
            launch: Function that starts the process.
            note: Function that gets a line about every process that is replaced.
        """
        self._launch, self._note = launch, note
        self._remote: Remote | None = None
        self._ready = self._closed = False

    def start(self) -> Remote:
        """Start a process in place of an earlier one, and do not wait until it is ready."""
        self.end()
        self._remote, self._ready = self._launch(), False
        if self._closed:  # `close` may not have seen the process
            self._remote.kill()
        return self._remote

    def call(self, method: str, *arguments: Any, limit_s: float | None = None, during: str = "") -> Any:
        """Make a call and return its answer.

        Args:
            method: Method of the object.
            arguments: Its arguments.
            limit_s: Time limit in seconds, measured from the time at which a process is ready; None: no limit.
            during: What the process does, for messages.

        Raises:
            TimeoutError: The call took too long, and its process was ended.
            ProcessDied: The process failed, or `MOST_DEATHS` processes ended, so that the call is probably the cause.
            Exception: Raised unchanged by the process, as declared there.
        """
        for deaths in range(1, MOST_DEATHS + 1):
            if (remote := self._remote) is None or remote.ended():  # it may have been killed while it had no call
                remote = self.start()
            try:
                if not self._ready:
                    remote.receive(during=during)
                    self._ready = True
                remote.tell(method, *arguments)
                if remote.poll(limit_s):
                    return remote.receive(during=during)
            except ProcessDied as error:
                self.end()
                if error.trace or self._closed or deaths == MOST_DEATHS:  # with a trace, it failed
                    raise
                self._note(f"{error}; another process repeats it")
            else:
                break
        self.end()
        raise TimeoutError

    def close(self) -> None:
        """Kill the process, from any thread; a call then raises ProcessDied."""
        self._closed = True
        if (remote := self._remote) is not None:  # the call may end it now
            remote.kill()

    def end(self) -> None:
        """End the process, which has no call."""
        if self._remote is not None:
            self._remote.end()
            self._remote = None


class RemoteGroup:
    """Objects in processes that work together: when one dies, all are ended, as the others would wait for it."""

    def __init__(self, remotes: Iterable[Remote]) -> None:
        """Use processes that have been started; `answers` waits until they are ready."""
        self._processes = list(remotes)
        self.death: ProcessDied | None = None
        """Why the group has ended; None while it runs."""

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Make one call in every process and return the answers in order.

        Raises:
            ProcessDied: A process ended, failed or took longer than `timeout_s` seconds; all were ended.
            Exception: Raised unchanged by a process, as declared there.
        """
        if self.death is not None:
            raise self.death
        self.tell(method, *arguments)
        return self.answers(method, timeout_s)

    def tell(self, method: str, *arguments: Any) -> None:
        """Send a call to every process and return at once; `answers` gives the answers."""
        packed = self._processes[0].pack((method, arguments))
        for remote in self._processes:
            remote.send(packed)

    def answers(self, method: str, timeout_s: float) -> list[Any]:
        """Return the answers to a call that has been sent; raises what `call` raises."""
        until, answered = time.monotonic() + timeout_s, dict[int, tuple[str, Any]]()
        waiting = dict(enumerate(self._processes))
        while waiting and time.monotonic() < until:
            for number, remote in list(waiting.items()):
                if remote.poll(SLICE_S):
                    answered[number] = remote.read()
                    until = min(until, time.monotonic() + GROUP_GRACE_S.get(answered[number][0], timeout_s))
                    del waiting[number]
        for kind in ("ended", "failed"):  # a killed process before those that failed after it
            for number in sorted(answered):
                if answered[number][0] == kind:
                    raise self._failure(self._processes[number], *answered[number], method)
        raised = [answered[number][1] for number in sorted(answered) if answered[number][0] == "raised"]
        if waiting and not raised:
            late = f"did not answer within {timeout_s:g} s"
            raise self._failure(next(iter(waiting.values())), "late", late, method)
        if waiting:  # they wait for the one that raised
            self.close()
        if raised:
            raise raised[0]
        return [answered[number][1] for number in range(len(answered))]

    def watch(self, during: str = "generation") -> None:
        """Check the processes while none of them has a call.

        Raises:
            ProcessDied: A process has ended; all were ended.
        """
        for remote in self._processes:
            if how := remote.ended():
                raise self._failure(remote, "ended", how, during)

    def close(self) -> None:
        """End all processes; may be called more than once. They hold no unsaved state."""
        for remote in self._processes:
            remote.end()
            self.death = self.death or remote.death("ended", "was ended")
        self._processes = []

    def _failure(self, remote: Remote, kind: str, content: Any, during: str) -> ProcessDied:
        """End all processes; return the error for the one that failed."""
        self.death = remote.death(kind, content, f"`{during}`")
        self.close()
        return self.death
