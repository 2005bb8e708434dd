"""Limits on the memory and processes of a whole sandbox by control groups (version 2), if these are writable."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NEEDED = {"memory", "pids"}


def parent(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the group in which this process may create groups with limits, or None.

    Args:
        root: Mount point of the hierarchy of version 2.
        own: File with the group of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    named = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    for group in named:
        here = root / group.lstrip("/")
        for place in (here, here.parent):
            if place != root.parent and _delegates(place):
                return place
    return None


def _delegates(place: Path) -> bool:
    try:
        given = set((place / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False
    return given >= NEEDED and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK)


class Group:
    """A control group for one sandbox."""

    def __init__(self, place: Path, memory: int, processes: int) -> None:
        """Create the group.

        Args:
            place: Parent group.
            memory: Limit in bytes for all its processes, including kernel memory.
            processes: Limit of processes and threads.
        """
        self.path = place / f"scalerl-{uuid.uuid4().hex}"
        self.path.mkdir()
        for name, value in (("memory.max", memory), ("memory.swap.max", 0), ("pids.max", processes)):
            file = self.path / name
            if name != "memory.swap.max" or file.exists():
                file.write_text(str(value))

    def entering(self) -> list[str]:
        """Return the words to put before a command so that it and all its children start in the group."""
        return ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self.path)]

    def close(self) -> None:
        """Remove the group once its last process has ended."""
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
