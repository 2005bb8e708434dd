"""Knows how much memory there is: of this machine, its control group, limits of the process, a GPU.

Sizes are bytes.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError

NO_LIMIT = 1 << 60
"""Bytes from which a number is no limit: control groups of version 1 write one near 2^63."""

_CALLED_UNLIMITED = ("", "max")


class Memory(NamedTuple):
    """Memory that the processes of a run may use.

    Example: Memory(total=24e9, free=21.5e9, limit="this machine")
    """

    total: float
    """The smallest of all limits."""
    free: float
    """What is left of the limit that leaves least, with the page cache, which the kernel gives up."""
    limit: str
    """What sets the total, for messages."""


def host_memory(root: Path = Path("/")) -> Memory:
    """Return the memory of this machine, or of the limit under which this process runs.

    Limits are those of control groups (versions 1 and 2, with all groups above), and RLIMIT_AS and RLIMIT_DATA, which
    `ulimit -v` and `ulimit -d` set. The last two count for each process alone.

    Args:
        root: Directory with proc and sys; another one in tests.
    """
    memories = [*_machine(root), *_control_groups(root), *_process_limits(root)]
    if not memories:
        return Memory(float("inf"), float("inf"), "unknown")
    smallest = min(memories)
    return smallest._replace(free=max(0.0, min(smallest.total, *(memory.free for memory in memories))))


def gpu_memory(device: Any = 0) -> Memory:
    """Return the memory of a GPU, by its number or torch device, with its name; torch must see it."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return Memory(float(total), float(free), torch.cuda.get_device_name(device))


def sees_gpu(root: Path = Path("/")) -> bool:
    """Return whether this machine has a device that torch may use as a GPU; torch is not imported.

    Looks for device files of NVIDIA (also in WSL) and AMD. CUDA_VISIBLE_DEVICES may hide them.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    devices = root / "dev"
    return any(devices.glob("nvidia[0-9]*")) or any((devices / name).exists() for name in ("dxg", "kfd"))


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def largest_child() -> int:
    """Return the largest resident memory of any process that this process started and waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def memory_report(peak: float) -> str:
    """Return what a process had taken of which limit, for a message.

    Args:
        peak: Its largest resident memory; 0 if it is not known.
    """
    total, _, limit = host_memory()
    usage = f"it had taken {peak / 1e9:.1f} GB, and " if peak else ""
    return f"{usage}the limit is {total / 1e9:.1f} GB ({limit})"


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_address_space() -> None:
    """Check that this process may map what importing torch maps; with less, the C libraries end the process.

    Raises:
        ConfigError: A limit is too small; the message has the command that raises it.
    """
    for memory in _process_limits(Path("/")):
        if memory.total < TORCH_BYTES:
            raise ConfigError(
                f"memory: got {memory.limit} of {memory.total / 1e9:.2f} GB; allowed: at least {TORCH_BYTES / 1e9:.1f} "
                "GB, because importing torch and transformers takes that much. Raise it, for example with ulimit "
                f"{memory.limit[-3:-1]} unlimited"
            )


TORCH_BYTES = 1e9
"""Address space below which nothing can be sampled: importing torch 2.13 for CPUs and transformers takes 0.7 GB, a
model's code and scipy the rest; CUDA takes more."""


def _machine(root: Path) -> Iterator[Memory]:
    sizes = _table(root / "proc/meminfo")
    if "MemTotal" in sizes:
        free = sizes.get("MemAvailable", sizes.get("MemFree", 0))
        yield Memory(1024.0 * sizes["MemTotal"], 1024.0 * free, "this machine")


def _control_groups(root: Path) -> Iterator[Memory]:
    """Yield the limit of every control group above this process, in both versions."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
        for mounted, inside in _mounts(root, version):
            # in a container the path may start above what is mounted, which then is this process's own group
            group = Path(path.removeprefix(inside.rstrip("/")).lstrip("/"))
            place = mounted / group if (mounted / group).is_dir() else mounted
            while True:
                yield from _of_group(place, version)
                if place == mounted:
                    break
                place = place.parent


def _of_group(place: Path, version: int) -> Iterator[Memory]:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (_number(place / name) for name in names)
    if limit is None or used is None or limit >= NO_LIMIT:
        return
    statistics = _table(place / "memory.stat")
    cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    yield Memory(float(limit), float(limit - max(0, used - cached)), f"the control group ({names[0]})")


def _mounts(root: Path, version: int) -> Iterator[tuple[Path, str]]:
    """Yield where control groups of a version are mounted, and the group at the top of each mount."""
    for line in _lines(root / "proc/self/mountinfo"):
        head, _, tail = line.partition(" - ")
        inside, place, kind = head.split()[3], head.split()[4], tail.split()
        second, first = kind[0] == "cgroup2", kind[0] == "cgroup" and "memory" in kind[-1].split(",")
        if (version == 2 and second) or (version == 1 and first):
            yield root / place.lstrip("/"), inside


def _process_limits(root: Path) -> Iterator[Memory]:
    sizes = _table(root / "proc/self/status")
    for limit, used, name in (
        (resource.RLIMIT_AS, "VmSize", "ulimit -v"),
        (resource.RLIMIT_DATA, "VmData", "ulimit -d"),
    ):
        most = resource.getrlimit(limit)[0]
        if 0 <= most < NO_LIMIT:
            yield Memory(float(most), most - 1024.0 * sizes.get(used, 0), f"the limit of a process ({name})")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines have a name and a number; a unit may follow."""
    rows = [line.replace(":", " ").split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _number(path: Path) -> int | None:
    """Return the number in a file: NO_LIMIT for "max", None if there is no such file."""
    text = "".join(_lines(path)).strip()
    if text in _CALLED_UNLIMITED:
        return NO_LIMIT if text else None
    return int(text) if text.isdecimal() else None
