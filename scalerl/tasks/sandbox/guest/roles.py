"""The roles of the first process in a sandbox.

- `stdin` runs a program on one input after another, each in a separate process.
- `serve` runs a program once and then answers calls of its functions.
- `check` runs the tests of a data set. They call the program's functions through the process outside.

No sandbox contains both a program and its expected results. The results are compared outside.
"""

from __future__ import annotations

import builtins
import os
import select
import sys
import time

from scalerl.tasks.sandbox.guest import jail, plain
from scalerl.tasks.sandbox.guest.program import caught, compiled, error_line, fresh_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

SIGKILL = 9  # importing the module signal would cost 8 ms
COMPLAINT = 4096
"""Largest number of bytes read from standard error."""

NOT_RAISED = (UnicodeError, StopIteration, StopAsyncIteration)
"""UnicodeError needs more than a text. The others would end a loop of the tests over `map(f, ...)` too early."""


def main() -> None:
    """Read the request, run its role, and end the process."""
    channel = jail.Channel(os.dup(0), os.dup(1))
    jail.silence()
    request = plain.loads(channel.receive()[1])
    limits = jail.Limits(request.pop("limits"))
    role = request.pop("role")
    roles: dict[str, Callable[..., None]] = {"stdin": stdin, "serve": serve, "check": check}
    roles[role](channel, limits, **request)
    os._exit(0)


# ---------------------------------------------------------------------------------------------------------- stdin


def stdin(channel: jail.Channel, limits: jail.Limits, program: str) -> None:
    """Answer each input frame with a report that includes the program's standard output."""
    import ctypes  # noqa: F401  loaded once here, not in every child

    jail.limit(limits, limits.program_s)
    code, own = compiled(channel, program), os.getpid()
    while True:
        _, data = channel.receive()
        inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            if not limits.filter:
                jail.end_with(own)
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
    error = caught(lambda: exec(code, fresh_module("__main__", code).__dict__))
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    else:
        status = _reported(error)
    status = _reported(caught(_finish)) or status
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
        left, why = self._feed(memoryview(data)), ""
        while not why and self._written.keys() - self._closed:
            wait = self._ends - time.monotonic()
            events = self._poll.poll(wait * 1000) if wait > 0 else []
            if not events:
                why = "late"
            for number, _ in events:
                if number == self._source:
                    left = self._feed(left)
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

    def _feed(self, left: memoryview) -> memoryview:
        try:
            left = left[os.write(self._source, left[: 1 << 16]) :]
        except BlockingIOError:
            return left
        except BrokenPipeError:  # the program may close its input
            left = left[len(left) :]
        if not left:
            self._close(self._source)
        return left

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
    code = compiled(channel, program)
    module = fresh_module("candidate", code)
    if (error := caught(exec, code, module.__dict__)) is not None:
        channel.send(b"X", plain.dumps(error_line(error)))
        os._exit(0)
    channel.send(b"R", plain.dumps([name for name in module.__dict__ if isinstance(name, str)]))
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def answer(kind: bytes, payload: bytes) -> None:
        value = _answer(module, kept, plain.loads(payload, kept.__getitem__))
        channel.send(b"V", plain.dumps(plain.as_json(value) if kind == b"J" else value, keep))

    while True:
        kind, payload = channel.receive()
        if (error := caught(answer, kind, payload)) is not None:  # the other side raises it or fails the test
            channel.send(b"E", plain.dumps([type(error).__name__, str(error)[:300]]))


def _answer(module: ModuleType, kept: list[Any], asked: list[Any]) -> Any:
    """Run a request: [what, target, name, positional, keywords]."""
    what, target, name, positional, keywords = asked
    owner = _find(module, target) if isinstance(target, str) else kept[target]
    if what == "call":
        return owner(*positional, **keywords)
    if what == "get":
        return getattr(owner, name)
    return setattr(owner, name, positional[0])


def _find(module: ModuleType, name: str) -> Any:
    """Return the program's object of this name: at its top level, or a method of its class Solution."""
    solution = module.__dict__.get("Solution")
    if name not in module.__dict__ and isinstance(solution, type):
        return getattr(solution(), name)
    if name not in module.__dict__:
        raise NameError(f"the program defines no {name!r}")
    return module.__dict__[name]


# ---------------------------------------------------------------------------------------------------------- check


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
