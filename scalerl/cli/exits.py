"""Exit codes and messages: the one place where errors and signals end a command, and the streams that it writes to.

Exit codes: 0 finished, 1 failed, 2 user error, 128 + n stopped by signal n (129 SIGHUP, 130 SIGINT, 143 SIGTERM). If a
signal arrives while a run writes its results, the run finishes with 0.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from scalerl.cli.terminal import wrapped
from scalerl.core.errors import ScalerlError, UserError, lacks_memory
from scalerl.core.files import DISK, system_error, system_errors, trouble
from scalerl.core.printable import error_handler, escape_unknown, indented
from scalerl.core.stop_signals import StopFlag, stop_message

FAILED = 1
"""Exit code of a command that could not do a part of its work."""
PRINTED_CHARACTERS = 1000
"""Length in characters above which the middle of a message is left out."""


class _Output(io.FileIO):
    """A standard stream whose reader may end before the command, such as `head` or a closed terminal."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


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
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, error_handler(stream), **modes))


def guarded(action: Callable[[], int]) -> int:
    """Run a command; report an error of scalerl, a lack of memory or disk, or a signal as one message."""
    signals = StopFlag()
    try:
        code = action()
        sys.stdout.flush()  # the interpreter would print a traceback at its end
        return code
    except ScalerlError as error:
        complain(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        from scalerl.core.packages import install_advice

        if not (advice := install_advice(error.name)):
            raise
        complain(advice)
        return UserError.exit_code
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        _drop_output()
        return FAILED
    except KeyboardInterrupt as error:
        message, code = stop_message(error)
        complain(message)
        return code
    except system_errors() as error:
        cause = system_error(error)
        if lacks_memory(error):
            from scalerl.core.machine import memory_report, peak_bytes

            complain(f"out of memory: {memory_report(peak_bytes())} ({str(error)[:200] or type(error).__name__})")
            return FAILED
        if cause is None or (cause.filename is None and cause.errno not in DISK):
            raise  # not about a path that the user gave
        complain(trouble(cause))
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter would try it again at its end
            _drop_output()
        return FAILED
    finally:
        signals.restore()


def _drop_output() -> None:
    """Drop what has not been written, and what follows: standard output cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Print a message on standard error, wrapped on a terminal; the middle of a very long one is left out."""
    if (over := len(text) - PRINTED_CHARACTERS) > 0:
        text = f"{text[: PRINTED_CHARACTERS - 300]} ... ({over + 50} characters left out) ... {text[-250:]}"
    text = f"scalerl: {indented(text)}"
    print(wrapped(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text, file=sys.stderr)
