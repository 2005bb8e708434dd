"""Child processes that leave stop signals to their parent and end when it ends, even if it is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from scalerl.core.child_signals import SAFE_PATH, STOPPING, end_with, protect_children, unprotect_children
from scalerl.core.errors import ProcessFailure, lacks_memory
from scalerl.core.files import system_error, trouble
from scalerl.core.machine import memory_report, peak_bytes

LACKED_MEMORY = "it ran out of memory: "
"""Beginning of the reason of a process that could not allocate memory."""

_starting = threading.Lock()


class ProcessDied(ProcessFailure):
    """A process that a run needs has ended or failed. The message is one line and names the process."""

    def __init__(self, message: str, trace: str = "") -> None:
        """Store the message and the traceback of the process, if it failed by an exception."""
        super().__init__(message)
        self.trace = trace


def fault(error: BaseException) -> tuple[str, str]:
    """Return the exception that ends a child process as one line and a traceback, for the parent.

    Example: fault(error) == ("ValueError: no such model: a/b", "Traceback (most recent call last): ...")
    """
    if isinstance(error, ProcessDied):  # the message and traceback of a process that this process started
        return str(error), error.trace
    cause = system_error(error)
    if cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT):  # a checkpoint did not fit on the disk
        return trouble(cause), ""
    text = " ".join(str(error).split())
    if lacks_memory(error):
        return f"{LACKED_MEMORY}{memory_report(peak_bytes())} ({type(error).__name__}: {text[:200]})", ""
    return f"{type(error).__name__}{': ' if text else ''}{text[:500]}", "".join(traceback.format_exception(error))


def stopped_process(pid: int, *, descendants: bool = True) -> int | None:
    """Return the id of a process that SIGSTOP has stopped: `pid` or, with `descendants`, one that it started.

    None if there is none, or no /proc.
    """
    states: dict[int, tuple[str, int]] = {}
    names = os.listdir("/proc") if descendants and os.path.isdir("/proc") else [str(pid)]
    for name in filter(str.isdecimal, names):
        with contextlib.suppress(OSError):  # it has ended
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            states[int(name)] = state, int(parent)
    family = [pid]
    for member in family:  # grows
        family += [child for child, (_, parent) in states.items() if parent == member]
    return next((member for member in family if states.get(member, ("", 0))[0] in ("T", "t")), None)


class _ChildProcess(SpawnProcess):
    """A spawned process that ignores stop signals and is killed when its parent ends."""

    environment: Mapping[str, str] = {}
    """Environment variables that the process sets before its imports, such as CUDA_VISIBLE_DEVICES."""

    def start(self) -> None:
        """Start the process.

        The signals in STOPPING are blocked in the child until it ignores them, so that none interrupts its imports.
        """
        with _safe_path(), _interpreter(self.environment), _blocked(), _hidden_script():
            super().start()

    def __reduce__(self) -> Any:
        # pickle calls the function before it reads the state, and reading the state imports torch for seconds
        return _arrive, (type(self), os.getpid(), self.environment), self.__dict__


class ChildContext(SpawnContext):
    """Like `multiprocessing.get_context("spawn")`, with processes that leave signals to their parent and end with it.

    The kernel kills a process when the thread that started it ends, so the thread must live at least as long.
    """

    Process = _ChildProcess

    def __init__(self) -> None:
        """Start multiprocessing's tracker before a lock starts it without SAFE_PATH, or `start` with open signals."""
        with _safe_path():
            resource_tracker.ensure_running()


def _arrive(kind: type[_ChildProcess], parent: int, environment: Mapping[str, str]) -> _ChildProcess:
    """Return a process object without its state, in the child, before heavy imports."""
    os.environ.update(environment)
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with(parent)
    return kind.__new__(kind)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes with SAFE_PATH inside the block, in a script that imports scalerl."""
    with _starting:
        before = SAFE_PATH in os.environ.items()
        protect_children()
        try:
            yield
        finally:
            if not before:
                unprotect_children()


@contextlib.contextmanager
def _interpreter(environment: Mapping[str, str]) -> Iterator[None]:
    """Start processes with the variables that Python reads first, such as PYTHONHASHSEED; inside `_safe_path`."""
    early = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    before = {name: os.environ.get(name) for name in early}
    os.environ.update(early)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@contextlib.contextmanager
def _hidden_script() -> Iterator[None]:
    """Hide the script from multiprocessing inside the block, which would import it in the new process.

    A script without `if __name__ == "__main__"` would then train again there.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals in STOPPING in this thread; a process started in the block inherits the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
