"""Command lines of sandboxes: bubblewrap, gVisor, and a plain process for trusted programs."""

from __future__ import annotations

import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from scalerl.config.placement import Sandbox
from scalerl.tasks.sandbox import cgroups
from scalerl.tasks.sandbox.box import RULES, Command

GUEST = Path(__file__).parent / "guest"
INSIDE = "/guest/scalerl/tasks/sandbox/guest"
"""Path of that directory in a sandbox. Its modules keep their names; the parent packages are empty there."""
THREADS = 64
NOBODY = "65534"


def bubblewrap(settings: Sandbox, bwrap: str) -> Command:
    """Return the command of a sandbox of bubblewrap.

    It has separate namespaces for users, processes, network, mounts, IPC, host name and cgroups; a read-only tree with
    /usr and Python; four device files, no /proc and no /sys; no capabilities; and a system-call filter.

    Raises:
        NoSeccomp: System calls cannot be filtered on this machine.
    """
    from scalerl.tasks.sandbox.seccomp import program_filter, sandbox_filter

    newer = ["--disable-userns"] if "--disable-userns" in _help(bwrap) else []
    words = [
        *(bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", *newer, "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr"),
        *(word for name in ("bin", "lib", "lib32", "lib64") for word in _system_directory(name)),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *(word for place in _places(settings) for word in ("--ro-bind", place, place)),
        *("--ro-bind", str(GUEST), INSIDE),
        *(word for name in ("null", "zero", "random", "urandom") for word in _device(name)),
        *("--dir", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", RULES, "--"),
        *_python(settings),
        f"{INSIDE}/main.py",
    ]
    return Command(words, _limits(settings, program_filter()), sandbox_filter(), cgroups.parent())


def gvisor(settings: Sandbox, runsc: str) -> Command:
    """Return the command of a sandbox of gVisor, whose kernel runs in user space."""
    bundle = Path(tempfile.mkdtemp(prefix="scalerl-runsc-"))
    atexit.register(shutil.rmtree, bundle, ignore_errors=True)
    (bundle / "rootfs").mkdir()
    places = dict.fromkeys(["/usr", *(f"/{n}" for n in ("bin", "lib", "lib64") if Path(f"/{n}").exists())])
    mounts = [(str(Path(place).resolve()), place) for place in (*places, *_places(settings))] + [(str(GUEST), INSIDE)]
    words = [*_python(settings), f"{INSIDE}/main.py"]
    (bundle / "config.json").write_text(json.dumps(_oci(words, mounts)))
    starter = (  # every container needs its own name and state directory
        f'exec {runsc} --rootless --network=none --ignore-cgroups --root "{bundle}/state-$$" run '
        f'--bundle "{bundle}" "scalerl-$$"'
    )
    return Command([*_dying_with_parent(), "/bin/sh", "-c", starter], _limits(settings, b""))


def unsafe(settings: Sandbox) -> Command:
    """Return the command of a plain process with limits but without isolation."""
    root = Path(tempfile.mkdtemp(prefix="scalerl-guest-"))
    place = root / INSIDE.removeprefix("/")
    place.parent.mkdir(parents=True)
    place.symlink_to(GUEST, target_is_directory=True)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return Command([*_dying_with_parent(), *_python(settings), f"{place}/main.py"], _limits(settings, b""))


def _dying_with_parent() -> list[str]:
    """Return the words that make the kernel kill a command with its parent. bubblewrap has an option for this."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _oci(words: list[str], mounts: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the configuration of a container in the form of the OCI runtime specification, version 1.0."""
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "process": {
            "terminal": False,
            "user": {"uid": int(NOBODY), "gid": int(NOBODY)},
            "args": words,
            "env": [],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {
                name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
            },
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [
            {"destination": inside, "type": "bind", "source": source, "options": ["rbind", "ro"]}
            for source, inside in mounts
        ],
        # no user namespace: --rootless creates one, and the kernel refuses a second one without an id map
        "linux": {"namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")]},
    }  # fmt: skip


def _limits(settings: Sandbox, rules: bytes) -> dict[str, Any]:
    return {
        "test_s": settings.test_s,
        "program_s": settings.program_s,
        "memory": settings.memory_mb << 20,
        "output": settings.output_kb << 10,
        "threads": THREADS if _counts_by_namespace() else 0,
        "filter": rules,
    }


def _counts_by_namespace() -> bool:
    """Return whether RLIMIT_NPROC counts only the sandbox's processes. Before Linux 5.14 it counts all the user's."""
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in platform.release().split(".")[:2])
    return (major, minor) >= (5, 14)


@cache
def _help(bwrap: str) -> str:
    return subprocess.run([bwrap, "--help"], capture_output=True, text=True, env={}).stdout


def _system_directory(name: str) -> list[str]:
    place = Path("/") / name
    if place.is_symlink():
        return ["--symlink", os.readlink(place), str(place)]
    return ["--ro-bind", str(place), str(place)] if place.exists() else []


def _device(name: str) -> list[str]:
    return ["--dev-bind-try", f"/dev/{name}", f"/dev/{name}"]


def _python(settings: Sandbox) -> list[str]:
    if settings.python:
        return [settings.python, "-I", "-X", "utf8", "-W", "ignore"]
    return [_executable(), "-I", "-S", "-X", "utf8", "-W", "ignore"]


def _executable() -> str:
    """Return the path of this Python, not of the link in a virtual environment, which a sandbox does not see."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _places(settings: Sandbox) -> list[str]:
    """Return the directories outside /usr that Python needs."""
    prefixes = _asked(settings.python) if settings.python else (sys.base_prefix,)
    found = [os.path.realpath(p) for p in prefixes] + [p for p in prefixes if os.path.realpath(p) != p]
    return [p for p in dict.fromkeys(found) if p != "/usr" and not p.startswith("/usr/")]


@cache
def _asked(python: str) -> tuple[str, ...]:
    words = [python, "-I", "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"]
    return tuple(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:2])


BACKENDS: dict[str, tuple[str, Callable[[Sandbox, str], Command]]] = {
    "bubblewrap": ("bwrap", bubblewrap),
    "gvisor": ("runsc", gvisor),
}
"""By kind of isolation: its program, and the function that returns the command."""
