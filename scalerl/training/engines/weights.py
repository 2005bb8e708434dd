"""The contract of the ways in which weights move: the learner sends a version, engines receive it by its number.

To add a way, write one file with both of its ends, a class with the methods of `WeightChannel`, and an entry of
CHANNELS (channels.py). Channels are pickled to reach engine processes. Every channel is tested by replay: the
log-probabilities after a swap must match the weights that were sent. torch is imported only when weights are sent or
received.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

ServerCall = Callable[..., Awaitable[Any]]
"""(method, path, body, again) -> answer; `again` is true if the request may be repeated."""


class WeightTransfer(Protocol):
    """What the client of a vLLM server does when the server gets new weights.

    A server uses new weights from the first decode step after `finish`, and labels every token with the version that
    sampled it. vLLM accepts weights only while it is paused. `mode=keep&clear_cache=false` freezes running sequences
    with their keys and values, so that they continue with the old cache.
    """

    backend: str
    """Backend in the server's `--weight-transfer-config`; empty: the server takes no weights."""
    adapter: str = ""
    """Name of the adapter that requests ask for; empty: none."""

    def hold(self, version: int) -> Any:
        """Keep a version from being dropped; called by the caller's thread when the version is requested.

        Without this, nothing is kept: the weights are in the server, or on their way.
        """
        return None

    def release(self, stored: Any) -> None:
        """Release what `hold` returned: the server has loaded it, or will not."""
        return None

    async def apply(self, call: ServerCall, version: int, stored: Any) -> None:
        """Give the server a version; return when it uses it.

        Raises:
            EngineDied: The server does not use the version.
        """


class WeightChannel:
    """A way to carry weights from the learner to the engines; the defaults are those of one that stores versions."""

    capacity: int
    """Versions that it holds at a time; when it is full, the sender waits until one is dropped."""
    into_engines: bool = False
    """Whether `send` reaches into running engines, which must be there before the first version is sent."""

    # ------------------------------------------------------------------------------------------- the learner's end

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Make a version available. Weights are tensors by the model's parameter names."""
        raise NotImplementedError

    def drop(self, version: int) -> None:
        """Discard a version that no engine needs any more."""
        raise NotImplementedError

    def lost(self) -> str:
        """Return why engines do not have the latest version, which is then sent again; empty: they can get it."""
        return ""

    # ------------------------------------------------------------------------------------------- the engines' end

    def receive(self, version: int) -> Mapping[str, Any]:
        """Return the weights of a version; the caller must copy them at once."""
        raise NotImplementedError

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client's part in an update of a vLLM server; `engine` is the number of its engine."""
        raise NotImplementedError(f"{type(self).__name__} does not reach vLLM servers")

    def announce(self, engine: int, address: str) -> None:
        """Say where an engine's server listens, http://host:port; empty: it has ended."""

    def sending(self) -> bool:
        """Return whether a transfer may be under way; if not, an engine that waits for weights is not dead."""
        return True
