"""Methods by which a vLLM server gets new weights: one class each, listed in UPDATES.

A server uses new weights from the first decode step after `finish`, and labels every token with the version that
sampled it. vLLM accepts weights only while it is paused. `mode=keep&clear_cache=false` freezes running sequences with
their keys and values, so that they continue with the old cache.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from scalerl.rollouts.process_engine import EngineDied
from scalerl.rollouts.vllm.protocol import (
    FINISH_UPDATE,
    PAUSE,
    RESUME,
    START_UPDATE,
    UPDATE,
    WEIGHT_INFO,
    version_of,
)

if TYPE_CHECKING:  # the import loads torch, which a client of a server does not need
    from scalerl.rollouts.weights import DirectoryChannel

Call = Callable[..., Awaitable[Any]]
"""(method, path, body, again) -> answer; `again` is true if the request may be repeated."""


class Updates(Protocol):
    """A method to give a server new weights."""

    backend: str
    """Backend in the server's `--weight-transfer-config`."""

    def hold(self, version: int) -> Any:
        """Keep a version from being dropped; called by the caller's thread when the version is requested."""

    def release(self, held: Any) -> None:
        """Release what `hold` returned: the server has loaded it, or will not."""

    async def apply(self, call: Call, version: int, held: Any) -> None:
        """Give the server a version; return when it uses it.

        Raises:
            EngineDied: The server does not use the version.
        """


class DirectoryUpdates:
    """The server reads a safetensors file that the learner wrote, through a shared file system."""

    backend = "scalerl_directory"

    def __init__(self, channel: DirectoryChannel, engine: int = 0) -> None:
        """Release what an earlier life of the engine held: an actor that was killed could not.

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

    def release(self, held: Path) -> None:
        """Remove the second name."""
        held.unlink(missing_ok=True)

    async def apply(self, call: Call, version: int, held: Path) -> None:
        """Pause the server, let it read the file, check the version that it reports, and resume it."""
        await call("POST", PAUSE)
        await call("POST", START_UPDATE, again=False)
        await call("POST", UPDATE, {"update_info": {"path": str(held.resolve())}}, again=False)
        await call("POST", FINISH_UPDATE, {"weight_version": str(version)}, again=False)
        got = version_of((await call("GET", WEIGHT_INFO))["weight_version"])
        if got != version:
            raise EngineDied(f"it received version {version} of the weights, but reports version {got}")
        await call("POST", RESUME)


class PushedUpdates:
    """The learner's process sends the weights (nccl.py); this class only waits for them."""

    backend = "nccl"

    def __init__(self, channel: Any = None, engine: int = 0) -> None:
        """Wait for pushed weights; the arguments, which all classes in UPDATES take, are unused."""

    def hold(self, version: int) -> None:
        """Do nothing: the weights are in the server or on the way."""

    def release(self, held: None) -> None:
        """Do nothing."""

    async def apply(self, call: Call, version: int, held: None) -> None:
        """Poll the server until it has the version; the restarter ends a life that waits too long."""
        while version_of((await call("GET", WEIGHT_INFO))["weight_version"]) < version:
            await asyncio.sleep(0.05)


UPDATES: dict[str, Callable[[Any, int], Updates]] = {"directory": DirectoryUpdates, "nccl": PushedUpdates}
"""Methods by `rollouts.weights`; each takes the weight channel and the number of the engine."""
