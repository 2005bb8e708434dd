"""Weights through a directory of safetensors files: slow, but sufficient if both sides share a file system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from scalerl.core.files import as_umask


class DirectoryChannel:
    """One file per version, `version_00000012.safetensors`, written atomically."""

    def __init__(self, path: Path, capacity: int = 4) -> None:
        """Use a directory; remove files that an earlier process left there.

        Args:
            path: Directory; created if it does not exist.
            capacity: Versions held at a time.
        """
        self.path, self.capacity = path, capacity
        path.mkdir(parents=True, exist_ok=True)
        for left in path.glob("*version_*.safetensors"):
            left.unlink()

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Write a version."""
        temporary = self.path / f".version_{version:08d}.safetensors"
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights}, temporary)
        as_umask(temporary)
        temporary.replace(self.file(version))

    def receive(self, version: int) -> Mapping[str, Any]:
        """Read a version."""
        weights: Mapping[str, Any] = load_file(self.file(version))
        return weights

    def drop(self, version: int) -> None:
        """Remove a version."""
        self.file(version).unlink()

    def file(self, version: int) -> Path:
        """Return the path of a version's file, whether or not it exists."""
        return self.path / f"version_{version:08d}.safetensors"
