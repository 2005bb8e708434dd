"""The contract of a weight channel: the learner sends a version, engines receive it by its number.

A new channel is one file with a class that has these methods; it is handed to engine processes by pickling. Every
channel is tested by replay: what an engine samples after a swap must have the probability of the weights sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class WeightChannel(Protocol):
    """How weights travel from the learner to the engines."""

    capacity: int
    """Versions that it holds at a time; the sender waits for one to be dropped before it sends another."""

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Make a version available; the learner's side. Weights are tensors by the model's own names."""
        ...

    def receive(self, version: int) -> Mapping[str, Any]:
        """Return a version that was sent, to be copied at once; an engine's side."""
        ...

    def drop(self, version: int) -> None:
        """Forget a version that no engine needs any more; the learner's side."""
        ...
