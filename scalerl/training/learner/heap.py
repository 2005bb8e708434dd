"""Memory that the C library holds free is returned to the system before it adds up."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where /proc does not say it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _malloc_trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others return memory by themselves
    if trim is not None:
        trim(0)


class HeapTrim:
    """Trims the heap once the process has grown to twice what it needed after the last trim.

    Activations of 2 to 32 MB whose sizes differ between micro-batches break glibc's heap into pieces: the trainer of a
    135M model grew from 8 to 15 GB over 55 updates, and stayed at 7 GB with these blocks outside the heap. A trim costs
    the page faults of the next update, so it is not done after each.
    """

    GROWTH = 2.0

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] = _malloc_trim) -> None:
        """Take what measures and what trims; the first call sets the level."""
        self._resident, self._trim, self._limit = resident, trim, 0.0

    def __call__(self) -> None:
        """Trim where the process has grown; call it between updates."""
        if self._resident() > self._limit:
            self._trim()
            self._limit = self.GROWTH * self._resident()
