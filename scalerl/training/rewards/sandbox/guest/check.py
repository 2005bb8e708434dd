"""The role `check`: runs the tests of a data set on a program in another sandbox.

The tests see the program's functions and classes as proxies. Calls of them, and their results as plain data, pass
through the process outside.
"""

from __future__ import annotations

import os
import sys

from scalerl.training.rewards.sandbox.guest import jail, plain
from scalerl.training.rewards.sandbox.guest.operations import OPERATIONS
from scalerl.training.rewards.sandbox.guest.program import FROM, caught, error_line, fresh_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE = "solution"
"""Module of a test file that stands for the program."""
NOT_RAISED = (UnicodeError, StopIteration, StopAsyncIteration)
"""UnicodeError needs more than a text. The others would end a loop of the tests over `map(f, ...)` too early."""
TEST_LIBRARIES = ("pytest", "_pytest", "unittest", "scalerl")
ORDERS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


class ProgramError(Exception):
    """A value that cannot be sent to the program."""


class Remote:
    """A proxy of an object in the program's process. It compares by identity, so a program's `__eq__` has no effect."""

    def __init__(self, request: Callable[..., Any], target: str | int) -> None:
        object.__setattr__(self, "_request", request)
        object.__setattr__(self, "_target", target)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the object in the program's process."""
        return self._request("call", self._target, "", positional, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._request("get", self._target, name, (), {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._request("set", self._target, name, (value,), {})


class RemoteObject(Remote):
    """A proxy for tests that use a class of the program. Operators of its objects are part of what they test.

    A comparison with plain data stays one of the tests, so that an object that equals everything is no result.
    """

    __hash__ = Remote.__hash__


def _operation(name: str) -> Callable[..., Any]:
    def operate(self: RemoteObject, *others: Any) -> Any:
        if name in ORDERS and type(others[0]) is not RemoteObject:
            return NotImplemented
        if name == "__exit__":
            others = ()
        return self._request("operate", self._target, name, others, {})

    return operate


for _name in OPERATIONS:
    setattr(RemoteObject, _name, _operation(_name))


class Program:
    """The program in the other sandbox, as tests see it."""

    def __init__(self, channel: jail.Channel) -> None:
        self._channel = channel
        self._proxy: type[Remote] = Remote
        self._errors: dict[str, type[BaseException]] = {}

    def load(self, names: list[str]) -> dict[str, Any]:
        """Return the objects that tests import: plain values, classes of exceptions, and proxies of all others."""
        descriptions = {}
        for name in names:
            try:
                kind, value, from_program = self._exchange(b"K", "describe", name, "", (), {})
            except NameError:  # raised again when the tests use it
                continue
            if name in FROM and not from_program:  # a name such as Counter, which the program has imported
                continue
            if kind == "class" and name[:1].isupper():
                self._proxy = RemoteObject
            descriptions[name] = (kind, value)
        return {name: self._shown(name, *description) for name, description in descriptions.items()}

    def _shown(self, name: str, kind: str, value: Any) -> Any:
        if kind == "value" and not isinstance(value, Remote):
            return value
        if kind == "class" and ["builtins", "BaseException"] in value:
            return self._error_class(value)
        return self._proxy(self.request, name)

    def request(
        self, what: str, target: str | int, name: str, positional: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Send a request to the program's process and return the result; raise what it raised."""
        return self._exchange(b"A", what, target, name, positional, keywords)

    def _exchange(
        self, kind: bytes, what: str, target: str | int, name: str, positional: tuple[Any, ...], keywords: Any
    ) -> Any:
        self._channel.send(kind, plain.dumps([what, target, name, positional, keywords], _number))
        kind, payload = self._channel.receive()
        if kind == b"V":
            value, after = plain.loads(payload, lambda number: self._proxy(self.request, number))
            if after is not None:
                _update(positional, after[0])
                _update(keywords, after[1])
            return value
        _, text, ancestors = plain.loads(payload)
        error_class = self._error_class(ancestors)
        error = error_class.__new__(error_class, text)  # not __init__, which may need other arguments
        error.args = (text,)
        raise error

    def _error_class(self, ancestors: list[list[str]]) -> type[BaseException]:
        """Return the exception of a class's module and name and those of its ancestors.

        It is one of the libraries that the tests have loaded, or else a class of the tests that is derived from such.
        """
        module, name = ancestors[0]
        if (error_class := _loaded(module, name)) is not None:
            return error_class
        if module == "builtins" and name in ("BaseException", "KeyboardInterrupt", "GeneratorExit"):
            return ProgramError
        key = f"{module}.{name}"
        if key not in self._errors:
            parent = self._error_class(ancestors[1:])
            library = next((base for ancestor in ancestors if (base := _loaded(*ancestor))), Exception)
            bases = (parent,) if issubclass(parent, library) else (parent, library)
            self._errors[key] = type(name, bases, {"__init__": Exception.__init__})
        return self._errors[key]


def _loaded(module: str, name: str) -> type[BaseException] | None:
    """Return an exception that tests may expect; not one with which a library of tests skips or ends them."""
    error_class = getattr(sys.modules.get(module), name, None)
    if (
        not isinstance(error_class, type)
        or not issubclass(error_class, Exception | SystemExit)
        or issubclass(error_class, NOT_RAISED)
    ):
        return None
    return error_class if module.partition(".")[0] not in TEST_LIBRARIES else None


def _update(before: Any, after: Any) -> None:
    """Change the lists, sets and dicts of an argument as the program did, like a call in one process."""
    if type(before) is not type(after):
        return
    if isinstance(before, tuple):
        for old, new in zip(before, after):  # noqa: B905
            _update(old, new)
    elif isinstance(before, list):
        for number, (old, new) in enumerate(zip(before, after)):  # noqa: B905
            _update(old, new)
            after[number] = old if old == new else new
        before[:] = after
    elif isinstance(before, dict):
        for name, new in after.items():
            _update(before.get(name), new)
            after[name] = before[name] if before.get(name) == new else new
        before.clear()
        before.update(after)
    elif isinstance(before, set):
        before.clear()
        before.update(after)


def check(
    channel: jail.Channel, limits: jail.Limits, setup: str, tests: str, names: list[str], entry: str, runner: str
) -> None:
    """Run the tests; the last frame is `P`, or `F` with the failure.

    Args:
        channel: Channel to the process outside, which passes calls to the program's process and results back.
        limits: Limits, as for a program.
        setup: Code that runs before the tests; its definitions of `names` are replaced.
        tests: Code whose errors are failures.
        names: Names that the tests use from the program.
        entry: Name of a function; if not empty, `check(entry)` is called at the end.
        runner: What then runs the test functions: functions or pytest; empty: nothing.
    """
    jail.limit(limits, limits.program_s)
    jail.load_filter(limits)

    def run() -> None:
        before = compile(setup, "setup.py", "exec", dont_inherit=True)
        code = compile(tests, "tests.py", "exec", dont_inherit=True)
        module = fresh_module("tests", before, code)
        program = Program(channel).load(names)
        solution = type(sys)(MODULE)
        solution.__dict__.update(program)
        sys.modules[MODULE] = solution
        exec(before, module.__dict__)
        module.__dict__.update(program)
        if runner:
            from scalerl.training.rewards.sandbox.guest import cases

            cases.run(module, lambda: exec(code, module.__dict__), runner)
        else:
            exec(code, module.__dict__)
        if entry:
            module.__dict__["check"](program.get(entry))

    if (error := caught(run)) is not None:
        channel.send(b"F", plain.dumps(_failure_line(error, tests)))
        os._exit(0)
    channel.send(b"P", b"")


def _number(value: Any) -> int:
    """Return the number of an object that is kept in the program's process."""
    if isinstance(value, Remote) and isinstance(value._target, int):
        return value._target
    raise ProgramError(f"the tests pass a {type(value).__name__} to the program; allowed: plain data")


def _failure_line(error: BaseException, tests: str) -> str:
    """Return the error and the line of the tests that raised it."""
    step, line = error.__traceback__, 0
    while step is not None:
        if step.tb_frame.f_code.co_filename == "tests.py":
            line = step.tb_lineno
        step = step.tb_next
    lines = tests.split("\n")
    text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
    return f"{error_line(error)} at {text!r}" if text else error_line(error)
