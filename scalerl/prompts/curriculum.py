"""Epochs over shuffled prompts with No-Positive-Resampling (ScaleRL sec. 3.2), and several tasks in fixed shares.

A prompt whose latest pass rate reaches the threshold is retired and never drawn again. Prompts are drawn up to k
batches ahead of results. A prompt whose last visit has no result yet is postponed within its epoch, so that it is not
drawn again before its retirement is decided.

Each draw goes to the task that is furthest behind its share. With two tasks, the number of draws of a task never
differs from its share by more than half a prompt. With any number of tasks, P consecutive draws have exactly the shares
if P times each share is an integer: no task is ever a whole prompt ahead, so none is behind after P draws either, and
the order repeats. This needs whole numbers, because rounding would break ties in one way or the other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import Any

from scalerl.config import RunConfig
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
    def num_retired(self) -> int:
        """Number of retired prompts."""
        return len(self.retired)

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
        """Record that a visit has no result: its group was dropped or got no reward. A later epoch draws the prompt."""
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


def make_curriculum(config: RunConfig, prompts: Sequence[Prompt]) -> Curriculum | Mixture:
    """Return the curriculum over a training pool: that of the only task, or a mixture with one per task."""
    retire_at = config.recipe.retire_pass_rate
    trained = {task.curve: task.share for task in config.data if task.share > 0}
    if len(config.data) == 1:
        return Curriculum(prompts, config.seed, retire_at)
    pools = {name: [prompt for prompt in prompts if prompt.task == name] for name in trained}
    parts = {name: Curriculum(pool, config.seed, retire_at) for name, pool in pools.items()}
    return Mixture(parts, trained)


def _fraction(share: float) -> Fraction:
    """Return a share as a user means it: 0.1 is a tenth, although the nearest float is not."""
    return Fraction(share).limit_denominator(10**9) or Fraction(share)


class Mixture:
    """Draws visits of several tasks. Once all prompts of a task are retired, the other tasks take over its share."""

    def __init__(self, parts: Mapping[str, Curriculum], shares: Mapping[str, float]) -> None:
        """Start before the first draw.

        Args:
            parts: Curriculum of each task.
            shares: Relative share of the draws of each task, positive; 3 and 1 mean three quarters and one quarter.
        """
        exact = {name: _fraction(share) for name, share in shares.items()}
        unit = lcm(*(share.denominator for share in exact.values()))
        self._parts, self._shares = dict(parts), {name: int(unit * share) for name, share in exact.items()}
        self._drawn = dict.fromkeys(parts, 0)

    @property
    def epoch(self) -> int:
        """Largest number of epochs begun by a task."""
        return max(part.epoch for part in self._parts.values())

    @property
    def num_retired(self) -> int:
        """Number of retired prompts of all tasks."""
        return sum(part.num_retired for part in self._parts.values())

    def draw(self, n: int) -> list[Visit]:
        """Return the next n visits; fewer only if all prompts are retired."""
        visits: list[Visit] = []
        while len(visits) < n and (live := [name for name, part in self._parts.items() if part.live]):
            total, whole = sum(self._drawn.values()), sum(self._shares.values())
            name = max(live, key=lambda name: self._shares[name] * (total + 1) - whole * self._drawn[name])
            (visit,) = self._parts[name].draw(1)
            visits.append(replace(visit, index=total))
            self._drawn[name] += 1
        return visits

    def forget(self, visit: Visit) -> None:
        """Record that a visit has no result: its group was dropped or got no reward."""
        self._parts[visit.prompt.task].forget(visit)

    def record(self, visit: Visit, pass_rate: float) -> None:
        """Record a visit's pass rate, in [0, 1]."""
        self._parts[visit.prompt.task].record(visit, pass_rate)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {"drawn": dict(self._drawn), "tasks": {name: part.state() for name, part in self._parts.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        self._drawn = dict(state["drawn"])
        for name, part in self._parts.items():
            part.load_state(state["tasks"][name])
