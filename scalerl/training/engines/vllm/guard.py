"""Runs a server and ends it, with its workers and its files, when standard input ends or one of its processes dies.

Usage: guard.py LOG COMMAND...  The script uses only the standard library, so that it starts fast. A line on standard
input before its end gives the server time to shut down.

The script has two processes, so that no death leaves anything behind. The first is the child of the process that
started it, and returns the exit code. The second, in a session of its own, runs the server. Ray kills the children of
an actor together with the actor, and nothing below them: the second process then ends the server. If the second is
killed, the first one does.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_PATIENCE_S = 15.0
"""Seconds between terminating and killing the server, if the parent requested a shutdown."""
_ORPHANED_S = 0.5
"""The same if the parent has ended: nothing waits for the server, and its GPU may be needed."""
_LOOK_S = 5.0
"""Seconds between two looks for segments of shared memory, whose names die with the processes that use them."""
_LONGEST = 50
"""Characters of the usual temporary directory: the path of a socket has at most 107, and vLLM's names have 36."""
_SHARED = "/dev/shm/"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(log: str, command: list[str]) -> int:
    """Run a command with its output in a file; return its exit code."""
    # a terminal sends these to the whole process group; only the parent acts on them
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the server would inherit SIG_IGN and could not be terminated
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    usual = tempfile.gettempdir()
    files = tempfile.mkdtemp(prefix="vllm-", dir=usual if len(usual) <= _LONGEST else "/tmp")
    _keep_compiled(usual, files)
    os.environ["TMPDIR"] = files  # of sockets and other files that a killed server leaves behind
    source, sink = os.pipe()
    second = os.fork()  # safe here: no other thread runs yet
    if not second:
        os.setsid()
        os.close(source)
        os._exit(_run(log, command, files, sink))
    os.close(sink)
    code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    if code < 0:  # it was killed, and the kernel has killed the server, but not the workers
        _clean(int(os.read(source, 32) or 0), files)
    return code if code >= 0 else 128 - code  # as shells report a signal


def _keep_compiled(usual: str, files: str) -> None:
    """Link torch's cache of compiled code into a temporary directory.

    torch looks for its precompiled headers in the temporary directory, whatever TORCHINDUCTOR_CACHE_DIR is, and would
    compile them again for every server.
    """
    with contextlib.suppress(KeyError, OSError):  # an id without a name
        name = f"torchinductor_{getpass.getuser()}"
        os.makedirs(f"{usual}/{name}", exist_ok=True)
        os.symlink(f"{usual}/{name}", f"{files}/{name}")


def _run(log: str, command: list[str], files: str, sink: int) -> int:
    """Run the server and write its process id to `sink`; return its exit code when nothing of it is left."""
    with open(log, "ab") as out:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_guard,  # safe here: no other thread runs yet
            )
        except OSError as error:
            out.write(f"{type(error).__name__}: {error}\n".encode())
            _clean(0, files)
            return 127  # as shells report a command that does not exist
    os.write(sink, str(server.pid).encode())
    ended = threading.Event()
    for work in (_end_with_parent, _look):
        threading.Thread(target=work, args=(server.pid, files, ended), daemon=True).start()
    code = server.wait()
    ended.set()
    _clean(server.pid, files)
    return code if code >= 0 else 128 - code


def _end_with_parent(server: int, files: str, ended: threading.Event) -> None:
    """End the server after the end of standard input.

    Consumes: standard input. Produces: signals to the server. Waits for: the end of standard input.
    Unblocked by: the end of the parent, or a shutdown that it requests.
    """
    patience = _ORPHANED_S
    while os.read(sys.stdin.fileno(), 1024):
        patience = _PATIENCE_S
    _record(server, files)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server, signal.SIGTERM)
        if not ended.wait(patience):
            os.kill(server, signal.SIGKILL)


def _look(server: int, files: str, ended: threading.Event) -> None:
    """Record the segments of shared memory that the server uses.

    Consumes: nothing. Produces: a file of names. Waits for: time. Unblocked by: the end of the server.
    """
    while not ended.wait(_LOOK_S):
        _record(server, files)


def _record(server: int, files: str) -> set[str]:
    """Add the segments that processes of a server use to a file of names; return all names in it."""
    names = _segments(_members(server))
    with contextlib.suppress(OSError), open(f"{files}/segments", "a+") as file:  # the disk may be full
        file.seek(0)
        before = set(file.read().splitlines())
        file.writelines(f"{name}\n" for name in names - before)
        names |= before
    return names


def _end_with_guard() -> None:
    """Make the kernel kill the server if this process is killed (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _clean(server: int, files: str) -> None:
    """Kill what is left of a server; remove its temporary files, and its shared memory that nothing else uses.

    Args:
        server: Process id of the server, which is that of its session; 0: it has not started.
        files: Its temporary directory.
    """
    names, until = _record(server, files), time.monotonic() + _PATIENCE_S
    if server:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server, signal.SIGKILL)  # the group includes the workers
    while (alive := _members(server)) and time.monotonic() < until:  # a process frees its GPU memory for seconds
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    left = {name for name in names if os.path.exists(name)}
    for name in left - (_segments(_processes()) if left else set()):
        with contextlib.suppress(OSError):
            os.unlink(name)
    shutil.rmtree(files, ignore_errors=True)


def _processes() -> list[int]:
    """Return all processes; none on systems without /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()] if os.path.isdir("/proc") else []


def _members(session: int) -> list[int]:
    """Return the living processes of a session; vLLM's workers stay in that of their server. None for session 0."""
    members = []
    for process in _processes() if session else ():
        with contextlib.suppress(OSError):
            state, _, _, its_session = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append(process)
    return members


def _segments(processes: Iterable[int]) -> set[str]:
    """Return the segments of shared memory that processes have mapped or opened, as paths."""
    names = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
            names |= {f"/{line.partition('/')[2]}" for line in lines}
            for link in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(FileNotFoundError):  # just closed
                    names.add(os.readlink(f"/proc/{process}/fd/{link}"))
    return {name for name in names if name.startswith(_SHARED) and not name.endswith(" (deleted)")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
