"""Runs code of the user so that it can neither end this process nor move what the run stands on."""

from __future__ import annotations

import concurrent.futures.thread
import importlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

IMPORT_S = 60.0
"""Seconds that a module of the user may take to be imported, where $SCALERL_IMPORT_S is no positive number."""

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD") if hasattr(signal, name)
)
"""Signals whose handlers a run relies on."""


class Ended(BaseException):
    """Code of the user called os._exit; not an Exception, so that `except Exception` of the user does not hide it."""


class TimeLimit(BaseException):
    """Code of the user took longer than it may."""


def import_limit_s() -> float:
    """Return the seconds that an import of the user's code may take."""
    try:
        given = float(os.environ.get("SCALERL_IMPORT_S", ""))
    except ValueError:
        return IMPORT_S
    return given if 0 < given < float("inf") else IMPORT_S


@contextmanager
def boundary(limit_s: float | None = None) -> Iterator[None]:
    """Keep what follows, code of the user, from changing the state of this process.

    Restored afterwards: the working directory, the standard streams, signal handlers, the recursion limit, torch's
    default type, device, gradient mode and number of threads. The random streams of `random`, numpy and torch are
    the user's own inside: they go on from call to call, and the run's do not move. What is printed goes to standard
    error. os._exit raises `Ended`, and threads that are started are daemons, which do not outlive the run. A boundary
    inside another one adds nothing, its limit included.

    Args:
        limit_s: seconds until `TimeLimit` is raised; None: no limit. It is kept in the main thread only, and code that
            never returns to the interpreter is not interrupted.
    """
    if _inside.ident == threading.get_ident():
        yield
        return
    with ExitStack() as stack:
        _inside.ident = threading.get_ident()
        stack.callback(setattr, _inside, "ident", None)
        for part in (_directory, _streams, _exits, _threads, _handlers, _random_streams, _torch_settings):
            stack.enter_context(part())
        if limit_s is not None:
            stack.enter_context(time_limit(limit_s))
        yield


class _Inside(threading.local):
    ident: int | None = None


_inside = _Inside()


@contextmanager
def _directory() -> Iterator[None]:
    try:
        before = os.getcwd()
    except FileNotFoundError:  # the directory was deleted under the process
        yield
        return
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _streams() -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    limit = sys.getrecursionlimit()
    sys.stdout = sys.stderr  # what a verb prints for programs (--json) stays whole
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        sys.setrecursionlimit(limit)


@contextmanager
def _exits() -> Iterator[None]:
    """Let os._exit of this thread raise; a child that the code forks still ends by it."""
    ordinary, pid, thread = os._exit, os.getpid(), threading.get_ident()

    def refuse(status: int) -> None:
        ours = sys._getframe(1).f_code.co_filename.startswith(NOT_THEIRS[0])  # a handler of a signal that came now
        if ours or (os.getpid(), threading.get_ident()) != (pid, thread) or _inside.ident is None:
            ordinary(status)
        raise Ended(f"called os._exit({status})")

    modules: list[Any] = [os, *(module for name in ("posix", "nt") if (module := sys.modules.get(name)))]
    for module in modules:
        module._exit = refuse
    try:
        yield
    finally:
        for module in modules:
            module._exit = ordinary


@contextmanager
def _threads() -> Iterator[None]:
    """Make daemons of the threads that this thread starts; Python waits for all others when the process ends."""
    ordinary, thread = threading.Thread.start, threading.get_ident()

    def start(self: threading.Thread) -> None:
        if threading.get_ident() == thread:
            self._daemonic = True  # type: ignore[attr-defined]
        ordinary(self)

    queues: Any = concurrent.futures.thread._threads_queues
    before = set(queues)
    threading.Thread.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = ordinary  # type: ignore[method-assign]
        for worker in set(queues) - before:  # of a ThreadPoolExecutor, which Python waits for too
            queues.pop(worker, None)


@contextmanager
def _handlers() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


_theirs: dict[str, Any] = {}
"""States of the user's random streams, between calls."""


@contextmanager
def _random_streams() -> Iterator[None]:
    """Give the user's code random streams of its own, of those libraries that are loaded; they begin where ours are."""
    ours = {name: get() for name, (get, _) in _generators().items()}
    for name, (_, put) in _generators().items():
        put(_theirs[name] if name in _theirs else _begun(name, ours[name]))
    try:
        yield
    finally:
        for name, (get, put) in _generators().items():
            _theirs[name] = get()
            put(ours[name] if name in ours else _begun(name, _theirs[name]))  # the second: it was loaded just now


def _begun(name: str, state: Any) -> Any:
    """Return a stream that begins at a state, and goes on without it."""
    if name != "numpy":
        return state
    stream = type(state)()
    stream.state = state.state
    return stream


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return, by library, how its global random state is read and set."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {"random": (random.getstate, random.setstate)}
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    if numpy is not None and hasattr(numpy, "random"):  # swapped: to copy its state takes ten times as long
        found["numpy"] = (numpy.random.get_bit_generator, numpy.random.set_bit_generator)
    if torch is not None and hasattr(torch, "set_rng_state"):
        found["torch"] = (torch.get_rng_state, torch.set_rng_state)
    return found


@contextmanager
def _torch_settings() -> Iterator[None]:
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "set_default_device"):
        yield
        return
    dtype, gradients, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    device = torch.get_default_device()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_device() != device:
            torch.set_default_device(device)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` after some seconds, by the timer of this process, whose earlier setting is kept.

    Args:
        seconds: limit; kept in the main thread only, and not in code that never returns to the interpreter.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise TimeLimit(f"took longer than {seconds:g} s")

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, end)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)


def said(error: BaseException, most: int = 300) -> str:
    """Return what an exception says, in one line; an exception of the user's may fail at that too."""
    try:
        text = " ".join(str(error).split())
    except Exception as second:  # the user's __str__
        text = f"(its text cannot be made: {type(second).__name__})"
    return text if len(text) <= most else f"{text[:most]}..."


def raised(error: BaseException, module: str | None = None) -> str:
    """Return what code of the user did instead of returning, and the last line of the user's own file.

    Args:
        error: what was raised.
        module: name of the user's module. Lines of a library below it would not help, and lines of scalerl neither.

    Example: raised(error, "my_rewards") == "raised KeyError: 'level' (/home/me/my_rewards.py:7)"
    """
    place = place_of(error, module)
    if isinstance(error, Ended | TimeLimit):
        return f"{error}{place}"
    text = said(error)
    return f"raised {type(error).__name__}{': ' if text else ''}{text}{place}"


def place_of(error: BaseException, module: str | None = None) -> str:
    """Return " (FILE:LINE)" of the user's code in a traceback; empty where none of its lines ran."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(NOT_THEIRS)
    ]
    own = [place for place in frames if place[0] == getattr(sys.modules.get(module or ""), "__file__", None)]
    return "" if not frames else " ({}:{})".format(*(own or frames)[-1])


NOT_THEIRS = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    contextmanager.__code__.co_filename,
    importlib.__file__,
    "<frozen",
)
"""Files whose lines are in a traceback through a boundary, and are not the user's."""
