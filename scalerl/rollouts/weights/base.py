"""The contract of a weight channel: the learner sends a version, and engines receive it by its number.

To add a channel, write a class with these methods in a new module. Channels are pickled to reach engine processes.
Every channel is tested by replay: the log-probabilities after a swap must match the weights that were sent. If engines
can lose the weights, the channel also has a method `lost() -> bool`; the trainer then sends the latest version again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class WeightChannel(Protocol):
    """A way to carry weights from the learner to the engines."""

    capacity: int
    """Versions that it holds at a time; when it is full, the sender waits until one is dropped."""

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Make a version available (learner's side). Weights are tensors by the model's parameter names."""
        ...

    def receive(self, version: int) -> Mapping[str, Any]:
        """Return the weights of a version (engine's side); the caller must copy them at once."""
        ...

    def drop(self, version: int) -> None:
        """Discard a version that no engine needs any more (learner's side)."""
        ...
