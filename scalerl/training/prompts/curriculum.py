"""Epochs over shuffled prompts with No-Positive-Resampling (ScaleRL sec. 3.2), and several tasks in fixed shares.

A prompt whose latest pass rate reaches the threshold is retired and never drawn again. Prompts are drawn up to k
batches ahead of results. A prompt whose last visit has no result yet is postponed within its epoch, so that it is not
drawn again before its retirement is decided.

Each draw goes to the task that is furthest behind its share. With two tasks, the number of draws of a task never
differs from its share by more than half a prompt. With any number of tasks, P consecutive draws have exactly the shares
if P times each share is an integer: no task is ever a whole prompt ahead, so none is behind after P draws either, and
the order repeats. This needs whole numbers, because rounding would break ties in one way or the other.

Axes in names: P prompts of a pool.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from scalerl.core.rng import stream_key
from scalerl.core.types import Prompt, Visit
from scalerl.training.config.data import TaskData


class Curriculum:
    """Draws visits and records their pass rates. Its state is part of every checkpoint."""

    def __init__(self, prompts: Sequence[Prompt], seed: int, retire_at: float | None) -> None:
        """Start before the first epoch.

        Args:
            prompts: Training pool.
            seed: Seed of the shuffles.
            retire_at: Smallest pass rate at which a prompt is retired; None: prompts are never retired.
        """
        self._prompts = sorted(prompts, key=lambda prompt: prompt.id)
        """A prompt's number is its index in this list, which does not depend on the order of the pool."""
        self._numbers = {prompt.id: number for number, prompt in enumerate(self._prompts)}
        self._seed, self._retire_at = seed, retire_at
        self.epoch = 0
        """Number of epochs begun."""
        self.num_retired = 0
        """Number of retired prompts."""
        self._retired_P = np.zeros(len(self._prompts), np.bool_)
        self._pass_rates_P = np.full(len(self._prompts), np.nan)
        self._visits_P = np.zeros(len(self._prompts), np.int32)
        self._order: deque[int] = deque()
        self._awaited: Counter[int] = Counter()
        self._drawn = 0

    @property
    def retired(self) -> set[str]:
        """Ids of the retired prompts."""
        return {self._prompts[number].id for number in np.flatnonzero(self._retired_P)}

    @property
    def pass_rates(self) -> dict[str, float]:
        """Latest pass rate of each prompt visited."""
        visited = np.flatnonzero(~np.isnan(self._pass_rates_P))
        return {self._prompts[number].id: float(self._pass_rates_P[number]) for number in visited}

    @property
    def live(self) -> int:
        """Number of prompts that are not retired."""
        return len(self._prompts) - self.num_retired

    def draw(self, n: int) -> list[Visit]:
        """Return the next n visits; fewer only if all prompts are retired."""
        visits: list[Visit] = []
        while len(visits) < n and self.live:
            if not self._order:
                self._begin_epoch()
            number = self._next()
            if number is not None:
                visits.append(Visit(self._prompts[number], int(self._visits_P[number]), self._drawn))
                self._visits_P[number] += 1
                self._awaited[number] += 1
                self._drawn += 1
        return visits

    def forget(self, visit: Visit) -> None:
        """Record that a visit has no result: its group was dropped or got no reward. A later epoch draws the prompt."""
        number = self._numbers[visit.prompt.id]
        self._awaited[number] -= 1
        if not self._awaited[number]:
            del self._awaited[number]

    def record(self, visit: Visit, pass_rate: float) -> None:
        """Record a visit's pass rate, in [0, 1]."""
        number = self._numbers[visit.prompt.id]
        self.forget(visit)
        self._pass_rates_P[number] = pass_rate
        if self._retire_at is not None and pass_rate >= self._retire_at:
            self.num_retired += not self._retired_P[number]
            self._retired_P[number] = True

    def _begin_epoch(self) -> None:
        self.epoch += 1
        live = np.flatnonzero(~self._retired_P)
        keys = (stream_key(self._seed, "epoch", self.epoch, self._prompts[number].id) for number in live)
        self._order = deque(live[np.argsort(np.fromiter(keys, np.uint64, len(live)), kind="stable")].tolist())

    def _next(self) -> int | None:
        """Return the next prompt of the epoch, or None at its end; prompts that await a result go to the end."""
        for _ in range(len(self._order)):
            number = self._order.popleft()
            if self._retired_P[number]:
                continue
            if self._retire_at is None or not self._awaited[number]:
                return number
            self._order.append(number)
        # all remaining prompts await results, because the pool is smaller than the number of prompts drawn ahead;
        # waiting would starve the generator
        return self._order.popleft() if self._order else None

    def state(self) -> dict[str, Any]:
        """Return the state as arrays and plain values: 17 bytes per prompt."""
        return {
            "epoch": self.epoch,
            "order": np.fromiter(self._order, np.int32, len(self._order)),
            "retired": self._retired_P.copy(),
            "pass_rates": self._pass_rates_P.copy(),
            "visits": self._visits_P.copy(),
            "awaited": [list(pair) for pair in self._awaited.items()],
            "drawn": self._drawn,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        assert len(state["retired"]) == len(self._prompts), (len(state["retired"]), len(self._prompts))
        self.epoch, self._drawn = state["epoch"], state["drawn"]
        self._order = deque(state["order"].tolist())
        self._retired_P, self._pass_rates_P, self._visits_P = (
            state[name].copy() for name in ("retired", "pass_rates", "visits")
        )
        self.num_retired = int(self._retired_P.sum())
        self._awaited = Counter({number: count for number, count in state["awaited"]})


def make_curriculum(
    tasks: Sequence[TaskData], prompts: Sequence[Prompt], seed: int, retire_at: float | None
) -> Curriculum | Mixture:
    """Return the curriculum over a training pool: that of the only task, or a mixture with one per task."""
    trained = {task.curve: task.share for task in tasks if task.share > 0}
    if len(tasks) == 1:
        return Curriculum(prompts, seed, retire_at)
    pools = {name: [prompt for prompt in prompts if prompt.task == name] for name in trained}
    parts = {name: Curriculum(pool, seed, retire_at) for name, pool in pools.items()}
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
            total, share_sum = sum(self._drawn.values()), sum(self._shares.values())
            name = max(live, key=lambda name: self._shares[name] * (total + 1) - share_sum * self._drawn[name])
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
