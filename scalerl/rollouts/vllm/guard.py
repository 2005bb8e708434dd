"""Runs a server and ends it when standard input ends: whoever started it has closed it, or is gone.

Usage: guard.py LOG COMMAND...  A script of the standard library only, so that it starts at once. A line on standard
input before its end gives the server time to end by itself.
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
"""Seconds between asking the server to end and killing it, where whoever started it has asked for that."""
_ORPHANED_S = 0.5
"""The same where whoever started it is gone: nobody waits for the server, and its GPU may be wanted."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(log: str, command: list[str]) -> int:
    """Run a command with its output in a file; return its exit code."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # a terminal sends them to all; only our parent acts on them
        signal.signal(number, lambda *_: None)  # SIG_IGN would be inherited by the server, which could not be ended
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
    _signal_all(server, signal.SIGKILL)  # workers that outlived it
    return code if code >= 0 else 128 - code  # as shells tell a signal


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    """Consumes nothing; produces nothing; waits for the end of standard input; unblocked by it, and ends the server."""
    patience = _ORPHANED_S
    while os.read(sys.stdin.fileno(), 1024):
        patience = _PATIENCE_S
    _signal_all(server, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(patience)
    _signal_all(server, signal.SIGKILL)


def _end_with_guard() -> None:
    """Let the kernel kill the server where this process is killed; on Linux alone."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _signal_all(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)  # its workers are in its group


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
