"""Import and calls of the user's functions, with errors that name the file and the line."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cache
from typing import Any

from scalerl.core.child_signals import is_interruption, unprotect_children
from scalerl.core.errors import ConfigError, RunError, nearest, short


class PluginError(RunError):
    """A user function failed. The message has the file and the line."""

    def __init__(self, message: str, trace: str = "") -> None:
        """Store the message and the traceback; without a traceback, the function returned an unexpected value."""
        super().__init__(message)
        self.trace = trace


_importing = threading.RLock()


def load_function(name: str, field: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current directory on the path. What it prints goes to standard error.

    Args:
        name: Import path from the configuration.
        field: Dotted name of the configuration field, for messages.

    Raises:
        ConfigError: The function does not exist, or its module raises or exits.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{field}: got {name!r:.200}; allowed: package.module:function")
    try:
        # the lock: another thread of a new process would get the module half imported
        with _importing, redirect_stdout(sys.stderr):  # keeps the output of --json valid
            module = call(_import_here, module_name, module_name)
    except PluginError as error:
        raise ConfigError(
            f"{field}: cannot import {module_name!r} from {os.getcwd()} ({error}); allowed: a module in the current "
            "directory or on the Python path that can be imported"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = nearest(function_name, names)
        raise ConfigError(f"{field}: {module_name} has no function or class {function_name!r}{close}")
    return function  # type: ignore[no-any-return]


loaded = cache(load_function)
"""`load_function`, cached because a new search is slow and could find another file after an os.chdir."""


def _import_here(name: str) -> Any:
    """Import a module; one in the current directory is preferred.

    If it is there, the directory goes to the end of the path: its other files can be imported, but cannot replace
    modules of Python or of packages. A module of the same name that was imported from another directory is replaced.
    Otherwise, a process that changes its directory (a notebook, a test) would train with the wrong function.
    """
    top, directory = name.partition(".")[0], os.getcwd()
    importlib.invalidate_caches()
    spec = importlib.machinery.PathFinder.find_spec(top, [directory])
    if spec is None:
        return importlib.import_module(name)
    unprotect_children()
    if "" not in sys.path and directory not in sys.path:
        sys.path.append(directory)
    earlier = sys.modules.get(top)
    if spec.loader and spec.origin and (earlier is None or (top == name and spec.origin != earlier.__file__)):
        sys.modules[top] = module = importlib.util.module_from_spec(spec)
        with ExitStack() as failed:  # as in an import statement
            failed.callback(sys.modules.pop, top, None)
            spec.loader.exec_module(module)
            failed.pop_all()
    return importlib.import_module(name)


def check_arguments(
    function: Callable[..., Any], name: str, field: str, positional: Sequence[str], named: Mapping[str, Any]
) -> None:
    """Check that a function accepts the arguments of its future calls.

    Args:
        function: User function.
        name: Name of the function, for messages.
        field: Configuration field of the function, for messages.
        positional: Documented names of the positional arguments.
        named: Keyword arguments.

    Raises:
        ConfigError: The function does not accept them; the message has the expected arguments.
    """
    signature = signature_of(function)
    if signature is None:
        return  # a wrong signature then fails at the first call
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        takes = ", ".join((*positional, *(f"{key}={value!r}" for key, value in named.items())))
        raise ConfigError(f"{field}: {name} must take ({takes}); {error}") from None


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None for a builtin without one."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def call(function: Callable[..., Any], name: str, /, *arguments: Any, **named: Any) -> Any:
    """Call a user function and return its result.

    Raises:
        PluginError: The function raised any exception, such as SystemExit, or KeyboardInterrupt without a signal.
            Example: "my_rewards:length raised KeyError: 'level' (/home/me/my_rewards.py:7)"
    """
    try:
        return function(*arguments, **named)
    except (ConfigError, PluginError):
        raise
    except BaseException as error:  # user code may raise anything
        if is_interruption(error):
            raise
        text = " ".join(traceback.format_exception_only(error)[-1].split())
        place = _place(error, name.partition(":")[0])
        raise PluginError(f"{name} raised {text[:300]}{place}", traceback.format_exc()) from None


def _place(error: BaseException, module: str) -> str:
    """Return " (FILE:LINE)": the last line of the user's module, or else outside of libraries; empty if none ran."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [place for place in places if not place[0].startswith((__file__, importlib.__file__, "<frozen"))]
    others = (os.path.dirname(os.path.dirname(__file__)), sysconfig.get_path("purelib"))
    user_places = [place for place in places if place[0] == getattr(sys.modules.get(module), "__file__", None)]
    user_places = user_places or [place for place in places if not place[0].startswith(others)] or places
    return f" ({user_places[-1][0]}:{user_places[-1][1]})" if user_places else ""


def finite_number(value: Any) -> float | None:
    """Return a finite number from user code as a float; None for anything else.

    Numbers of Python, numpy and torch and bools are accepted. Text, NaN, infinities, complex numbers and arrays with
    dimensions are not.
    """
    try:
        if isinstance(value, str | bytes) or getattr(value, "shape", ()) != ():
            return None
        result = float(value)
    except Exception:  # OverflowError for 10**400; an object of user code may raise anything
        return None
    return result if abs(result) < float("inf") else None


def describe(value: Any) -> str:
    """Return a description of a value for messages, of at most about 200 characters."""
    try:
        shape = getattr(value, "shape", None)
        if shape is None or not isinstance(shape, tuple):
            return short(value, 200)
        facts = [str(getattr(value, "dtype", ""))]
        if hasattr(value, "isfinite") and int((~value.isfinite()).sum()):
            facts.append(f"{int((~value.isfinite()).sum())} entries not finite")
        return f"a {type(value).__name__} ({', '.join(facts)}) of shape {tuple(shape)}"
    except Exception:  # an object of user code may raise anything
        return f"a {type(value).__name__}"
