"""Imports a function once, and forks a process for each call of it: the program of functions that import much.

Started as `nursery.py FUNCTION SOCKET KIND`; KIND is that of launcher.py. A message on the socket has the variables of
one call, with its standard input, output and error and a pipe for the process id and the exit code. Each call has a
launcher of its own, so nothing that it starts outlives it. It ends when the socket is closed.
"""

import json
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))  # that of scalerl, which may be on no other path

from scalerl.core.errors import ScalerlError
from scalerl.core.plugins import call, load_function
from scalerl.training.rewards.agents.call import main as run
from scalerl.training.rewards.agents.launcher import supervise

KEPT_FILES = 4
"""Standard input, output and error, and the pipe."""


def main(name: str, number: int, kind: str) -> None:
    """Serve calls of the function `name` that come over the socket `number`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a launcher
    server = socket.socket(fileno=number)
    prepare = None
    with suppress(ScalerlError):  # each call reports it
        prepare = getattr(load_function(name, "data.function"), "prepare", None)
    while True:
        message, files, _, _ = socket.recv_fds(server, 1 << 20, KEPT_FILES)
        if not message:
            return
        values = json.loads(message)
        if prepare is not None:
            try:
                call(prepare, name, values["prepare"])
            except ScalerlError:  # each call reports it
                prepare = None
        if os.fork():
            for file in files:
                os.close(file)
            continue
        try:
            server.close()
            _launch(name, kind, values["variables"], files)
        finally:
            os._exit(0)


def _launch(name: str, kind: str, variables: dict[str, str], files: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    status = files[3]
    os.write(status, os.getpid().to_bytes(4, "little"))
    for place in range(3):
        os.dup2(files[place], place)
        os.close(files[place])
    os.environ.update(variables)

    def start(row: int) -> int:
        child = os.fork()
        if child:
            return child
        os.close(status)
        os.setsid()
        os.dup2(row, 0)
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        code = 1
        try:
            sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # until its end
            code = run(name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    os.write(status, bytes([supervise(start, kind)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
