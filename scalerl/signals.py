"""Stop signals, and the signal that the kernel sends when a parent process ends."""

from __future__ import annotations

import os
import signal
import sys

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a command. A terminal sends them to all processes, but only the parent acts on them."""

PARENT = "SCALERL_PARENT"
"""Environment variable with the process id of the study that started this run."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def environment_of_run() -> dict[str, str]:
    """Return the environment of a run that a study starts: the run stops with a checkpoint if this process ends."""
    return {**os.environ, PARENT: str(os.getpid())}


def obey_study() -> None:
    """Receive SIGTERM when the study that started this process ends, so that the run stops with a checkpoint."""
    started_by = os.environ.get(PARENT, "")
    if started_by.isdecimal() and os.getppid() == int(started_by):
        end_with(int(started_by), signal.SIGTERM)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends for any reason. Linux only.

    The kernel sends the signal when the thread that started this process ends. Unlike a watching thread in this
    process, this also works while a computation holds the interpreter's lock.

    Args:
        parent: Process id of the parent.
        number: Signal to send.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call to prctl
        os.kill(os.getpid(), number)
