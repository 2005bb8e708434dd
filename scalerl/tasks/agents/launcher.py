"""Runs one program, and ends every process that it leaves behind; a script of its own that imports nothing else.

Standard input has the length of the row (8 bytes) and the row, which becomes the program's standard input. When
standard input ends, because the rollout is late or the process of the run has died, the program is killed. Linux only.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CANNOT_START = 127


def main(command: list[str]) -> int:
    """Run a command; return its exit code, or 128 and the number of the signal that ended it."""
    held = []  # a Popen that is deleted waits for its process, which takes the exit code away

    def start(row: int) -> int:
        held.append(subprocess.Popen(command, stdin=row, start_new_session=True))
        return held[0].pid

    try:
        return supervise(start)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START


def supervise(start: Callable[[int], int]) -> int:
    """Run a program until it ends or standard input does; return its exit code as `main`.

    Args:
        start: Function that starts the program, given a file with its row, and returns its process id.
    """
    # processes whose parent has ended become children of this one, whatever session or group they are in
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    row = os.memfd_create("row")
    left = int.from_bytes(_read(8), "little")
    while left and (part := os.read(0, min(left, 1 << 16))):
        os.write(row, part)
        left -= len(part)
    os.lseek(row, 0, os.SEEK_SET)
    child = start(row)
    ended = os.pidfd_open(child)
    watched = select.poll()
    for file in (ended, 0):
        watched.register(file, select.POLLIN | select.POLLHUP)
    watched.poll()
    return _end_all(child)


def _read(size: int) -> bytes:
    found = b""
    while len(found) < size and (part := os.read(0, size - len(found))):
        found += part
    return found


def _end_all(program: int) -> int:
    """Kill all descendants, generation after generation; return the exit code of the program."""
    code = 128 + signal.SIGKILL
    while True:
        ended, status = 0, 0
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(-1, 0)
        except ProcessLookupError:
            continue
        except ChildProcessError:
            return code
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def _children() -> Iterator[int]:
    own = os.getpid()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if parent == own:
            yield int(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
