"""The contract between the generator and whatever produces tokens. It knows no recipe, curriculum or process.

An engine decodes many sequences together, one token each a tick, refills its slots as sequences end, and swaps in new
weights between two ticks without dropping the cache. Every engine is tested by replay: the log-probability of every
token must be that of the weights of its version over the cache as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scalerl.types import Rollout


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    Example: Request(id=(17, 3), prompt=(7, 11, 4, 25), key=1234567890123)
    """

    id: tuple[int, int]
    """(index of the visit, number of the sample): returned with the finished rollout."""
    prompt: tuple[int, ...]
    """Prompt tokens, at least one."""
    key: int
    """Key of the sample's random stream (streams.py)."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One sequence that ended at the last tick."""

    id: tuple[int, int]
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine did since it was made.

    Example: Work(ticks=120, tokens=7680, flops=5.1e10)
    """

    ticks: int = 0
    tokens: int = 0
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus."""
    stop: tuple[int, ...] = ()
    """Token ids that end a sequence; the stop token belongs to the rollout."""


class Engine(Protocol):
    """Continuous batching with per-token log-probabilities and versions."""

    slots: int
    """Sequences decoded together."""
    version: int
    """Version of the weights in use."""
    work: Work
    """What it did so far."""

    def room(self) -> int:
        """Return how many more requests should be queued to keep the slots filled; 0 or less: none."""
        ...

    def add(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start at the next tick at which enough slots are free."""
        ...

    def busy(self) -> int:
        """Return the number of sequences started or waiting that have not finished."""
        ...

    def tick(self) -> list[Finished]:
        """Give every running sequence one token; return those that ended."""
        ...

    def load_weights(self, version: int, weights: Any) -> None:
        """Swap in new weights between two ticks; running sequences go on over their old cache."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly: nested dicts of arrays, tensors and plain values."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        ...
