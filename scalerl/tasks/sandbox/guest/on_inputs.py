"""Run of a program on one input after another, each in a fresh process, with its output as the answer."""

from __future__ import annotations

import os
import select
import sys
import time

from scalerl.tasks.sandbox.guest import jail, plain
from scalerl.tasks.sandbox.guest.code import caught, compiled, error_line, fresh_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

SIGKILL = 9  # importing the module signal would cost 8 ms
COMPLAINT = 4096
"""Largest number of bytes read from standard error."""


def run(channel: jail.Channel, limits: jail.Limits, program: str) -> None:
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
    error = caught(exec, code, fresh_module("__main__", code).__dict__)
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
