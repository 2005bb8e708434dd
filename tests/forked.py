"""`scalerl` in separate processes that start quickly: forks of a server that has done the heavy imports.

Importing torch and transformers costs about 5 s of CPU time, and the tests start about 200 processes. In all other
respects a fork is an ordinary process: it has a separate session, environment, working directory, pipe and exit code.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import util
from typing import Any, NoReturn

_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
HEAVY = (
    "scalerl.training.loop.launch", "scalerl.training.loop.loop", "scalerl.training.loop.complete",
    "scalerl.training.engines.worker", "scalerl.training.engines.local.torch_engine",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.qwen3.modeling_qwen3",
    "matplotlib.backends.backend_agg", "matplotlib.figure",
)  # fmt: skip
"""Modules of a run that take long to import."""
MESSAGE = 1 << 20
"""Maximum size of a request in bytes."""


class Forked:
    """A process in a fork of the server, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.args, self.returncode = words, None
        out, out_there = os.pipe()
        self._status, status_there = os.pipe()
        request = json.dumps({"words": words, "environment": environment, "cwd": os.getcwd()}).encode()
        assert len(request) < MESSAGE
        socket.send_fds(_connection(), [request], [out_there, status_there])
        os.close(out_there)
        os.close(status_there)
        self._out = out
        self._said = b""
        while b"\n" not in self._said:
            self._said += self._read_status()
        self.pid = int(self._said.split(b"\n")[0])

    def _read_status(self) -> bytes:
        printed = os.read(self._status, 64)
        assert printed, "the server of forked processes has died"
        return printed

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        while self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._said += self._read_status()
            if self._said.count(b"\n") == 2:
                self.returncode = int(self._said.split(b"\n")[1])
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            select.select([self._status], [], [], 0.05)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Return the output of the process and its children, after the last of them has ended."""
        until = time.monotonic() + (timeout or 1e9)
        printed = b""
        while True:
            if not select.select([self._out], [], [], max(0, until - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, output=printed)
            piece = os.read(self._out, 1 << 16)
            if not piece:
                break
            printed += piece
        os.close(self._out)
        self.wait(max(0.1, until - time.monotonic()))
        return printed.decode(errors="replace"), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _connection() -> socket.socket:
    """Return the socket of the server; start the server at the first call."""
    global _server
    if _server is None or _server[1].poll() is not None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = "import sys; from forked import serve; sys.exit(serve(int(sys.argv[1])))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(there.fileno())],
            pass_fds=[there.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.DEVNULL,
        )
        there.close()
        _server = here, process
        atexit.register(here.close)  # the server ends when its socket is closed
    return _server[0]


def serve(number: int) -> int:
    """Fork a process for each request. Return the exit code, in the forked process or at the end."""
    from scalerl.core.packages import prepare_environment

    prepare_environment()
    for name in HEAVY:
        importlib.import_module(name)
    connection = socket.socket(fileno=number)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the watching processes
    while True:
        request, fds, _, _ = socket.recv_fds(connection, MESSAGE, 2)
        if not request:
            return 0
        if os.fork() == 0:
            connection.close()
            return _watch(json.loads(request), *fds)
        for fd in fds:
            os.close(fd)


def _watch(request: dict[str, Any], out: int, status: int) -> int:
    """Run a request in a child; send its process id, then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # a Ctrl-C at the terminal reaches only pytest
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(status)
        os.close(go)
        os.read(ready, 1)  # until the process id is known
        os.close(ready)
        return _run(request, out)
    os.close(ready)
    os.close(out)
    os.write(status, f"{pid}\n".encode())
    os.close(go)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, f"{code}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], out: int) -> int:
    """Run the requested command in this process."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["scalerl", *request["words"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell started pytest with `&`
    _spawn_from([_Spare(), _Spare()])
    from scalerl.cli.main import main

    return main()  # in this process, so that signals end the command


class _Spare:
    """A child that has done its imports and waits until its parent spawns a process."""

    forking = False
    """Whether a spare is being forked now."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _Spare.forking = True
        self._pid = os.fork()
        _Spare.forking = False
        if self._pid == 0:
            self._here.close()
            _leave(lambda: _become_spawned(there))
        there.close()

    def become(self, code: str, fds: list[int]) -> int:
        """Run the code that `multiprocessing` gives to a fresh Python; return the process id."""
        request = json.dumps({"code": code, "fds": fds, "cwd": os.getcwd(), "environment": dict(os.environ)})
        socket.send_fds(self._here, [request.encode()], fds)
        self._here.close()
        return self._pid


def _leave(action: Callable[[], object]) -> NoReturn:
    """Run an action that ends with sys.exit, and end the process. `renew` runs in a hook, which would swallow it."""
    code: Any = 0
    try:
        action()
    except SystemExit as error:
        code = error.code
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _become_spawned(there: socket.socket) -> int:
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the whole group
    message, given, _, _ = socket.recv_fds(there, MESSAGE, 16)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not message:
        os._exit(0)  # the parent has ended
    there.close()
    request = json.loads(message)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for fd in given]  # above the numbers that they must get
    for fd in given:
        os.close(fd)
    for fd, number in zip(high, request["fds"], strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    ctypes.CDLL(None).prctl(15, b"spawn_main", 0, 0, 0)  # PR_SET_NAME; `runs.children` looks for it
    sys.argv = ["-c", "--multiprocessing-fork"]
    exec(request["code"], {})  # ends with sys.exit
    raise AssertionError("multiprocessing's code returned")


def _spawn_from(spares: list[_Spare]) -> None:
    """Use spares for the first processes that `multiprocessing` spawns, and ordinary processes after them."""
    ordinary = util.spawnv_passfds

    def spawn(path: bytes, args: list[Any], fds: list[int]) -> int:
        code = next((str(word) for word in args if "spawn_main(" in str(word)), None)
        if code is None or not spares:
            return int(ordinary(path, args, fds))
        return spares.pop(0).become(code, sorted(fds))

    def renew() -> None:
        """Replace the spares in a fork of the command, because they are not its children."""
        if not _Spare.forking:
            spares[:] = [_Spare() for _ in spares]

    util.spawnv_passfds = spawn
    os.register_at_fork(after_in_child=renew)
