"""One sandbox from the outside: a process group behind two pipes, with a deadline for every exchange.

Control groups (version 2) limit the memory and processes of the whole sandbox, if they are writable.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.core.errors import ProcessFailure
from scalerl.training.rewards.sandbox.guest.jail import HEADER
from scalerl.training.rewards.sandbox.guest.plain import dumps

ROOT = Path("/sys/fs/cgroup")
NEEDED = {"memory", "pids"}


def group_parent(root: Path = ROOT, group_file: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the group in which this process may create groups with limits, or None.

    Args:
        root: Mount point of the hierarchy of version 2.
        group_file: File with the group of this process.
    """
    try:
        lines = group_file.read_text().splitlines()
    except OSError:
        return None
    named = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    for group in named:
        directory = root / group.lstrip("/")
        for place in (directory, directory.parent):
            if place != root.parent and _delegates(place):
                return place
    return None


def _delegates(place: Path) -> bool:
    try:
        controllers = set((place / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False
    return controllers >= NEEDED and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK)


class ControlGroup:
    """A control group for one sandbox."""

    def __init__(self, place: Path, memory: int, processes: int) -> None:
        """Create the group.

        Args:
            place: Parent group.
            memory: Limit in bytes for all its processes, including kernel memory.
            processes: Limit of processes and threads.
        """
        self.path = place / f"scalerl-{uuid.uuid4().hex}"
        self.path.mkdir()
        for name, value in (("memory.max", memory), ("memory.swap.max", 0), ("pids.max", processes)):
            file = self.path / name
            if name != "memory.swap.max" or file.exists():
                file.write_text(str(value))

    def entering(self) -> list[str]:
        """Return the words to put before a command so that it and all its children start in the group."""
        return ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self.path)]

    def close(self) -> None:
        """Remove the group once its last process has ended."""
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.01)


FILTER_RULES = "RULES"
FIRST_PROCESS = 256 << 20
"""Bytes of memory for the first process of a sandbox, in addition to those of a program."""
GROUP_PROCESSES = 80
"""Maximum number of processes and threads of a sandbox: those of one program and of bubblewrap."""


class BoxEnded(ProcessFailure):
    """The sandboxed process ended, or sent an invalid frame."""


class BoxLate(ProcessFailure):
    """The sandbox did not answer in time."""


class BoxFlood(ProcessFailure):
    """The sandbox sent more than its limit."""


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """How a sandbox is started.

    Example: Command(words=("/usr/bin/bwrap", "--unshare-user", ...), limits={"memory": 1073741824, ...})
    """

    words: Sequence[str]
    """The command line; its last word runs guest/main.py."""
    limits: dict[str, Any]
    """Limits in the first request: `Limits` of guest/jail.py."""
    rules: bytes = b""
    """System-call filter, BPF. The word RULES is replaced by the number of the open file that contains it."""
    group: Path | None = None
    """Control group in which each sandbox gets a group; None: no groups."""
    line: str = ""
    """Description of the isolation, printed at the start of a run."""


class Box:
    """A started sandbox. It takes one request and is never reused for a second program."""

    def __init__(self, command: SandboxCommand) -> None:
        self._command = command
        memory = int(command.limits["memory"]) + FIRST_PROCESS
        self._group = ControlGroup(command.group, memory, GROUP_PROCESSES) if command.group else None
        rules = _open_pipe(command.rules)
        words = [*(self._group.entering() if self._group else []), *command.words]
        self._process = subprocess.Popen(
            [str(rules) if word == FILTER_RULES else word for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},  # so that no process inside can read the environment
            cwd="/",
            pass_fds=(rules,),
            start_new_session=True,
            bufsize=0,
        )
        os.close(rules)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._most = int(command.limits["output"]) + (1 << 16)

    def begin(self, role: str, deadline: float, **request: Any) -> None:
        """Send the request: the role of the first process (guest/roles.py) and its arguments."""
        words = {"role": role, "limits": self._command.limits, **request}
        self.send(b"Q", dumps(words), deadline)

    def send(self, kind: bytes, payload: bytes, deadline: float) -> None:
        """Send a frame.

        Raises:
            BoxEnded, BoxLate: The sandbox ended, or does not read.
        """
        data = memoryview(HEADER.pack(kind, len(payload)) + payload)
        while data:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                data = data[os.write(self._in, data) :]
            except BrokenPipeError:
                raise BoxEnded("it ended before it read its request") from None
            except BlockingIOError:
                continue

    def receive(self, deadline: float) -> tuple[bytes, bytes]:
        """Return the next frame.

        Args:
            deadline: Time in seconds of time.monotonic().

        Raises:
            BoxEnded, BoxLate, BoxFlood: No frame came.
        """
        kind, length = HEADER.unpack(self._read(HEADER.size, deadline))
        if length > self._most:
            raise BoxFlood(f"it sends {length} bytes")
        return kind, self._read(length, deadline)

    def _read(self, count: int, deadline: float) -> bytes:
        parts = []
        while count:
            self._wait(self._out, select.POLLIN, deadline)
            try:
                part = os.read(self._out, min(count, 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise BoxEnded(f"it ended{self._how()}")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, number: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(number, event)
        wait_s = deadline - time.monotonic()
        if wait_s <= 0 or not poll.poll(wait_s * 1000):
            raise BoxLate("it took too long")

    def _how(self) -> str:
        """Return how the process ended, if it is known."""
        try:
            code = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return ""
        number = -code if code < 0 else code - 128 if code > 128 else 0
        names = {s.value: s.name for s in signal.Signals}
        return f" by {names[number]}" if number in names else ""

    def close(self) -> None:
        """Kill everything inside and wait for the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()
        if self._group is not None:
            self._group.close()


def _open_pipe(data: bytes) -> int:
    """Return the readable end of a closed pipe that contains `data`, which must fit into its buffer of a few KB."""
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    return source


class BoxPool:
    """Fresh sandboxes, some of them started in advance to save the waiting time. For use by one thread.

    Each sandbox is used once. A sandbox started in advance has seen no program and waits for its request.
    """

    def __init__(self, command: SandboxCommand, spares: int = 2) -> None:
        self._command, self._spares = command, spares
        self._waiting: list[Box] = []

    def take(self) -> Box:
        """Return a fresh sandbox, and start the next."""
        box = self._waiting.pop(0) if self._waiting else Box(self._command)
        while len(self._waiting) < self._spares:
            self._waiting.append(Box(self._command))
        return box

    def close(self) -> None:
        """Kill the sandboxes that were started in advance."""
        for box in self._waiting:
            box.close()
        self._waiting = []
