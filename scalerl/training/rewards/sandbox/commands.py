"""Command lines of sandboxes: bubblewrap, and a plain process for trusted programs.

The filters of system calls are compiled by libseccomp to BPF.
"""

from __future__ import annotations

import atexit
import errno
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.limits import PYTHON_ANSWER_S
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.sandbox.box import FILTER_RULES, SandboxCommand, group_parent

KERNEL_SURFACE = (
    "mount umount umount2 pivot_root chroot unshare setns fsopen fsconfig fsmount fspick move_mount open_tree "
    "mount_setattr ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp kexec_load "
    "kexec_file_load bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key "
    "request_key init_module finit_module delete_module quotactl quotactl_fd reboot swapon swapoff acct syslog "
    "settimeofday clock_settime clock_adjtime adjtimex stime personality mknod mknodat name_to_handle_at "
    "open_by_handle_at lookup_dcookie nfsservctl fanotify_init ioperm iopl modify_ldt move_pages migrate_pages mbind "
    "set_mempolicy set_mempolicy_home_node vhangup uselib ustat sysfs _sysctl sethostname setdomainname"
)
"""System calls that computing programs do not need and in which kernels have had vulnerabilities."""

UNCOUNTED_MEMORY = (
    "memfd_create memfd_secret shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open "
    "mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
)
"""System calls for memory that does not count toward the limit of the address space."""

NETWORK = "socket"
"""Sockets of every family. asyncio needs `socketpair`, which is allowed for AF_UNIX only."""
AF_UNIX = 1

CLONE_THREAD = 0x0001_0000
NEW_NAMESPACES = (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x80)
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME."""


def no_sandbox(problem: str) -> ConfigError:
    """Return the error of a machine without a sandbox."""
    return ConfigError(
        f"scoring.sandbox.mode: this machine has no sandbox for programs that a model wrote: {problem}. Install "
        "bubblewrap and libseccomp (apt-get install bubblewrap libseccomp2; pip install pyseccomp) where user "
        "namespaces are allowed, or give --scoring.sandbox.mode unsafe for programs that you trust"
    )


def sandbox_filter() -> bytes:
    """Return the filter for all processes in a sandbox, as BPF.

    Raises:
        ConfigError: pyseccomp or libseccomp is not installed.
    """
    seccomp, rules = _new()
    refuse = seccomp.ERRNO(errno.EPERM)
    for name in f"{KERNEL_SURFACE} {UNCOUNTED_MEMORY} {NETWORK}".split():
        _add(seccomp, rules, refuse, name)
    for flag in NEW_NAMESPACES:
        _add(seccomp, rules, refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    _add(seccomp, rules, refuse, "socketpair", seccomp.Arg(0, seccomp.NE, AF_UNIX))
    # the flags of clone3 are in memory that a filter cannot read; glibc falls back to clone
    _add(seccomp, rules, seccomp.ERRNO(errno.ENOSYS), "clone3")
    return _bpf(rules)


def program_filter() -> bytes:
    """Return the filter that a process loads before it runs a program. It allows threads, but no fork and no exec.

    Raises:
        ConfigError: pyseccomp or libseccomp is not installed.
    """
    seccomp, rules = _new()
    refuse = seccomp.ERRNO(errno.EPERM)
    for name in ("fork", "vfork", "execve", "execveat"):
        _add(seccomp, rules, refuse, name)
    _add(seccomp, rules, refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    _add(seccomp, rules, seccomp.ERRNO(errno.ENOSYS), "clone3")
    return _bpf(rules)


def _new() -> tuple[Any, Any]:
    try:
        import pyseccomp
    except ImportError:
        raise no_sandbox("the package pyseccomp is missing: pip install pyseccomp") from None
    except RuntimeError:  # raised if the library is missing
        raise no_sandbox("the library libseccomp is missing: apt-get install libseccomp2") from None
    return pyseccomp, pyseccomp.SyscallFilter(pyseccomp.ALLOW)


def _add(seccomp: Any, rules: Any, action: int, name: str, *arguments: Any) -> None:
    """Add a rule, unless the call is unknown to this libseccomp or does not exist on this machine."""
    number = seccomp.resolve_syscall(seccomp.system_arch(), name)
    if number >= 0:
        rules.add_rule(action, number, *arguments)


def _bpf(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


GUEST = Path(__file__).parent / "guest"
GUEST_CODE = "/guest/scalerl/training/rewards/sandbox/guest"
"""Path of that directory in a sandbox. Its modules keep their names; the parent packages are empty there."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
THREADS = 64
OUTPUT_KB = 4096
"""Limit of standard output, or of one returned value, KiB."""
NOBODY = "65534"


