"""Weights through files: the learner writes safetensors into a directory, torch engines and vLLM servers read them.

The part that runs inside a vLLM server is vllm/inside/scalerl_weights.py, which needs nothing of scalerl.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from scalerl.core.files import as_umask
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.weights import ServerCall, WeightChannel, WeightTransfer


class DirectoryChannel(WeightChannel):
    """A directory of safetensors files, one per version, written atomically: slow, for a shared file system."""

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
        from safetensors.torch import save_file

        temporary = self.path / f".version_{version:08d}.safetensors"
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights}, temporary)
        as_umask(temporary)
        temporary.replace(self.file(version))

    def receive(self, version: int) -> Mapping[str, Any]:
        """Read a version."""
        from safetensors.torch import load_file

        weights: Mapping[str, Any] = load_file(self.file(version))
        return weights

    def drop(self, version: int) -> None:
        """Remove a version."""
        self.file(version).unlink()

    def file(self, version: int) -> Path:
        """Return the path of a version's file, whether or not it exists."""
        return self.path / f"version_{version:08d}.safetensors"

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client that lets a server read files of this directory."""
        return DirectoryTransfer(self, engine)


class DirectoryTransfer(WeightTransfer):
    """The server reads a safetensors file that the learner wrote, through a shared file system."""

    backend = "scalerl_directory"

    def __init__(self, channel: DirectoryChannel, engine: int = 0) -> None:
        """Release what the engine held before its last start: an actor that was killed could not.

        Args:
            channel: The directory.
            engine: Number of the engine, among those that share the directory.
        """
        self._channel, self._engine = channel, engine
        for left in channel.path.glob(f".serving_{engine}_*"):
            left.unlink(missing_ok=True)

    def hold(self, version: int) -> Path:
        """Link the version's file under a second name: the learner removes the first as soon as it drops the version.

        The engines of a run share the directory, from several processes and machines, so that the name has the
        engine's number and is random.

        Raises:
            EngineDied: The file does not exist.
        """
        source = self._channel.file(version)
        target = source.with_name(f".serving_{self._engine}_{uuid4().hex}_{source.name}")
        try:
            try:
                os.link(source, target)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without hard links
                shutil.copyfile(source, target)
        except FileNotFoundError:
            text = f"version {version} of the weights was requested, but {source} does not exist"
            raise EngineDied(text) from None
        return target

    def release(self, stored: Path) -> None:
        """Remove the second name."""
        stored.unlink(missing_ok=True)

    async def apply(self, call: ServerCall, version: int, stored: Path) -> None:
        """Pause the server, let it read the file, check the version that it reports, and resume it."""
        # here, because torch engines use the directory without the packages of a client of vLLM
        from scalerl.training.engines.vllm.protocol import (
            FINISH_UPDATE,
            PAUSE,
            RESUME,
            START_UPDATE,
            UPDATE,
            check_label,
        )

        await call("POST", PAUSE)
        await call("POST", START_UPDATE, again=False)
        await call("POST", UPDATE, {"update_info": {"path": str(stored.resolve())}}, again=False)
        await call("POST", FINISH_UPDATE, {"weight_version": str(version)}, again=False)
        await check_label(call, version, f"received version {version} of the weights")
        await call("POST", RESUME)
