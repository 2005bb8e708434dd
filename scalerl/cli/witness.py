"""Runs a command with the user's code in a child process, so that exit code 0 means a finished command.

`boundary.py` stops `sys.exit` and `os._exit`, but a C library can still end the process with `exit(0)`, and only a
parent process can change the exit code that the shell sees. Commands without user code run in one process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli.exits import FAILED, complain, is_command, watch_signals
from scalerl.core.signals import STOPPING, end_with

if TYPE_CHECKING:
    from scalerl.config.trust import Code


ONCE_S = 0.5
"""Seconds within which equal signals count once: a job scheduler may signal both processes, and the parent passes its
signal on."""


def witnessed(code: Sequence[Code], action: Callable[[], int], run: Path | None = None) -> int:
    """Run an action in a child process if it runs user code, and return its exit code.

    The child reports that the action has returned or raised. If the child ends without a report, one line is printed
    on standard error, and status.json of the run gets the state `stopped`. If this process is killed, the child is
    killed too.

    Args:
        code: Code of the configuration; if there is none, the action runs in this process.
        action: Function that returns an exit code.
        run: Directory of the run that the action trains, if it trains one.
    """
    if not code or not is_command():
        return action()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise both processes would write the buffered text
    source, sink = os.pipe()
    relay = _Relay()
    parent, child = os.getpid(), os.fork()
    if child:
        os.close(sink)
        relay.pass_on_to(child)
        return _watch(child, source, code, run)
    relay.restore()
    os.close(source)
    os.setpgid(0, 0)  # the terminal's Ctrl-C reaches only the parent, which passes it on
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # allows a process in the background to write to the terminal
    end_with(parent)
    watch_signals(ONCE_S)  # the fork has no threads
    try:
        result = action()
    except SystemExit:
        raise
    except BaseException:
        os.write(sink, b"raised")
        raise
    os.write(sink, b"done")
    return result


class _Relay:
    """Passes stop signals of this process on to a child. Those that arrive before the child exists wait for it."""

    def __init__(self) -> None:
        self._child, self._early = 0, list[int]()
        signal.set_wakeup_fd(-1)  # the child acts on a second signal
        caught = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._pass_on) for number in caught}

    def pass_on_to(self, child: int) -> None:
        with suppress(OSError):  # the child does the same; whoever is second finds it done
            os.setpgid(child, child)
        self._child = child
        for number in self._early:
            self._pass_on(number, None)
        signal.signal(signal.SIGTSTP, self._suspend)

    def restore(self) -> None:
        """Restore the handlers from before, in the child."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: Any) -> None:
        if not self._child:
            self._early.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _suspend(self, number: int, frame: Any) -> None:
        os.killpg(self._child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(self._child, signal.SIGCONT)


def _watch(child: int, source: int, code: Sequence[Code], run: Path | None) -> int:
    """Wait for the end of the child; return its exit code, or an error if it ended without a report."""
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if os.read(source, 1):
        return ended if ended >= 0 else 128 - ended
    how = f"with exit code {ended}" if ended >= 0 else f"by {signal.Signals(-ended).name}"
    named = "; ".join(map(str, code[:3])) + (f"; and {len(code) - 3} more" if len(code) > 3 else "")
    message = f"the process was ended {how} before the command had finished. It ran code of the configuration: {named}"
    if run is not None and (run / "config.toml").exists():
        from scalerl.training.status import mark_stopped

        mark_stopped(run, child, message)
        message += f". All saved results are kept; continue with: scalerl resume {run}"
    complain(message)
    return FAILED if ended == 0 else ended if ended > 0 else 128 - ended
