"""The channel to the process outside, and the limits that a process in a sandbox sets for itself."""

from __future__ import annotations

import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEADER = struct.Struct(">cI")
"""Header of a frame: one byte of kind and four bytes of length. The payload follows (plain.py)."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38  # linux/prctl.h, linux/seccomp.h


class Channel:
    """Frames to and from the process outside."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink

    def send(self, kind: bytes, payload: bytes) -> None:
        """Write one frame."""
        data = memoryview(HEADER.pack(kind, len(payload)) + payload)
        while data:
            data = data[os.write(self._sink, data) :]

    def receive(self) -> tuple[bytes, bytes]:
        """Read one frame; end the process if the other side has closed the channel."""
        kind, length = HEADER.unpack(self._read(HEADER.size))
        return kind, self._read(length)

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self._source, min(count, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class Limits:
    """Limits of a program: `limits` of the request.

    Example: Limits({"test_s": 6.0, "program_s": 60.0, "memory": 1 << 30, "output": 1 << 22, ...})
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.test_s: float = values["test_s"]  # seconds for one test
        self.program_s: float = values["program_s"]  # seconds for all tests
        self.memory: int = values["memory"]  # bytes of address space of a process
        self.output: int = values["output"]  # bytes of standard output
        self.threads: int = values["threads"]  # threads and processes; 0: not limited here
        self.filter: bytes = values["filter"]  # system-call filter, BPF; empty: none
        self.environment: dict[str, str] = values["environment"]  # variables of the environment; there are no others


def limit(limits: Limits, cpu_s: float) -> None:
    """Set limits that this process and its children cannot raise again."""
    values = {"AS": limits.memory, "FSIZE": 0, "CORE": 0, "NOFILE": 64, "CPU": int(cpu_s) + 2}
    if limits.threads:
        values["NPROC"] = limits.threads
    for name, value in values.items():
        number = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(number)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))


def load_filter(limits: Limits) -> None:
    """Forbid fork and exec from here on; threads stay allowed."""
    if not limits.filter:
        return
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    libc = ctypes.CDLL(None)
    program = Program(len(limits.filter) // 8, limits.filter)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        os._exit(70)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent is killed.

    A sandbox of bubblewrap ends as a whole. Plain processes need this call.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def silence() -> None:
    """Redirect the standard streams to /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
