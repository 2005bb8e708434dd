"""Child processes in order: they leave signals to their parent, and end with it, however it ends."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def obey_parent(*ignored: signal.Signals) -> None:
    """Prepare a child process: it ignores signals that its parent answers for it, and ends when the parent is gone.

    Args:
        ignored: a terminal sends Ctrl-C to all processes; only the parent is to act on it.
    """
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Consumes nothing; produces nothing; waits for the parent's death; unblocked by it, and ends this process."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
