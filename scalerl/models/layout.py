"""Layout of a model's weights in one block of bytes; all processes with the same model compute the same layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Place of one weight in the block.

    Example: Place(name="model.norm.weight", dtype="float32", shape=(64,), offset=4096)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset from the start of the block in bytes, a multiple of 64."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Places of all weights of a model."""

    places: tuple[Place, ...]
    total: int
    """Size of the block in bytes."""

    @classmethod
    def of(cls, weights: Iterable[tuple[str, Tensor]]) -> WeightLayout:
        """Lay out named tensors in the given order."""
        places, total = [], 0
        for name, tensor in weights:
            places.append(Place(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), total))
            total += (tensor.numel() * tensor.element_size() + _ALIGN - 1) // _ALIGN * _ALIGN
        return cls(tuple(places), total)

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """Return the weights as views of a block (uint8, `total` bytes)."""
        assert block.dtype == torch.uint8 and block.numel() == self.total, (block.dtype, block.numel(), self.total)
        views = {}
        for place in self.places:
            dtype = getattr(torch, place.dtype)
            size = torch.Size(place.shape).numel() * dtype.itemsize
            views[place.name] = block[place.offset : place.offset + size].view(dtype).view(place.shape)
        return views
