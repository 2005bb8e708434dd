"""Detection of this machine's sandbox for untrusted programs, by running a test program in it."""

from __future__ import annotations

import compileall
import shutil
import subprocess
import time
from contextlib import closing
from dataclasses import replace

from scalerl.config.placement import Sandbox
from scalerl.tasks.sandbox.box import Box, BoxEnded, BoxFlood, BoxLate, Command
from scalerl.tasks.sandbox.commands import GUEST, bubblewrap, no_sandbox, unsafe
from scalerl.tasks.sandbox.guest.plain import loads

PROBE = "print(6 * 7)"
PROBE_S = 60.0
"""Time limit of the test program in seconds."""


def offer(settings: Sandbox) -> Command:
    """Return the command of a sandbox with these settings, with its `line`, after a test program has run in it.

    Raises:
        ConfigError: This machine has no sandbox, and `mode` is not "unsafe".
    """
    if settings.mode == "unsafe":
        return unsafe(settings)
    # saves time in every sandbox; if the directory is not writable, they compile
    compileall.compile_dir(GUEST, quiet=2)
    program = shutil.which("bwrap")
    if program is None:
        raise no_sandbox("the program bwrap is not installed")
    command = bubblewrap(settings, program)
    if problem := _probe(command):
        raise no_sandbox(problem)
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    groups = (
        "memory and processes of the whole sandbox by cgroup" if command.group else "no cgroup limits (not writable)"
    )
    line = (
        f"programs run in {version}: separate namespaces, read-only tree, no network, system calls filtered, {groups}; "
        f"{settings.test_s:g} s per test, {settings.memory_mb} MiB"
    )
    return replace(command, line=line)


def _probe(command: Command) -> str:
    """Run the test program; return a description of the problem, or an empty text."""
    command = replace(command, limits={**command.limits, "test_s": PROBE_S})  # the machine may be busy
    deadline = time.monotonic() + PROBE_S
    try:
        with closing(Box(command)) as box:
            box.begin("stdin", deadline, program=PROBE)
            box.send(b"I", b"", deadline)
            report = loads(box.receive(deadline)[1])
    except (BoxEnded, BoxLate, BoxFlood) as error:
        return f"a first program did not run: {_complaint(command) or error}"
    right = report["output"] == b"42\n"
    return "" if right else f"a first program wrote {report['output'][:80]!r} ({report['complaint']})"


def _complaint(command: Command) -> str:
    """Return the last line of the command's standard error, if the command does not start."""
    words = [word for word in command.words if word not in ("--seccomp", "RULES")]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, timeout=PROBE_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else ""
