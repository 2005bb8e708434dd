"""A context in which the user's code can neither end this process nor change its state."""

from __future__ import annotations

import concurrent.futures.thread
import importlib
import os
import random
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

IMPORT_S = 60.0
"""Time limit in seconds for importing a user module, unless $SCALERL_IMPORT_S is a positive number."""

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD") if hasattr(signal, name)
)
"""Signals whose handlers a run relies on."""


class Ended(BaseException):
    """The user's code called os._exit. Not an Exception, so that the user's `except Exception` does not catch it."""


class TimeLimit(BaseException):
    """The user's code exceeded its time limit."""


def import_limit_s() -> float:
    """Return the time limit in seconds for an import of the user's code."""
    try:
        given = float(os.environ.get("SCALERL_IMPORT_S", ""))
    except ValueError:
        return IMPORT_S
    return given if 0 < given < float("inf") else IMPORT_S


@contextmanager
def boundary(limit_s: float | None = None) -> Iterator[None]:
    """Keep the user's code inside the context from changing the state of this process.

    At the end, the working directory, the standard streams, signal handlers, the recursion limit, and torch's default
    type, device, gradient mode and number of threads are restored. Inside, `random`, numpy and torch use separate
    random streams, which continue from call to call; the run's streams do not change. Standard output is redirected to
    standard error. os._exit raises `Ended`. New threads are daemons and do not outlive the run. A boundary inside
    another one has no effect, and its time limit is ignored.

    Args:
        limit_s: Seconds until `TimeLimit` is raised; None: no limit. It only works in the main thread, and does not
            interrupt code that never returns to the interpreter.
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
    except FileNotFoundError:  # the working directory was deleted
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
    sys.stdout = sys.stderr  # keeps the output of --json valid
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        sys.setrecursionlimit(limit)


@contextmanager
def _exits() -> Iterator[None]:
    """Make os._exit raise `Ended` in this thread. It still ends a forked child."""
    ordinary, pid, thread = os._exit, os.getpid(), threading.get_ident()

    def refuse(status: int) -> None:
        # a signal handler of scalerl may call os._exit
        internal = sys._getframe(1).f_code.co_filename.startswith(NOT_USER_CODE[0])
        if internal or (os.getpid(), threading.get_ident()) != (pid, thread) or _inside.ident is None:
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
    """Make the threads that this thread starts daemons, because Python waits for other threads at exit."""
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
        for worker in set(queues) - before:  # Python also waits for the threads of a ThreadPoolExecutor
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


_user_states: dict[str, Any] = {}
"""States of the user's random streams between calls."""


@contextmanager
def _random_streams() -> Iterator[None]:
    """Give the user's code separate random streams that start in the state of the run's streams."""
    run_states = {name: get() for name, (get, _) in _generators().items()}
    for name, (_, put) in _generators().items():
        put(_user_states[name] if name in _user_states else _begun(name, run_states[name]))
    try:
        yield
    finally:
        for name, (get, put) in _generators().items():
            _user_states[name] = get()
            # a library without a run state was loaded by the user's code just now
            put(run_states[name] if name in run_states else _begun(name, _user_states[name]))


def _begun(name: str, state: Any) -> Any:
    """Return an independent stream that starts in a given state."""
    if name != "numpy":
        return state
    stream = type(state)()
    stream.state = state.state
    return stream


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return the functions that read and set the global random state, by library."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {"random": (random.getstate, random.setstate)}
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    if numpy is not None and hasattr(numpy, "random"):  # swapping generators is ten times faster than copying the state
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
    """Raise `TimeLimit` after a number of seconds. The earlier setting of the process's timer is restored at the end.

    The limit only works in the main thread, and does not interrupt code that never returns to the interpreter.

    Args:
        seconds: Time limit in seconds.
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


def message_of(error: BaseException, most: int = 300) -> str:
    """Return the message of an exception in one line, also if its `__str__` raises."""
    try:
        text = " ".join(str(error).split())
    except Exception as second:  # the user's __str__
        text = f"(its __str__ raises {type(second).__name__})"
    return text if len(text) <= most else f"{text[:most]}..."


def raised(error: BaseException, module: str | None = None) -> str:
    """Return a description of an error in the user's code, with the last line of the user's file.

    Args:
        error: The exception.
        module: Name of the user's module, whose lines are preferred to those of libraries that it calls.

    Example: raised(error, "my_rewards") == "raised KeyError: 'level' (/home/me/my_rewards.py:7)"
    """
    place = place_of(error, module)
    if isinstance(error, Ended | TimeLimit):
        return f"{error}{place}"
    text = message_of(error)
    return f"raised {type(error).__name__}{': ' if text else ''}{text}{place}"


def place_of(error: BaseException, module: str | None = None) -> str:
    """Return " (FILE:LINE)" of the user's code in a traceback; empty if none of its lines ran."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(NOT_USER_CODE)
    ]
    own = [place for place in frames if place[0] == getattr(sys.modules.get(module or ""), "__file__", None)]
    # libraries such as wandb wrap sys.exit, so that the last line can be theirs
    outside = [place for place in frames if not place[0].startswith(sysconfig.get_path("purelib"))]
    return "" if not frames else " ({}:{})".format(*(own or outside or frames)[-1])


NOT_USER_CODE = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    contextmanager.__code__.co_filename,
    importlib.__file__,
    "<frozen",
)
"""Prefixes of file names in a traceback that are not the user's code."""
