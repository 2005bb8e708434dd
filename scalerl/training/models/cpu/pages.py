"""Zeroed tensors whose memory the kernel provides page by page, when it is first written, and takes back on request.

A cache for the longest possible sequences then occupies only what its sequences have reached, without a table of
blocks: attention reads it as one tensor.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import torch
from torch import Tensor

from scalerl.core.errors import ConfigError

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""MAP_NORESERVE of Linux, which Python does not name before 3.13."""


class TensorPages:
    """Memory of one tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Reserve the addresses of a tensor; elsewhere than on Linux, all its memory.

        Raises:
            ConfigError: A limit on the address space (`ulimit -v`) leaves too little.
        """
        self.tensor: Tensor
        self._block: mmap.mmap | None = None
        count = math.prod(shape)
        if not (sys.platform == "linux" and count):
            self.tensor = torch.zeros(shape, dtype=dtype)
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        size = count * dtype.itemsize
        try:
            self._block = mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            raise ConfigError(
                f"the cache of the generator: {size / 1e9:.2g} GB for one layer could not be reserved "
                f"({error.strerror}); lower rollouts.slots or recipe.length, or raise the limit (ulimit -v)"
            ) from None
        # a huge page would take 2 MB for the first token of a sequence
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self._block.madvise(mmap.MADV_NOHUGEPAGE)
        self.tensor = torch.frombuffer(self._block, dtype=dtype, count=count).view(shape)

    def clear(self) -> None:
        """Give all memory back; the tensor is zero again."""
        if self._block is None:
            self.tensor.zero_()
        else:
            self._block.madvise(mmap.MADV_DONTNEED)
