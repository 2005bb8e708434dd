"""How a vLLM server gets new weights: one class a way, by name in UPDATES.

A server uses new weights between `finish` and the next decode step, and labels every token with the version that
sampled it. vLLM may only be given weights while it is paused; `mode=keep&clear_cache=false` freezes the running
sequences with their keys and values, so that they go on over the old cache.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

if TYPE_CHECKING:  # it loads torch, which a client of a server does not need
    from scalerl.rollouts.weights.directory import DirectoryChannel

Call = Callable[..., Awaitable[Any]]
"""(method, path, body, again: whether it may be repeated) -> the answer."""


class Updates(Protocol):
    """One way for a server to get new weights."""

    backend: str
    """What the server was started with, in `--weight-transfer-config`."""

    def hold(self, version: int) -> Any:
        """Keep a version from being dropped; called when it is asked for, by the caller's thread."""
        ...

    def release(self, held: Any) -> None:
        """Let go of what `hold` returned: the server has loaded it, or will not."""
        ...

    async def apply(self, call: Call, version: int, held: Any) -> None:
        """Return when the server uses a version.

        Raises:
            EngineDied: it does not.
        """
        ...


class DirectoryUpdates:
    """The server reads a safetensors file that the learner wrote; it has to see the same file system."""

    backend = "scalerl_directory"

    def __init__(self, channel: DirectoryChannel) -> None:
        self._channel, self._numbers = channel, itertools.count()

    def hold(self, version: int) -> Path:
        """Give the version's file a second name: the learner drops the first one as soon as a newer one is asked for.

        Raises:
            EngineDied: the file is not there.
        """
        source = self._channel.file(version)
        if not source.exists():
            raise EngineDied(f"weights of version {version} were asked for, and {source} is not there")
        target = source.with_name(f".serving_{next(self._numbers)}_{source.name}")
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, target)
        return target

    def release(self, held: Path) -> None:
        """Remove the second name."""
        held.unlink(missing_ok=True)

    async def apply(self, call: Call, version: int, held: Path) -> None:
        """Pause the server, let it read the file, check what it says it has, and let it go on."""
        await call("POST", PAUSE)
        await call("POST", START_UPDATE, again=False)
        await call("POST", UPDATE, {"update_info": {"path": str(held.resolve())}}, again=False)
        await call("POST", FINISH_UPDATE, {"weight_version": str(version)}, again=False)
        got = version_of((await call("GET", WEIGHT_INFO))["weight_version"])
        if got != version:
            raise EngineDied(f"it was given weights of version {version} and says that it uses version {got}")
        await call("POST", RESUME)


class PushedUpdates:
    """The learner's process sends the weights itself (nccl.py); here they are only waited for."""

    backend = "nccl"

    def __init__(self, channel: Any = None, timeout_s: float = 600.0, interval_s: float = 0.05) -> None:
        """Wait for pushed weights.

        Args:
            channel: not needed; every way is made from one.
            timeout_s: how long a version may take to appear.
            interval_s: between two questions.
        """
        self._timeout_s, self._interval_s = timeout_s, interval_s

    def hold(self, version: int) -> None:
        """Do nothing: the weights are in the server already, or on their way."""

    def release(self, held: None) -> None:
        """Do nothing."""

    async def apply(self, call: Call, version: int, held: None) -> None:
        """Ask the server until it has the version."""
        end = time.monotonic() + self._timeout_s
        while (got := version_of((await call("GET", WEIGHT_INFO))["weight_version"])) < version:
            if time.monotonic() > end:
                raise EngineDied(
                    f"weights of version {version} were asked for {self._timeout_s:.0f} s ago and it still uses "
                    f"version {got}"
                )
            await asyncio.sleep(self._interval_s)


UPDATES: dict[str, Callable[[Any], Updates]] = {"directory": DirectoryUpdates, "nccl": PushedUpdates}
"""By `rollouts.weights`; each is given the weight channel."""
