"""The roles of the first process in a sandbox.

- `stdin` runs a program on one input after another, each in a separate process.
- `serve` runs a program once and then answers calls of its functions.
- `check` (check.py) runs the tests of a data set. They call the program's functions through the process outside.

No sandbox contains both a program and its expected results. The results are compared outside.
"""

from __future__ import annotations

import os
import select
import sys
import time

from scalerl.training.rewards.sandbox.guest import jail, plain
from scalerl.training.rewards.sandbox.guest.operations import OPERATIONS
from scalerl.training.rewards.sandbox.guest.program import (
    caught,
    compile_program,
    error_line,
    fresh_module,
    with_streams,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

SIGKILL = 9  # importing the module signal would cost 8 ms
PROGRAM = "candidate"
"""Module of a program whose functions are called."""
COMPLAINT = 4096
"""Largest number of bytes read from standard error."""


def main() -> None:
    """Read the request, run its role, and end the process."""
    channel = jail.Channel(os.dup(0), os.dup(1))
    jail.silence()
    request = plain.loads(channel.receive()[1])
    limits = jail.Limits(request.pop("limits"))
    os.environ.update(limits.environment)
    role = request.pop("role")
    roles: dict[str, Callable[..., None]] = {"stdin": stdin, "serve": serve}
    if role == "check":  # loaded here, because the other roles do not need it
        from scalerl.training.rewards.sandbox.guest.check import check

        roles[role] = check
    roles[role](channel, limits, **request)
    os._exit(0)


# ---------------------------------------------------------------------------------------------------------- stdin


def stdin(channel: jail.Channel, limits: jail.Limits, program: str) -> None:
    """Answer each input frame with a report that includes the program's standard output."""
    import ctypes  # noqa: F401  loaded once here, not in every child

    jail.limit(limits, limits.program_s)
    code, parent = compile_program(channel, program), os.getpid()
    while True:
        _, data = channel.receive()
        inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            if not limits.filter:
                jail.end_with(parent)
            _run_child(limits, code, inputs[0], outputs[1], errors[1])
        for end in (inputs[0], outputs[1], errors[1]):
            os.close(end)
        channel.send(b"O", plain.dumps(Watch(child, limits, inputs[1], outputs[0], errors[0]).until_end(data)))


def _run_child(limits: jail.Limits, code: CodeType, source: int, out: int, err: int) -> None:
    for number, end in enumerate((source, out, err)):
        os.dup2(end, number)
    os.closerange(3, 64)
    jail.limit(limits, limits.test_s)
    jail.load_filter(limits)
    finish = with_streams()
    error = caught(lambda: exec(code, fresh_module("__main__", code).__dict__))
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    else:
        status = _reported(error)
    status = _reported(caught(_finish)) or _reported(caught(finish)) or status
    os._exit(status & 255)


def _reported(error: BaseException | None) -> int:
    """Write an error to standard error like the interpreter does; return the exit status."""
    if error is not None:
        os.write(2, error_line(error).encode("utf-8", "replace"))
    return int(error is not None)


def _finish() -> None:
    """Do what the interpreter does at its end."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    sys.stdout.flush()


class Watch:
    """Feeds and reads a child until it ends or reaches a limit."""

    def __init__(self, child: int, limits: jail.Limits, source: int, out: int, err: int) -> None:
        self._child, self._limits = child, limits
        self._source, self._out, self._err = source, out, err
        self._written = {out: bytearray(), err: bytearray()}
        self._closed: set[int] = set()
        self._ends, self._poll = time.monotonic() + limits.test_s, select.poll()
        for number, event in ((source, select.POLLOUT), (out, select.POLLIN), (err, select.POLLIN)):
            os.set_blocking(number, False)
            self._poll.register(number, event)

    def until_end(self, data: bytes) -> dict[str, object]:
        """Return `why` it was stopped (late, flood or empty), its exit `status`, its `output` and its `complaint`."""
        unsent, why = self._feed(memoryview(data)), ""
        while not why and self._written.keys() - self._closed:
            wait = self._ends - time.monotonic()
            events = self._poll.poll(wait * 1000) if wait > 0 else []
            if not events:
                why = "late"
            for number, _ in events:
                if number == self._source:
                    unsent = self._feed(unsent)
                else:
                    self._take(number)
            if len(self._written[self._out]) > self._limits.output:
                why = "flood"
        status = self._end(why)
        for number in {self._source, self._out, self._err} - self._closed:
            os.close(number)
        return {
            "why": why or ("late" if status is None else ""),
            "status": status,
            "output": bytes(self._written[self._out]) if not why else b"",
            "complaint": bytes(self._written[self._err][-600:]).decode("utf-8", "replace"),
        }

    def _feed(self, unsent: memoryview) -> memoryview:
        try:
            unsent = unsent[os.write(self._source, unsent[: 1 << 16]) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:  # the program may close its input
            unsent = unsent[len(unsent) :]
        if not unsent:
            self._close(self._source)
        return unsent

    def _take(self, number: int) -> None:
        part = os.read(number, 1 << 16)
        if not part:
            self._close(number)
        elif number == self._out or len(self._written[number]) < COMPLAINT:
            self._written[number] += part

    def _close(self, number: int) -> None:
        self._poll.unregister(number)
        os.close(number)
        self._closed.add(number)

    def _end(self, why: str) -> int | None:
        """Return the child's exit status, negative for a signal; None if it had to be killed."""
        pause = 0.0002
        while not why and time.monotonic() < self._ends:
            done, status = os.waitpid(self._child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        os.kill(self._child, SIGKILL)
        os.waitpid(self._child, 0)
        return None


# ---------------------------------------------------------------------------------------------------------- serve


def serve(channel: jail.Channel, limits: jail.Limits, program: str) -> None:
    """Run a program once, then answer calls of its functions. Its standard streams are /dev/null."""
    jail.limit(limits, limits.program_s)
    jail.load_filter(limits)
    code = compile_program(channel, program)
    module = fresh_module(PROGRAM, code)
    if (error := caught(exec, code, module.__dict__)) is not None:
        channel.send(b"X", plain.dumps(error_line(error)))
        os._exit(0)
    channel.send(b"R", plain.dumps([name for name in module.__dict__ if isinstance(name, str)]))
    objects: list[Any] = []
    numbers: dict[int, int] = {}

    def keep(value: Any) -> int:
        if id(value) not in numbers:  # kept objects live on, so that no other one gets their id
            numbers[id(value)] = len(objects)
            objects.append(value)
        return numbers[id(value)]

    def answer(kind: bytes, payload: bytes) -> None:
        request = plain.loads(payload, objects.__getitem__)
        if kind == b"J":
            channel.send(b"V", plain.dumps(plain.as_json(_answer(module, objects, request)), keep))
            return
        value = _answer(module, objects, request)
        # A function that returns nothing changes its arguments. Of others the tests see no change, because one that
        # empties x and returns it would pass `assert f(x) == sorted(x)`.
        after = request[3:] if value is None and (request[3] or request[4]) else None
        channel.send(b"V", plain.dumps([value, after], keep))

    while True:
        kind, payload = channel.receive()
        if (error := caught(answer, kind, payload)) is not None:  # the other side raises it or fails the test
            channel.send(b"E", plain.dumps(_error(error)))


def _error(error: BaseException) -> list[Any]:
    """Return what the other side needs of an error: its type, its text, and the names of its types' ancestors."""
    only = error.args[0] if len(error.args) == 1 else None
    text = only if isinstance(only, str) else str(error)  # the text of a KeyError is quoted
    return [type(error).__name__, text[:300], _ancestors(type(error))]


def _ancestors(kind: type) -> list[list[str]]:
    return [[str(ancestor.__module__), ancestor.__name__] for ancestor in kind.__mro__]


def _answer(module: ModuleType, objects: list[Any], request: list[Any]) -> Any:
    """Run a request: [what, target, name, positional, keywords]."""
    what, target, name, positional, keywords = request
    owner = _find(module, target) if isinstance(target, str) else objects[target]
    if what == "call":
        return owner(*positional, **keywords)
    if what == "get":
        return getattr(owner, name)
    if what == "operate":
        return OPERATIONS[name](owner, *positional)
    if what == "describe":
        return _description(owner)
    return setattr(owner, name, positional[0])


def _description(value: Any) -> list[Any]:
    """Return what tests need to know of an object: its kind, its data or a class's ancestors, and if it is its own."""
    from_program = getattr(value, "__module__", PROGRAM) == PROGRAM
    if isinstance(value, type):
        return ["class", _ancestors(value), from_program]
    return ["object", None, from_program] if callable(value) else ["value", value, from_program]


def _find(module: ModuleType, name: str) -> Any:
    """Return the program's object of this name: at its top level, or a method of its class Solution."""
    solution = module.__dict__.get("Solution")
    if name not in module.__dict__ and isinstance(solution, type):
        return getattr(solution(), name)
    if name not in module.__dict__:
        raise NameError(f"the program defines no {name!r}")
    return module.__dict__[name]
