"""Exit codes, signals, and one-line messages for errors that a user can correct.

Exit codes: 0 finished, 1 failed, 2 user error, 128 + n stopped by signal n (129 SIGHUP, 130 SIGINT, 143 SIGTERM). If a
signal arrives while a run writes its results, the run finishes with 0.
"""

from __future__ import annotations

import errno
import io
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from scalerl.cli.terminal import wrapped
from scalerl.core.printable import indented
from scalerl.core.signals import STOPPING

USER_ERROR, FAILED = 2, 1
SHOW_CURSOR = "\x1b[?25h"
"""Shows the cursor again after a live display."""
LONGEST = 1000
"""Length in characters above which the middle of a message is left out."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk; they may come without a path."""

_watching = _reported = False
_current: StopFlag | None = None
"""The flag that gets signals now."""
_kept = ""
"""What the message of a stopped command says about results."""


def keeps(text: str) -> None:
    """Set what is kept if a signal ends this command; empty: nothing is said."""
    global _kept
    _kept = text


class Stopped(KeyboardInterrupt):
    """A signal ended the command: there was nothing to save, or it was the second signal."""

    def __init__(self, number: int, when: str = "before the end") -> None:
        """Store the signal and the time of its arrival for the message."""
        super().__init__(number)
        self.number, self.when = number, when


class StopFlag:
    """Turns the first signal into a request to stop; the second signal ends the command.

    Before the flag is first read there is nothing to save, and a signal raises Stopped. This is the case while modules
    are imported, a model is loaded or a warm start is trained. Outside the main thread, which gets the signals, a flag
    is never set.
    """

    def __init__(self) -> None:
        """Catch SIGINT, SIGTERM and SIGHUP, except those that the process was started to ignore, as with `nohup`."""
        self.signal, self.asked, self.acknowledged = 0, False, False
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
        self.asked = True
        return bool(self.signal)

    @property
    def acknowledgment(self) -> str:
        """What the first signal leads to, in words."""
        then = "after this step, with a checkpoint " if self.asked else ""
        return f"stopping {then}(interrupt again to stop immediately)"

    def _note(self, number: int, frame: Any) -> None:
        again, self.signal = bool(self.signal), self.signal or number
        if again and _watching:
            return  # the thread that runs `_watch` ends the process
        if again or not self.asked:
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
    """Acknowledge the first signal, and end the process at the second one.

    Consumes: the numbers of signals. Produces: lines on standard error. Waits for: a signal. Unblocked by: a signal.
    """
    seen = 0
    while True:
        number = os.read(source, 1)[0]
        seen += number in STOPPING
        if seen > 1:
            shown = SHOW_CURSOR if os.isatty(2) else ""
            _write(f"{shown}scalerl: {_stopped(number, 'at once')}\n")
            os._exit(128 + number)
        if seen and _current is not None and not _current.acknowledged:
            # a command that ends at the next instruction of Python has nothing to acknowledge
            if _current.asked or not (select.select([source], [], [], SOON_S)[0] or _reported):
                _write(f"\n{_current.acknowledgment}\n")
            _current.acknowledged = True


SOON_S = 1.0
"""Seconds in which a command that has nothing to save usually ends."""


def _write(text: str) -> None:
    with suppress(OSError):  # a terminal that hung up
        os.write(2, text.encode())


class _Output(io.FileIO):
    """A standard stream whose reader may end before the command, such as `head` or a closed terminal."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


def escape_unknown(stream: Any) -> None:
    """Let a text stream escape the characters that its encoding lacks; others, such as those of notebooks, stay."""
    if hasattr(stream, "reconfigure") and _errors_of(stream) != stream.errors:
        with suppress(OSError):  # its descriptor was replaced
            stream.reconfigure(errors=_errors_of(stream))


def _errors_of(stream: Any) -> str:
    """Return the error handler of a stream, but not one that fails.

    In the C locale, Python's own choice is surrogateescape, which fails for other characters, such as ±.
    """
    return "backslashreplace" if stream.errors in ("strict", "surrogateescape") else str(stream.errors)


def prepare_streams(*, outlived: bool) -> None:
    """Make the standard streams usable: those that the caller closed, and characters that the encoding lacks.

    Args:
        outlived: Whether the command goes on without output when its reader ends. Other commands then end.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed, as with `>&-`; otherwise the next file would get the number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        escape_unknown(stream)
        if outlived:
            raw = io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False))
            modes = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, _errors_of(stream), **modes))


def prepare_environment(modules: Sequence[str] = ()) -> None:
    """Set the environment variables that torch reads when it is first imported.

    Args:
        modules: Modules that the command imports.

    Raises:
        ConfigError: A module is not installed, a limit of memory is too small for torch, or the current directory was
            removed, in which no process can start.
    """
    from scalerl.core.errors import ConfigError
    from scalerl.core.machine import check_address_space
    from scalerl.core.packages import TRAINING, check_installed

    check_installed(modules)
    if set(TRAINING) <= set(modules):
        check_address_space()
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current directory was removed; change to another one, and start again") from None
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes are 20 times as slow
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: decoding is about 8% faster
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def guarded(action: Callable[[], int]) -> int:
    """Run a command; report a user error or a signal as one line on standard error."""
    from scalerl.core.errors import ScalerlError, UserError, lacks_memory
    from scalerl.core.files import system_error, system_errors, trouble
    from scalerl.core.machine import memory_report, peak_bytes
    from scalerl.core.packages import missing

    signals = StopFlag()
    try:
        return action()
    except ScalerlError as error:
        complain(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        if not (advice := missing(error.name)):
            raise
        complain(advice)
        return UserError.exit_code
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as error:
        global _reported
        _reported = True
        stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
        complain(_stopped(stopped.number, stopped.when))
        return 128 + stopped.number
    except system_errors() as error:
        cause = system_error(error)
        if lacks_memory(error):
            complain(f"out of memory: {memory_report(peak_bytes())} ({str(error)[:200] or type(error).__name__})")
            return FAILED
        if cause is None or (cause.filename is None and cause.errno not in DISK):
            raise  # not about a path that the user gave
        complain(trouble(cause))
        return FAILED
    finally:
        signals.restore()


def _stopped(number: int, when: str) -> str:
    name = signal.Signals(number).name
    return f"stopped {when} by {name}{_kept and f'; {_kept}'}"


def complain(text: str) -> None:
    """Print a message on standard error, wrapped on a terminal; the middle of a very long one is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 300]} ... ({len(text) - LONGEST + 50} characters left out) ... {text[-250:]}"
    text = f"scalerl: {indented(text)}"
    print(wrapped(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text, file=sys.stderr)
