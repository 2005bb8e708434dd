"""Weights by name: their layout in one block of bytes, their names on disk, and a model over existing weights.

transformers keeps the experts of a layer in one tensor but saves them separately, as they were published, and renames
some weights of some families. Programs that load checkpoints, such as vLLM, need the names on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """WeightPlace of one weight in the block.

    Example: WeightPlace(name="model.norm.weight", dtype="float32", shape=(64,), offset=4096)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset from the start of the block in bytes, a multiple of 64."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Places of all weights of a model in one block of bytes; all processes with the same model compute the same."""

    places: tuple[WeightPlace, ...]
    total: int
    """Size of the block in bytes."""

    @classmethod
    def of(cls, weights: Iterable[tuple[str, Tensor]]) -> WeightLayout:
        """Lay out named tensors in the given order."""
        places, total = [], 0
        for name, tensor in weights:
            places.append(WeightPlace(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), total))
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


def checkpoint_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with the names and shapes that `model.save_pretrained` would give them.

    Tensors are converted one at a time, so that no second copy of the model is held.

    Args:
        model: A transformers model, whose class and configuration determine the conversion.
        weights: Full tensors by the names of the model's parameters.
    """
    from transformers.core_model_loading import revert_weight_conversion

    for name, weight in weights:
        yield from revert_weight_conversion(model, {name: weight}).items()


def plain_model(model: Any, weights: dict[str, Tensor]) -> Any:
    """Return a model of the same architecture over given weights, without copying them.

    Args:
        model: A transformers model whose parameters are sharded or have adapters.
        weights: Full tensors on the host by the architecture's names; tied ones appear once.
    """
    with torch.device("meta"):
        plain = type(model)(model.config)
    persistent = {name: buffer.cpu() for name, buffer in model.named_buffers()}
    plain.load_state_dict({**weights, **persistent}, strict=False, assign=True)
    plain.tie_weights()
    missing = [name for name, parameter in plain.named_parameters() if parameter.is_meta]
    assert not missing, missing
    plain.generation_config = model.generation_config
    return plain
