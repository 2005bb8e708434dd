"""Run of a data set's tests, with proxies in place of the objects of the program under test."""

from __future__ import annotations

import builtins
import os

from scalerl.tasks.sandbox.guest import jail, plain
from scalerl.tasks.sandbox.guest.code import caught, error_line, fresh_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


NOT_RAISED = (UnicodeError, StopIteration, StopAsyncIteration)
"""UnicodeError needs more than a text. The others would end a loop of the tests over `map(f, ...)` too early."""


class ProgramError(Exception):
    """An error of the program without a matching built-in exception, or a value that cannot be sent to it."""


class Remote:
    """A proxy of an object in the program's process. It compares by identity, so a program's `__eq__` has no effect."""

    def __init__(self, ask: Callable[..., Any], target: str | int) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_target", target)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the object in the program's process."""
        return self._ask("call", self._target, "", positional, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", self._target, name, (), {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self._target, name, (value,), {})


def check(channel: jail.Channel, limits: jail.Limits, setup: str, tests: str, names: list[str], entry: str) -> None:
    """Run the tests; the last frame is `P`, or `F` with the failure.

    Args:
        channel: Channel to the process outside, which passes calls to the program's process and results back.
        limits: Limits, as for a program.
        setup: Code that runs before the tests; its definitions of `names` are replaced.
        tests: Code whose errors are failures.
        names: Names that the tests use from the program.
        entry: Name of a function; if not empty, `check(entry)` is called at the end.
    """
    jail.limit(limits, limits.program_s)
    jail.load_filter(limits)
    ask = _asking(channel)

    def run() -> None:
        before = compile(setup, "setup.py", "exec", dont_inherit=True)
        code = compile(tests, "tests.py", "exec", dont_inherit=True)
        namespace = fresh_module("tests", before, code).__dict__
        exec(before, namespace)
        namespace.update({name: Remote(ask, name) for name in names})
        exec(code, namespace)
        if entry:
            namespace["check"](namespace[entry])

    if (error := caught(run)) is not None:
        channel.send(b"F", plain.dumps(_where(error, tests)))
        os._exit(0)
    channel.send(b"P", b"")


def _asking(channel: jail.Channel) -> Callable[..., Any]:
    """Return the function that sends a request to the program's process and waits for the result."""

    def ask(what: str, target: str | int, name: str, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        channel.send(b"A", plain.dumps([what, target, name, positional, keywords], _number))
        kind, payload = channel.receive()
        if kind == b"V":
            return plain.loads(payload, lambda number: Remote(ask, number))
        raised, text = plain.loads(payload)
        known = getattr(builtins, str(raised), None)
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, NOT_RAISED):
            raise known(text)
        raise ProgramError(f"{raised}: {text}")

    return ask


def _number(value: Any) -> int:
    """Return the number of an object that is kept in the program's process."""
    if type(value) is Remote and isinstance(value._target, int):
        return value._target
    raise ProgramError(f"the tests pass a {type(value).__name__} to the program; allowed: plain data")


def _where(error: BaseException, tests: str) -> str:
    """Return the error and the line of the tests that raised it."""
    step, line = error.__traceback__, 0
    while step is not None:
        if step.tb_frame.f_code.co_filename == "tests.py":
            line = step.tb_lineno
        step = step.tb_next
    lines = tests.split("\n")
    text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
    return f"{error_line(error)} at {text!r}" if text else error_line(error)
