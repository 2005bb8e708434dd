"""Runs one program, and ends every process that it leaves behind; a script of its own that imports nothing else.

Standard input has the length of the row (8 bytes) and the row, which becomes the program's standard input. When
standard input ends, because the rollout is late or the process of the run has died, the program is killed. Linux only.

Where the kernel allows it, the program runs in a namespace of processes of its own. It cannot see the launcher, let
alone signal it, and the kernel kills all processes of the namespace when the first one ends. Elsewhere, what is left
becomes children of the launcher, which kills them; a program that kills the launcher leaves its processes.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000  # linux/sched.h
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 19  # linux/mount.h
CANNOT_START = 127

CONTAINED, SUPERVISED, PROBE = "contained", "supervised", "probe"
"""First words of the command line: in a namespace; as children; whether there can be a namespace."""

Start = Callable[[int], int]
"""Starts a program, given a file with its row; returns its process id."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(kind: str, command: list[str]) -> int:
    """Run a command; return its exit code, or 128 and the number of the signal that ended it."""
    held = []  # a Popen that is deleted waits for its process, which takes the exit code away

    def start(row: int) -> int:
        try:
            held.append(subprocess.Popen(command, stdin=row, start_new_session=True))
        except OSError as error:
            print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(CANNOT_START)
        return held[0].pid

    try:
        return _probe() if kind == PROBE else supervise(start, kind)
    except OSError as error:
        print(f"no namespace of processes: {error.strerror}", file=sys.stderr)
        return CANNOT_START


def supervise(start: Start, kind: str) -> int:
    """Run a program until it ends or standard input does; return its exit code as `main`.

    Args:
        start: Function that starts the program.
        kind: CONTAINED or SUPERVISED.

    Raises:
        OSError: There is no namespace.
    """
    row = os.memfd_create("row")
    left = int.from_bytes(_read(8), "little")
    while left and (part := os.read(0, min(left, 1 << 16))):
        os.write(row, part)
        left -= len(part)
    os.lseek(row, 0, os.SEEK_SET)
    if kind == CONTAINED:
        first = _first_process(lambda: _run(start(row)))
        _wait(first)
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        return _code(os.waitpid(first, 0)[1])  # it has ended when all others have
    # processes whose parent has ended become children of this one, whatever session or group they are in
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = start(row)
    _wait(child)
    return _end_all(child)


def _read(size: int) -> bytes:
    found = b""
    while len(found) < size and (part := os.read(0, size - len(found))):
        found += part
    return found


def _wait(process: int) -> None:
    """Wait until a child or standard input ends."""
    ended = os.pidfd_open(process)
    watched = select.poll()
    for file in (ended, 0):
        watched.register(file, select.POLLIN | select.POLLHUP)
    watched.poll()
    os.close(ended)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


# ----------------------------------------------------------------------------------------------------- in a namespace


def _probe() -> int:
    return _code(os.waitpid(_first_process(lambda: 0), 0)[1])


def _first_process(run: Callable[[], int]) -> int:
    """Fork the first process of a namespace, which ends with the code that `run` returns; return its process id.

    Raises:
        OSError: The kernel does not allow it.
    """
    user, group, own = os.getuid(), os.getgid(), os.getpid()
    try:
        _unshare(CLONE_NEWPID | CLONE_NEWNS)
    except PermissionError:  # only root may, but everybody in a namespace of users, in which all files stay the same
        _unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    alive, ours = os.pipe()  # `alive` ends with this process
    if first := os.fork():
        os.close(alive)
        return first
    os.close(ours)
    code = CANNOT_START
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel ignores a signal to this process without a handler
        _mount(b"none", b"/", None, MS_REC | MS_SLAVE)  # what follows is seen in here only
        _mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        with suppress(OSError), open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
            file.write(str(own))  # programs whose files have the number of their process differ from each other
        parent = select.poll()
        parent.register(alive, 0)
        code = CANNOT_START if parent.poll(0) else run()  # it may have ended before the call to prctl
    except OSError as error:
        print(f"no namespace of processes: {error.strerror}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(program: int) -> int:
    """Wait for a program, and for all processes that become children of the first one; return its exit code."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == program:
            return _code(status)


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), None))


def _check(returned: int) -> None:
    if returned:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ------------------------------------------------------------------------------------------------------- as children


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
            code = _code(status)


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
    sys.exit(main(sys.argv[1], sys.argv[2:]))
