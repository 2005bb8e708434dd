"""The errors of this package, each with the exit code of the command that it ends, and helpers for their messages.

    ScalerlError
      UserError         exit 2   the user can correct it: ConfigError, CurveError, and data that cannot be read
      RunError          exit 1   a run or a command cannot go on: RunFailed, RewardError, PluginError, ...
      ProcessFailure    exit 1   a process ended or did not answer: ProcessDied with EngineDied, WorkerDied, ...

The command line prints each as one message without a traceback, in one place (cli/exits.py). Other exceptions are bugs,
or steer the flow within one module.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from scalerl.core.child_signals import is_interruption

T = TypeVar("T")


class ScalerlError(Exception):
    """The base of all errors that this package reports."""

    exit_code: ClassVar[int] = 1
    """Exit code of a command that the error ends."""


class UserError(ScalerlError, ValueError):
    """An error that the user can correct; its message gives what was got, what is allowed and what to do."""

    exit_code = 2


class RunError(ScalerlError, RuntimeError):
    """A run or a command cannot go on; the message gives the reason."""


class ProcessFailure(ScalerlError, RuntimeError):
    """A process ended, failed or did not answer; the message says which."""


class ConfigError(UserError):
    """An error in the configuration, an option or an input file."""


class RunFailed(RunError):
    """A run ended early; the message gives the reason and how to continue the run."""


def short(value: Any, most: int = 80) -> str:
    """Return the repr of a value; a long one is cut and its length is added."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]!r}... ({len(value)} characters)"
    try:
        shown = repr(value)
    except Exception:  # too deep, an integer of over 4,300 digits, or an object of user code, which may raise anything
        return f"a {type(value).__name__}"
    return shown if len(shown) <= most else f"{shown[:most]}... ({len(shown)} characters)"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean X?)' for the closest allowed name, or an empty string."""
    close = difflib.get_close_matches(name[:200], list(allowed), n=1, cutoff=0.5)  # it takes quadratic time
    return f" (did you mean {close[0]!r}?)" if close else ""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory could not be allocated: of Python, C++, torch on CPU or on a GPU."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, (RuntimeError, OSError, ImportError)) and any(phrase in text for phrase in NO_MEMORY))
    )


NO_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "not enough memory", "out of memory"),
    *("failed to map segment", "can't start new thread"),
)
"""Parts of messages about memory that could not be allocated."""


def outcome(action: Callable[[], T], future: Future[T] | None = None) -> Future[T]:
    """Run an action and return a finished future with its result or its exception.

    For threads that pass an exception on, and for loops that one failure must not end.

    Args:
        action: The action. An interruption of this process is not caught.
        future: The future to finish; None: a new one.
    """
    future = future or Future()
    try:
        future.set_result(action())
    except BaseException as error:  # the caller reads it from the future
        if is_interruption(error):
            raise
        future.set_exception(error)
    return future


@contextmanager
def raising(kind: type[Exception], text: Callable[[Exception], str]) -> Iterator[None]:
    """Raise `kind(text(error))` in place of an exception of a library that reads data from elsewhere.

    Such parsers raise any exception for a damaged file, for example struct.error. A UserError is not converted.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a parser may raise anything
        if lacks_memory(error):  # which is no fault of the data
            raise
        raise kind(text(error)) from None
