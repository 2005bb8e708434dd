"""Signals that end a command: the first asks it to stop and is acknowledged, the second ends it at once."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from scalerl.core.child_signals import STOPPING, Stopped

SHOW_CURSOR = "\x1b[?25h"
"""Shows the cursor again after a live display."""

_watching = _reported = False
_current: StopFlag | None = None
"""The flag that gets signals now."""
_saved_note = ""
"""What the message of a stopped command says about results."""


def set_saved_note(text: str) -> None:
    """Set what is kept if a signal ends this command; empty: nothing is said."""
    global _saved_note
    _saved_note = text


class StopFlag:
    """Turns the first signal into a request to stop; the second signal ends the command.

    Before the flag is first read there is nothing to save, and a signal raises Stopped. This is the case while modules
    are imported, a model is loaded or a warm start is trained. Outside the main thread, which gets the signals, a flag
    is never set.
    """

    def __init__(self) -> None:
        """Catch SIGINT, SIGTERM and SIGHUP, except those that the process was started to ignore, as with `nohup`."""
        self.signal, self.was_read, self.acknowledged = 0, False, False
        caught = STOPPING if threading.current_thread() is threading.main_thread() else ()
        self._before = {n: signal.getsignal(n) for n in caught if signal.getsignal(n) != signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._note)
        global _current
        self._outer = _current
        _current = self if caught else _current

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        global _current
        _current = self._outer if _current is self else _current
        for number, handler in self._before.items():
            if handler is not None:  # a handler that was not set from Python cannot be restored from Python
                signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        self.was_read = True
        return bool(self.signal)

    @property
    def acknowledgment(self) -> str:
        """What the first signal leads to, in words."""
        then = "after this step, with a checkpoint " if self.was_read else ""
        return f"stopping {then}(interrupt again to stop immediately)"

    def _note(self, number: int, frame: Any) -> None:
        again, self.signal = bool(self.signal), self.signal or number
        if again and _watching:
            return  # the thread that runs `_watch` ends the process
        if again or not self.was_read:
            raise Stopped(number, "at once" if again else "before the end")
        if not _watching:  # otherwise that thread has said so already
            print(f"\n{self.acknowledgment}", file=sys.stderr)


def watch_signals() -> None:
    """Acknowledge the first signal and obey the second one at once, even inside a long call of a C library.

    Python runs handlers between two instructions, and a backward pass is one instruction that may take seconds.
    """
    global _watching
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(source,), daemon=True).start()
    _watching = True


def _watch(source: int) -> None:
    """Acknowledge the first signal, and end the process at the second one."""
    signals = 0
    while True:
        number = os.read(source, 1)[0]
        signals += number in STOPPING
        if signals > 1:
            shown = SHOW_CURSOR if os.isatty(2) else ""
            _write(f"{shown}scalerl: {_message(number, 'at once')}\n")
            os._exit(128 + number)
        flag = _current  # the main thread may end its command meanwhile
        if signals and flag is not None and not flag.acknowledged:
            # a command that ends at the next instruction of Python has nothing to acknowledge
            if flag.was_read or not (select.select([source], [], [], SOON_S)[0] or _reported):
                _write(f"\n{flag.acknowledgment}\n")
            flag.acknowledged = True


SOON_S = 1.0
"""Seconds in which a command that has nothing to save usually ends."""


def _write(text: str) -> None:
    with suppress(OSError):  # a terminal that hung up
        os.write(2, text.encode())


def stop_message(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return the message for a command that a signal ended, and its exit code, 128 + the number of the signal."""
    global _reported
    _reported = True
    stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
    return _message(stopped.number, stopped.when), 128 + stopped.number


def _message(number: int, when: str) -> str:
    name = signal.Signals(number).name
    return f"stopped {when} by {name}{_saved_note and f'; {_saved_note}'}"