def bubblewrap(settings: Sandbox, bwrap: str) -> SandboxCommand:
    """Return the command of a sandbox of bubblewrap.

    It has separate namespaces for users, processes, network, mounts, IPC, host name and cgroups; a read-only tree with
    /usr and Python; four device files, no /proc and no /sys; no capabilities; and a system-call filter.

    Raises:
        ConfigError: System calls cannot be filtered on this machine.
    """
    help_text = subprocess.run([bwrap, "--help"], capture_output=True, text=True, env={}).stdout
    newer = ["--disable-userns"] if "--disable-userns" in help_text else []
    words = [
        *(bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", *newer, "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr"),
        *(word for name in ("bin", "lib", "lib32", "lib64") for word in _system_directory(name)),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *(word for place in _places(settings) for word in ("--ro-bind", place, place)),
        *("--ro-bind", str(GUEST), GUEST_CODE),
        *(word for name in DEVICES for word in ("--dev-bind-try", name, name)),
        *("--dir", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", FILTER_RULES, "--"),
        *_python(settings),
        f"{GUEST_CODE}/main.py",
    ]
    return SandboxCommand(words, _limits(settings, program_filter()), sandbox_filter(), group_parent())


def unsafe(settings: Sandbox) -> SandboxCommand:
    """Return the command of a plain process with limits but without isolation."""
    root = Path(tempfile.mkdtemp(prefix="scalerl-guest-"))
    place = root / GUEST_CODE.removeprefix("/")
    place.parent.mkdir(parents=True)
    place.symlink_to(GUEST, target_is_directory=True)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    setpriv = shutil.which("setpriv")  # of util-linux: the kernel kills the process with its parent
    dying = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    line = "programs run WITHOUT a sandbox (scoring.sandbox.mode = 'unsafe'): limits only"
    return SandboxCommand([*dying, *_python(settings), f"{place}/main.py"], _limits(settings, b""), line=line)


def _limits(settings: Sandbox, rules: bytes) -> dict[str, Any]:
    return {
        "test_s": settings.test_s,
        "program_s": settings.program_s,
        "memory": settings.memory_mb << 20,
        "output": OUTPUT_KB << 10,
        "threads": THREADS if _counts_by_namespace() else 0,
        "filter": rules,
        "environment": dict.fromkeys(THREADS_OF_LIBRARIES, "1") if _environment(settings) else {},
    }


def _counts_by_namespace() -> bool:
    """Return whether RLIMIT_NPROC counts only the sandbox's processes. Before Linux 5.14 it counts all the user's."""
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in platform.release().split(".")[:2])
    return (major, minor) >= (5, 14)


def _system_directory(name: str) -> list[str]:
    place = Path("/") / name
    if place.is_symlink():
        return ["--symlink", os.readlink(place), str(place)]
    return ["--ro-bind", str(place), str(place)] if place.exists() else []


THREADS_OF_LIBRARIES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Without a limit, such a library starts one thread per core, and its stacks exceed the limits of a program."""
OLDEST = (3, 11)
"""Oldest Python that runs the harness."""


def _environment(settings: Sandbox) -> str:
    """Return the Python whose packages programs see; empty: none, only the standard library."""
    return settings.python or (sys.executable if settings.packages else "")


def _python(settings: Sandbox) -> list[str]:
    if python := _environment(settings):
        return [shutil.which(python) or python, "-I", "-X", "utf8", "-W", "ignore"]
    # not the link in a virtual environment, which a sandbox does not see
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [executable, "-I", "-S", "-X", "utf8", "-W", "ignore"]


def _places(settings: Sandbox) -> list[str]:
    """Return the directories outside /usr that Python needs."""
    if settings.python:
        prefixes = _prefixes(settings.python)
    else:
        prefixes = (sys.prefix, sys.base_prefix) if settings.packages else (sys.base_prefix,)
    directories = dict.fromkeys([*map(os.path.realpath, prefixes), *prefixes])
    return [p for p in directories if p != "/usr" and not p.startswith("/usr/")]


def _prefixes(python: str) -> tuple[str, ...]:
    """Return the directories of another Python: its environment, and its installation.

    Raises:
        ConfigError: It does not run, or is too old.
    """
    words = [python, "-I", "-c", "import sys; print(*sys.version_info[:2], sys.prefix, sys.base_prefix, sep='\\n')"]
    allowed = f"allowed: the path of a Python {OLDEST[0]}.{OLDEST[1]} or newer"
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PYTHON_ANSWER_S)
        major, minor, *prefixes = done.stdout.splitlines()
        version = (int(major), int(minor))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it gave no version"
        raise ConfigError(f"scoring.sandbox.python: {python!r} does not run as Python ({reason}); {allowed}") from None
    if version < OLDEST:
        raise ConfigError(f"scoring.sandbox.python: got {python!r}, a Python {version[0]}.{version[1]}; {allowed}")
    return tuple(prefixes)
