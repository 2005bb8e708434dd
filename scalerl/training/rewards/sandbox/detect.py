"""Detection of this machine's sandbox for untrusted programs, by running a test program in it."""

from __future__ import annotations

import compileall
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.limits import SANDBOX_PROBE_S
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.sandbox.box import Box, BoxEnded, BoxFlood, BoxLate, SandboxCommand
from scalerl.training.rewards.sandbox.commands import GUEST, bubblewrap, no_sandbox, unsafe
from scalerl.training.rewards.sandbox.guest.plain import loads

PROBE = "print(6 * 7)"


def offer(settings: Sandbox, required_modules: Mapping[str, str] | None = None) -> SandboxCommand:
    """Return the command of a sandbox with these settings, with its `line`, after a test program has run in it.

    Args:
        settings: Settings of the sandbox. Their packages must be importable.
        required_modules: Further modules that must be, each with the reason.

    Raises:
        ConfigError: This machine has no sandbox and `mode` is not "unsafe", or a module cannot be imported.
    """
    command = _offer(settings)
    reasons = {**(required_modules or {}), **dict.fromkeys(settings.packages, "scoring.sandbox.packages")}
    for name, problem in missing_modules(command, list(reasons)).items():
        remedy = f"install it for {settings.python}" if settings.python else "install it here"
        declared = "" if name in settings.packages else f", and add {name!r} to scoring.sandbox.packages"
        raise ConfigError(
            f"{reasons[name]}: programs cannot import {name} in the sandbox ({problem}); {remedy}{declared}"
        )
    return command


def missing_modules(command: SandboxCommand, names: Sequence[str]) -> dict[str, str]:
    """Return the modules that cannot be imported in a sandbox within its limits, each with the error."""
    if not names:
        return {}
    problems = {}
    for name in names:  # each in a sandbox of its own, because an import may end its process
        report = run_program(command, IMPORTS.format(name=name))
        if isinstance(report, str):
            problems[name] = report
        elif report["output"] != b"ok":
            problems[name] = report["complaint"].strip() or str(report["output"].decode("utf-8", "replace")).strip()
    return problems


IMPORTS = """
try:
    import {name}
    print("ok", end="")
except BaseException as error:
    print(type(error).__name__ + ":", " ".join(str(error).split())[:200])
"""


def _offer(settings: Sandbox) -> SandboxCommand:
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


def run_program(command: SandboxCommand, program: str) -> dict[str, Any] | str:
    """Return the report on a trusted program without input, or why there is none."""
    command = replace(command, limits={**command.limits, "test_s": SANDBOX_PROBE_S})  # the machine may be busy
    deadline = time.monotonic() + SANDBOX_PROBE_S
    try:
        with closing(Box(command)) as box:
            box.begin("stdin", deadline, program=program)
            box.send(b"I", b"", deadline)
            return dict(loads(box.receive(deadline)[1]))
    except (BoxEnded, BoxLate, BoxFlood) as error:
        return str(error)


def _probe(command: SandboxCommand) -> str:
    """Run the test program; return a description of the problem, or an empty text."""
    report = run_program(command, PROBE)
    if isinstance(report, str):
        return f"a first program did not run: {_complaint(command) or report}"
    right = report["output"] == b"42\n"
    return "" if right else f"a first program wrote {report['output'][:80]!r} ({report['complaint']})"


def _complaint(command: SandboxCommand) -> str:
    """Return the last line of the command's standard error, if the command does not start."""
    words = [word for word in command.words if word not in ("--seccomp", "RULES")]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, timeout=SANDBOX_PROBE_S
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else ""
