"""Weights through memory that the processes of one machine share; the learner writes it, torch engines read it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalerl.training.engines.weights import WeightChannel

if TYPE_CHECKING:  # torch, which the pipeline does not need
    from scalerl.training.models.weights import WeightLayout

_FREE = -1
"""Marks a slot of shared memory without a version."""


class SharedBlock:
    """Bytes shared with a child process; can be passed as a process argument.

    Uses an anonymous file (memfd) instead of /dev/shm: containers often limit /dev/shm to 64 MiB, and an anonymous file
    disappears with a killed process.
    """

    def __init__(self, size: int) -> None:
        """Make a block of `size` bytes, zeroed."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("scalerl-weights")
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())
        os.ftruncate(self._fd, size)
        self.bytes = np.frombuffer(mmap.mmap(self._fd, size), dtype=np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.reduction import DupFd

        return {"fd": DupFd(self._fd), "size": len(self.bytes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state["fd"].detach()
        self.bytes = np.frombuffer(mmap.mmap(self._fd, state["size"]), dtype=np.uint8)


class SharedMemoryChannel(WeightChannel):
    """Shared memory for processes on one machine: a few equal slots, each with the number of its version.

    The message that announces a version is sent after its bytes, so no reader sees a slot that is being written.
    """

    def __init__(self, layout: WeightLayout, capacity: int = 4) -> None:
        """Allocate the slots.

        Args:
            layout: Layout of the model's weights.
            capacity: Versions held at a time: in use, waiting, or being written.
        """
        self.capacity, self._layout = capacity, layout
        self._versions_block, self._block = SharedBlock(8 * capacity), SharedBlock(max(1, layout.total) * capacity)
        self._versions[:] = _FREE

    @property
    def _versions(self) -> npt.NDArray[np.int64]:
        return self._versions_block.bytes.view(np.int64)

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy the weights into a free slot, or into the slot of the same version."""
        import torch

        versions = self._versions.tolist()
        slot = versions.index(version if version in versions else _FREE)
        views = self._views(slot)
        with torch.no_grad():
            for name, tensor in weights:
                views[name].copy_(tensor)
        self._versions[slot] = version

    def receive(self, version: int) -> Mapping[str, Any]:
        """Return views of a version's slot."""
        return self._views(self._versions.tolist().index(version))

    def drop(self, version: int) -> None:
        """Free a version's slot."""
        self._versions[self._versions.tolist().index(version)] = _FREE

    def _views(self, slot: int) -> dict[str, Any]:
        import torch

        size = self._layout.total
        return self._layout.views(torch.from_numpy(self._block.bytes[slot * size : (slot + 1) * size]))


def channel_versions(weights: float, host: float) -> int:
    """Return how many versions of the weights shared memory holds: 4, or 2 if 4 take over a tenth of the host.

    With 2 the trainer waits more often until a generator has left the older one. Both numbers are bytes.
    """
    return 4 if 4 * weights <= 0.1 * host else 2
