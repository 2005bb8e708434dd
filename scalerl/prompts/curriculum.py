"""Epochs over shuffled prompts, with No-Positive-Resampling (ScaleRL sec. 3.2).

A prompt whose latest pass rate reaches the threshold is retired and never drawn again. Prompts are drawn up to k
batches ahead of results. A prompt whose last visit has no result yet is postponed within its epoch, so that it is not
drawn again before its retirement is decided.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.core.rng import stream_key
from scalerl.types import Prompt, Visit


class Curriculum:
    """Draws visits and records their pass rates. Its state is part of every checkpoint."""

    def __init__(self, prompts: Sequence[Prompt], seed: int, retire_at: float | None) -> None:
        """Start before the first epoch.

        Args:
            prompts: Training pool.
            seed: Seed of the shuffles.
            retire_at: Smallest pass rate at which a prompt is retired; None: prompts are never retired.
        """
        self._prompts = {prompt.id: prompt for prompt in prompts}
        self._seed, self._retire_at = seed, retire_at
        self.epoch = 0
        """Number of epochs begun."""
        self.retired: set[str] = set()
        """Ids of the retired prompts."""
        self.pass_rates: dict[str, float] = {}
        """Latest pass rate of each prompt visited."""
        self._order: deque[str] = deque()
        self._visits: Counter[str] = Counter()
        self._awaited: Counter[str] = Counter()
        self._drawn = 0

    @property
    def live(self) -> int:
        """Number of prompts that are not retired."""
        return len(self._prompts) - len(self.retired)

    def draw(self, n: int) -> list[Visit]:
        """Return the next n visits; fewer only if all prompts are retired."""
        visits: list[Visit] = []
        while len(visits) < n and self.live:
            if not self._order:
                self._begin_epoch()
            identity = self._next()
            if identity is not None:
                visits.append(Visit(self._prompts[identity], self._visits[identity], self._drawn))
                self._visits[identity] += 1
                self._awaited[identity] += 1
                self._drawn += 1
        return visits

    def forget(self, visit: Visit) -> None:
        """Record that a visit has no result because its group was dropped. The prompt returns in a later epoch."""
        identity = visit.prompt.id
        self._awaited[identity] -= 1
        if not self._awaited[identity]:
            del self._awaited[identity]

    def record(self, visit: Visit, pass_rate: float) -> None:
        """Record a visit's pass rate, in [0, 1]."""
        identity = visit.prompt.id
        self.forget(visit)
        self.pass_rates[identity] = pass_rate
        if self._retire_at is not None and pass_rate >= self._retire_at:
            self.retired.add(identity)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        live = [identity for identity in self._prompts if identity not in self.retired]
        self._order = deque(sorted(live, key=lambda i: stream_key(self._seed, "epoch", self.epoch, i)))

    def _next(self) -> str | None:
        """Return the next prompt of the epoch, or None at its end; prompts that await a result go to the end."""
        for _ in range(len(self._order)):
            identity = self._order.popleft()
            if identity in self.retired:
                continue
            if self._retire_at is None or not self._awaited[identity]:
                return identity
            self._order.append(identity)
        # all remaining prompts await results, because the pool is smaller than the number of prompts drawn ahead;
        # waiting would starve the generator
        return self._order.popleft() if self._order else None

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "epoch": self.epoch,
            "order": list(self._order),
            "retired": sorted(self.retired),
            "pass_rates": dict(self.pass_rates),
            "visits": dict(self._visits),
            "awaited": dict(self._awaited),
            "drawn": self._drawn,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        self.epoch, self._drawn = state["epoch"], state["drawn"]
        self._order, self.retired = deque(state["order"]), set(state["retired"])
        self.pass_rates = dict(state["pass_rates"])
        self._visits, self._awaited = Counter(state["visits"]), Counter(state["awaited"])
