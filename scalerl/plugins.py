"""Functions of the user by import path: found at start, called with the place named where they fail."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from scalerl.config.base import ConfigError, nearest


class PluginError(RuntimeError):
    """A function of the user failed during a run; the message says where."""


def load_function(name: str, field: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current directory on the path.

    Args:
        name: as the user wrote it.
        field: dotted name of the field that holds it, for messages.

    Raises:
        ConfigError: it is not there.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise ConfigError(f"{field}: got {name!r}; allowed: package.module:function")
    try:
        module = _import_here(module_name)
    except (Exception, SystemExit) as error:  # user code: whatever the module raises is reported with its place
        if isinstance(error, ModuleNotFoundError | SyntaxError):
            reason = str(error)
        else:
            reason = f"it calls sys.exit({error})" if isinstance(error, SystemExit) else raised(error, None)
        raise ConfigError(
            f"{field}: cannot import {module_name!r} from {os.getcwd()} ({reason}); allowed: a module of the current "
            "directory or of the Python path"
        ) from None
    if not hasattr(module, function_name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{field}: {module_name} has no function {function_name!r}{nearest(function_name, names)}")
    function = getattr(module, function_name)
    if not callable(function):
        raise ConfigError(f"{field}: {name} is {describe(function)}; allowed: a function or a class")
    return function  # type: ignore[no-any-return]


loaded = cache(load_function)
"""The same, once a process: looking for the file in every call would cost, and would find another after an os.chdir."""


def _import_here(name: str) -> Any:
    """Import a module with the current directory on the path.

    A module of the same name that was imported from another directory is replaced: a process that changes its directory
    (a notebook, a test) would otherwise train with the wrong function.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    loaded = sys.modules.get(name)
    if loaded is not None and "." not in name:
        importlib.invalidate_caches()
        found = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
        if found is not None and found.origin and found.origin != getattr(loaded, "__file__", None):
            del sys.modules[name]
    return importlib.import_module(name)


def check_arguments(
    function: Callable[..., Any], name: str, field: str, given: Sequence[str], named: Mapping[str, Any]
) -> None:
    """Refuse a function that cannot be called as it will be.

    Args:
        function: of the user.
        name: of the function, for messages.
        field: of the configuration that chose it.
        given: what the arguments by position are called in the documentation.
        named: arguments by name.

    Raises:
        ConfigError: the message has the arguments that are expected.
    """
    signature = signature_of(function)
    if signature is None:
        return  # the call will show
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        takes = ", ".join((*given, *(f"{key}={value!r}" for key, value in named.items())))
        raise ConfigError(f"{field}: {name} must take ({takes}); {error}") from None


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None for a builtin that does not tell it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def call(function: Callable[..., Any], name: str, *arguments: Any, **named: Any) -> Any:
    """Call a function of the user.

    Raises:
        PluginError: it raised or exited; the message names the file and the line.
    """
    try:
        return function(*arguments, **named)
    except (Exception, SystemExit) as error:  # user code: whatever it raises is reported with its place
        raise PluginError(f"{name} {raised(error, function)}") from None


def raised(error: BaseException, function: Callable[..., Any] | None) -> str:
    """Return what user code raised, and the last line of the user's own file; lines of torch below would not help.

    Args:
        error: what was raised.
        function: that was called; None: a module that was imported.

    Example: raised(error, length) == "raised KeyError: 'level' (/home/me/my_rewards.py:7)"
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    own = [frame for frame in frames if frame.filename == getattr(module, "__file__", None)]
    frames = own or [frame for frame in frames if not frame.filename.startswith("<frozen")]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{place}"


def describe(value: Any) -> str:
    """Return what a value is, in words, for messages."""
    shape = getattr(value, "shape", None)
    if shape is None:
        text = repr(value)
        return text if len(text) <= 200 else f"{text[:200]}..."
    facts = [str(getattr(value, "dtype", ""))]
    if hasattr(value, "isfinite") and int((~value.isfinite()).sum()):
        facts.append(f"{int((~value.isfinite()).sum())} entries not finite")
    return f"a {type(value).__name__} ({', '.join(facts)}) of shape {tuple(shape)}"
