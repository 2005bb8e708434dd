"""The signals that ask a command to stop, and the one that the kernel sends when a parent has ended."""

from __future__ import annotations

import os
import signal
import sys

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to stop. A terminal sends them to all its processes; only the parent is to act on them."""

PARENT = "SCALERL_PARENT"
"""Environment variable: process id of the study that started this run."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def obey_study() -> None:
    """Get SIGTERM when the study that started this process ends, so that the run stops with a checkpoint."""
    started_by = os.environ.get(PARENT, "")
    if started_by.isdecimal() and os.getppid() == int(started_by):
        end_with(int(started_by), signal.SIGTERM)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends, however it ends; on Linux alone.

    The kernel ties it to the thread of the parent that started this process. Unlike a thread of this process, it also
    acts while this process computes without giving up the interpreter's lock.

    Args:
        parent: its process id.
        number: of the signal.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), number)
