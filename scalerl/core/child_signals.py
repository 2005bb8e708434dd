"""What processes pass on to their children: stop signals, the kernel's signal at the end of a parent, environment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a command. A terminal sends them to all processes, but only the parent acts on them."""

PARENT = "SCALERL_PARENT"
"""Environment variable with the process id of the study that started this run."""

SAFE_PATH = ("PYTHONSAFEPATH", "scalerl")
"""Environment variable of child processes: a new Python does not search the current directory, which may hold files
from elsewhere, such as a `signal.py` in a data set. The value distinguishes it from a setting of the user."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Stopped(KeyboardInterrupt):
    """A signal ended the command: there was nothing to save, or it was the second signal."""

    def __init__(self, number: int, when: str = "before the end") -> None:
        """Store the signal and the time of its arrival for the message."""
        super().__init__(number)
        self.number, self.when = number, when


def is_interruption(error: BaseException) -> bool:
    """Return whether a signal to this process raised an exception, and not code that it calls.

    Python raises KeyboardInterrupt only in the main thread, and only if nothing else handles the signal.
    """
    return isinstance(error, Stopped) or (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def protect_children() -> None:
    """Add SAFE_PATH to the environment of all processes that this process starts."""
    name, value = SAFE_PATH
    os.environ[name] = os.environ.get(name) or value


def unprotect_children() -> None:
    """Remove SAFE_PATH again: programs that the user's code starts search the usual path."""
    if SAFE_PATH in os.environ.items():
        del os.environ[SAFE_PATH[0]]


def environment_of_run() -> dict[str, str]:
    """Return the environment of a run that a study starts: the run stops with a checkpoint if this process ends."""
    return {**os.environ, **dict([SAFE_PATH]), PARENT: str(os.getpid())}


def obey_study() -> None:
    """Receive SIGTERM when the study that started this process ends, so that the run stops with a checkpoint."""
    started_by = os.environ.get(PARENT, "")
    if started_by.isdecimal() and os.getppid() == int(started_by):
        end_with(int(started_by), signal.SIGTERM)


@contextmanager
def same_handlers() -> Iterator[None]:
    """Restore this process's handlers of the signals in STOPPING after the block, in which a library replaces them."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            # only the main thread may set handlers; one that was not set from Python cannot be restored from Python
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends for any reason. Linux only.

    The kernel sends the signal when the thread that started this process ends. Unlike a watching thread in this
    process, this also works while a computation holds the interpreter's lock.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call to prctl
        os.kill(os.getpid(), number)
