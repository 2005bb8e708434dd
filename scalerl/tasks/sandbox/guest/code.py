"""Compilation of code in a sandbox, and modules for it with names that programs use without importing them."""

from __future__ import annotations

import builtins
import os
import sys

from scalerl.tasks.sandbox.guest import jail, plain, prelude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

RECURSION = 50_000
"""Recursion limit of a program, the same as LiveCodeBench's."""


def error_line(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def caught(function: Callable[..., object], *arguments: object) -> BaseException | None:
    """Call a function and return what it raised: code in a sandbox may raise anything."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    return None


def compiled(channel: jail.Channel, source: str) -> CodeType:
    """Return a program's compiled code. If it cannot be compiled, send the reason and end the process."""
    try:
        return compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        channel.send(b"X", plain.dumps(error_line(error)))
        os._exit(0)


def fresh_module(name: str, *codes: CodeType) -> ModuleType:
    """Return a module for code to run in, with the names that programs use without importing them."""
    module = type(sys)(name)
    sys.modules[name] = module
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # their module `site` is not loaded
    sys.setrecursionlimit(RECURSION)
    for code in codes:
        prelude.provide(code)
    return module
