"""System-call filters for the sandbox, compiled by libseccomp to BPF."""

from __future__ import annotations

import errno
import tempfile
from functools import cache
from typing import Any

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


class NoSeccomp(RuntimeError):
    """libseccomp or its Python binding is missing."""


@cache
def sandbox_filter() -> bytes:
    """Return the filter for all processes in a sandbox, as BPF.

    Raises:
        NoSeccomp: pyseccomp or libseccomp is not installed.
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


@cache
def program_filter() -> bytes:
    """Return the filter that a process loads before it runs a program. It allows threads, but no fork and no exec.

    Raises:
        NoSeccomp: pyseccomp or libseccomp is not installed.
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
        raise NoSeccomp("the package pyseccomp is missing: pip install pyseccomp") from None
    except RuntimeError:  # raised if the library is missing
        raise NoSeccomp("the library libseccomp is missing: apt-get install libseccomp2") from None
    return pyseccomp, pyseccomp.SyscallFilter(pyseccomp.ALLOW)


def _add(seccomp: Any, rules: Any, action: int, name: str, *arguments: Any) -> None:
    """Add a rule, unless the call is unknown to this libseccomp or does not exist on this machine."""
    known = seccomp.resolve_syscall(seccomp.system_arch(), name)
    if known >= 0:
        rules.add_rule(action, known, *arguments)


def _bpf(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
