"""Import and calls of the user's functions, with errors that name the file and the line."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from scalerl.boundary import TimeLimit, boundary, import_limit_s, message_of, place_of, raised
from scalerl.core.errors import ConfigError, nearest
from scalerl.core.signals import unprotect_children


class PluginError(RuntimeError):
    """A user function failed during a run. The message has the file and the line."""


def load_function(name: str, field: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current directory on the path, inside a boundary (boundary.py).

    Args:
        name: Import path from the configuration.
        field: Dotted name of the configuration field, for messages.

    Raises:
        ConfigError: The function does not exist, or its module raises, exits or takes longer than
            `boundary.import_limit_s()`.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{field}: got {name!r:.200}; allowed: package.module:function")
    try:
        with boundary(import_limit_s()):
            module = _import_here(module_name)
            function = getattr(module, function_name, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything
        raise ConfigError(
            f"{field}: cannot import {module_name!r} from {os.getcwd()} ({_import_problem(error)}); allowed: a module "
            "in the current directory or on the Python path that can be imported"
        ) from None
    if function is None and not hasattr(module, function_name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{field}: {module_name} has no function {function_name!r}{nearest(function_name, names)}")
    if not callable(function):
        raise ConfigError(f"{field}: {name} is {describe(function)}; allowed: a function or a class")
    return function  # type: ignore[no-any-return]


def _import_problem(error: BaseException) -> str:
    """Return the reason why the import of a module failed."""
    if isinstance(error, ModuleNotFoundError | SyntaxError):
        return f"{message_of(error)}{place_of(error)}"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error}){place_of(error)}"
    if isinstance(error, TimeLimit):
        return f"the import {raised(error)}; SCALERL_IMPORT_S=N allows more"
    return raised(error)


loaded = cache(load_function)
"""`load_function`, cached because a new search is slow and could find another file after an os.chdir."""


def _import_here(name: str) -> Any:
    """Import a module; one in the current directory is preferred.

    If it is there, the directory goes to the end of the path: its other files can be imported, but cannot replace
    modules of Python or of packages. A module of the same name that was imported from another directory is replaced.
    Otherwise, a process that changes its directory (a notebook, a test) would train with the wrong function.
    """
    top, here = name.partition(".")[0], os.getcwd()
    importlib.invalidate_caches()
    found = importlib.machinery.PathFinder.find_spec(top, [here])
    if found is None:
        return importlib.import_module(name)
    unprotect_children()
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)
    held = sys.modules.get(top)
    if found.loader and found.origin and (held is None or (top == name and found.origin != held.__file__)):
        sys.modules[top] = module = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(module)
        except BaseException:  # as in an import statement
            del sys.modules[top]
            raise
    return importlib.import_module(name)


def check_arguments(
    function: Callable[..., Any], name: str, field: str, given: Sequence[str], named: Mapping[str, Any]
) -> None:
    """Check that a function accepts the arguments of its future calls.

    Args:
        function: User function.
        name: Name of the function, for messages.
        field: Configuration field of the function, for messages.
        given: Documented names of the positional arguments.
        named: Keyword arguments.

    Raises:
        ConfigError: The function does not accept them; the message has the expected arguments.
    """
    signature = signature_of(function)
    if signature is None:
        return  # a wrong signature then fails at the first call
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        takes = ", ".join((*given, *(f"{key}={value!r}" for key, value in named.items())))
        raise ConfigError(f"{field}: {name} must take ({takes}); {error}") from None


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None for a builtin without one."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def call(
    function: Callable[..., Any], name: str, /, *arguments: Any, limit_s: float | None = None, **named: Any
) -> Any:
    """Call a user function inside a boundary (boundary.py) and return its result.

    Args:
        function: User function.
        name: Name of the function, `module:function`, for messages.
        arguments: Positional arguments.
        limit_s: Time limit in seconds; None: no limit.
        named: Keyword arguments.

    Raises:
        PluginError: The function raised, exited or took too long; the message has the file and the line.
    """
    try:
        with boundary(limit_s):
            return function(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything
        raise PluginError(f"{name} {raised(error, name.partition(':')[0])}") from None


def number(value: Any) -> float | None:
    """Return a finite number from user code as a float; None for anything else.

    Numbers of Python, numpy and torch and bools are accepted. Text, NaN, infinities, complex numbers and arrays with
    dimensions are not.
    """
    if isinstance(value, str | bytes) or getattr(value, "shape", ()) != ():
        return None
    try:
        found = float(value)
    except Exception:  # the user's __float__ may raise anything; OverflowError for 10**400
        return None
    return found if abs(found) < float("inf") else None


def describe(value: Any) -> str:
    """Return a description of a value for messages, of at most about 200 characters."""
    shape = getattr(value, "shape", None)
    if shape is None or not isinstance(shape, tuple):
        try:
            text = repr(value)
        except Exception as error:  # the user's __repr__; ValueError for integers over 4,300 digits
            return f"a {type(value).__name__} (its repr raises {type(error).__name__})"
        return text if len(text) <= 200 else f"{text[:200]}..."
    facts = [str(getattr(value, "dtype", ""))]
    if hasattr(value, "isfinite") and int((~value.isfinite()).sum()):
        facts.append(f"{int((~value.isfinite()).sum())} entries not finite")
    return f"a {type(value).__name__} ({', '.join(facts)}) of shape {tuple(shape)}"
