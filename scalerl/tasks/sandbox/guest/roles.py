"""The roles of the first process in a sandbox.

- `stdin` runs a program on one input after another, each in a separate process.
- `serve` runs a program once and then answers calls of its functions.
- `check` runs the tests of a data set. They call the program's functions through the process outside.

No sandbox contains both a program and its expected results. The results are compared outside.
"""

from __future__ import annotations

import os

from scalerl.tasks.sandbox.guest import jail, plain
from scalerl.tasks.sandbox.guest.code import caught, compiled, error_line, fresh_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main() -> None:
    """Read the request, run its role, and end the process."""
    channel = jail.Channel(os.dup(0), os.dup(1))
    jail.silence()
    request = plain.loads(channel.receive()[1])
    limits = jail.Limits(request.pop("limits"))
    role = request.pop("role")
    if role == "stdin":
        from scalerl.tasks.sandbox.guest import on_inputs

        on_inputs.run(channel, limits, request["program"])
    elif role == "serve":
        serve(channel, limits, request["program"])
    else:
        from scalerl.tasks.sandbox.guest import checking

        checking.check(channel, limits, **request)
    os._exit(0)


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
