"""Child processes in order: they leave signals to their parent, and end with it, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from scalerl.signals import STOPPING, end_with


class _ChildProcess(SpawnProcess):
    """A spawned process that ignores signals which ask to stop, and is killed when its parent ends."""

    ignored: tuple[signal.Signals, ...] = STOPPING

    def start(self) -> None:
        """Start the process.

        STOPPING is blocked in it until it can ignore it, so that no signal interrupts its imports.
        """
        resource_tracker.ensure_running()  # else starting it would unblock them
        with _blocked():
            super().start()

    def __reduce__(self) -> Any:
        # pickle calls the function before it reads the state, which imports torch for several seconds
        return _arrive, (type(self), os.getpid()), self.__dict__

    def run(self) -> None:
        """Run the target, beside a thread that waits for the end of the parent."""
        threading.Thread(target=_end_with_parent, daemon=True).start()
        super().run()


class ChildContext(SpawnContext):
    """`multiprocessing.get_context("spawn")`, with processes that leave signals to their parent and end with it.

    The kernel ties a process to the thread that started it: start it from a thread that lives at least as long.
    """

    Process = _ChildProcess


class _PoolProcess(_ChildProcess):
    ignored = (signal.SIGINT, signal.SIGHUP)


class PoolContext(ChildContext):
    """The same for the workers of a pool, which ends them by SIGTERM."""

    Process = _PoolProcess


def _arrive(kind: type[_ChildProcess], parent: int) -> _ChildProcess:
    """Return a process object without its state, inside the child, before anything heavy is imported."""
    for number in kind.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with(parent)
    return kind.__new__(kind)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block STOPPING in this thread; a process that is started meanwhile inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Consumes nothing; produces nothing; waits for the parent's death; unblocked by it, and ends this process."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
