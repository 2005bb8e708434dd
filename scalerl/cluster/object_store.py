"""Weights through Ray's object store: one copy for the sender and one per node that reads it, without files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch

CHUNK = 1 << 30
"""Maximum bytes of one object, up to its last tensor."""


class Shelf:
    """An actor that stores the object references of each version."""

    def __init__(self) -> None:
        self._objects: dict[int, list[Any]] = {}

    def put(self, version: int, objects: list[Any]) -> None:
        """Store a version's object references and replace earlier ones."""
        self._objects[version] = objects

    def get(self, version: int) -> list[Any]:
        """Return a version's object references."""
        return self._objects[version]

    def drop(self, version: int) -> None:
        """Discard a version, so that Ray frees its memory."""
        self._objects.pop(version, None)


class ObjectStoreChannel:
    """The weight channel of torch engines on a cluster; it is passed as an argument of an actor's method."""

    def __init__(self, ray: Any, capacity: int = 4) -> None:
        """Start the actor that stores references.

        Args:
            ray: The module `ray`, connected.
            capacity: Versions held at a time.
        """
        self.capacity = capacity
        self._shelf = ray.remote(num_cpus=0)(Shelf).remote()

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Put the weights into the store, in objects of about 1 GiB."""
        import ray

        objects: list[Any] = []
        chunk: dict[str, tuple[Any, str]] = {}
        size = 0
        for name, tensor in weights:
            flat = tensor.detach().cpu().contiguous()
            chunk[name] = (flat.view(torch.uint8).numpy() if flat.ndim else flat.numpy(), str(flat.dtype)[6:])
            size += flat.numel() * flat.element_size()
            if size >= CHUNK:
                objects.append(ray.put(chunk))
                chunk, size = {}, 0
        if chunk:
            objects.append(ray.put(chunk))
        ray.get(self._shelf.put.remote(version, objects))

    def receive(self, version: int) -> Mapping[str, Any]:
        """Return a version as views of the store's memory; the caller must copy them at once."""
        import ray

        weights: dict[str, torch.Tensor] = {}
        chunks = ray.get(ray.get(self._shelf.get.remote(version)))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the tensors are only read
            for name, (array, dtype) in chain.from_iterable(chunk.items() for chunk in chunks):
                tensor = torch.from_numpy(array)
                weights[name] = tensor.view(getattr(torch, dtype)) if tensor.ndim else tensor
        return weights

    def drop(self, version: int) -> None:
        """Discard a version."""
        self._shelf.drop.remote(version)
