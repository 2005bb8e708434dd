"""Runs a server and ends it when standard input ends, because the parent closed it or ended.

Usage: guard.py LOG COMMAND...  The script uses only the standard library, so that it starts fast. A line on standard
input before its end gives the server time to shut down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PATIENCE_S = 15.0
"""Seconds between terminating and killing the server, if the parent requested a shutdown."""
_ORPHANED_S = 0.5
"""The same if the parent has ended: nothing waits for the server, and its GPU may be needed."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(log: str, command: list[str]) -> int:
    """Run a command with its output in a file; return its exit code."""
    # a terminal sends these to the whole process group; only the parent acts on them
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the server would inherit SIG_IGN and could not be terminated
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with open(log, "ab") as out:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_guard,  # safe here: no other thread runs yet
        )
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    code = server.wait()
    _signal_all(server, signal.SIGKILL)  # workers that outlived the server
    return code if code >= 0 else 128 - code  # as shells report a signal


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    """End the server after the end of standard input.

    Consumes: standard input. Produces: signals to the server. Waits for: the end of standard input.
    Unblocked by: the end of the parent, or a shutdown that it requests.
    """
    patience = _ORPHANED_S
    while os.read(sys.stdin.fileno(), 1024):
        patience = _PATIENCE_S
    _signal_all(server, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(patience)
    _signal_all(server, signal.SIGKILL)


def _end_with_guard() -> None:
    """Make the kernel kill the server if this process is killed (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _signal_all(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)  # the group includes the workers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
