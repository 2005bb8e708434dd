"""A block of memory that two processes see. It knows bytes and file descriptors, nothing of what lies in it."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt


class SharedBlock:
    """Bytes shared with a child process; it can be handed over as a process argument.

    An anonymous file (memfd) rather than /dev/shm: containers often give that 64 MiB, and a killed process leaves
    nothing behind.
    """

    def __init__(self, size: int) -> None:
        """Make a block of `size` bytes, zeroed."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("scalerl-weights")
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())
        os.ftruncate(self._fd, size)
        self._map(size)

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self._fd, size)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.reduction import DupFd

        return {"fd": DupFd(self._fd), "size": len(self.bytes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state["fd"].detach()
        self._map(state["size"])


class WeightSlots:
    """A few equal blocks in one piece of shared memory: the weights in use, those that wait, those being written."""

    def __init__(self, size: int, count: int = 4) -> None:
        """Make `count` slots of `size` bytes."""
        self.size, self.count = size, count
        self._block = SharedBlock(max(size, 1) * count)

    def __getitem__(self, slot: int) -> npt.NDArray[np.uint8]:
        """Return one slot's bytes."""
        assert 0 <= slot < self.count, slot
        return self._block.bytes[slot * self.size : (slot + 1) * self.size]
