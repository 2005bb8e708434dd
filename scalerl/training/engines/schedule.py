"""Decides when groups may start, which groups form a batch, and which are dropped, without reading a clock.

Staleness bound: update s (counted from 0) may train on a token sampled by version v only if s - v <= k. Each group
therefore has a deadline: the last update that may train on its oldest token. With long-tailed lengths, three rules keep
the bound at different costs (docs/recipe.md):
  wait: a group starts only if it and all open groups can meet their deadlines. A batch takes the earliest deadlines,
        and forms only if the rest can still meet theirs. Updates wait for long sequences; nothing is lost; slots may be
        empty.
  mask: groups are trained in the order in which they finish. Tokens staler than k carry no loss.
  drop: as `mask`, but groups that have missed their deadline are dropped.
To add a schedule, write a class here and add it to SCHEDULES.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from scalerl.training.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.training.engines.activation import ACTIVATIONS, Activation, Following
from scalerl.training.placement.sizes import RunSizes


class Schedule:
    """Base class: keeps the active version, and the batches whose weights are not active yet."""

    def __init__(self, per_batch: int, activation: Activation) -> None:
        """Start before the first group.

        Args:
            per_batch: P, groups in a batch.
            activation: Rule for when new weights become active.
        """
        self.per_batch, self.activation = per_batch, activation
        self.active = 0
        """Version of the weights in use."""
        self.closed = False
        """Whether no more groups will start; the remaining ones form a last batch, which may be smaller."""
        self.next_batch = 0
        """Number of the next batch, and of the update that will train it."""
        self.formed_at: dict[int, int] = {}
        """Tick at which each batch was complete, until the weights trained on it are active."""
        self.started = 0
        """Groups started so far; the next one's index."""

    def __repr__(self) -> str:
        names = ("per_batch", "activation", "active", "closed", "next_batch", "formed_at", "started")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in names)})"

    # ------------------------------------------------------------------------------------------------------- decisions

    def may_start(self) -> bool:
        """Return whether one more group may start under the active weights."""
        raise NotImplementedError

    def start(self) -> int:
        """Count a group as started; return its index."""
        raise NotImplementedError

    def finish(self, index: int) -> None:
        """Count a group as finished."""
        raise NotImplementedError

    def form(self, tick: int) -> list[int] | None:
        """Return the groups of the next batch if it is complete at this tick, in the order they were started."""
        raise NotImplementedError

    def expired(self) -> list[int]:
        """Return the groups that no update may train on any more, and forget them."""
        return []

    def due(self, tick: int, idle: bool) -> bool:
        """Return whether the generators must wait for the next version before this tick.

        Args:
            tick: The next tick.
            idle: Whether no sequence runs and none may start with the active weights.
        """
        formed_at = self.formed_at.get(self.active)  # the next version is trained on this batch
        return formed_at is not None and (idle or self.activation.due(tick, formed_at))

    # ------------------------------------------------------------------------------------------------------- versions

    def on_arrival(self, version: int) -> bool:
        """Return whether a version that has arrived becomes active at once."""
        return self.activation.on_arrival and version - 1 in self.formed_at

    def activate(self, version: int) -> None:
        """Make a version the active one."""
        assert version == self.active + 1, (version, self.active)
        del self.formed_at[self.active]
        self.active = version

    def _formed(self, tick: int, groups: list[int]) -> list[int]:
        self.formed_at[self.next_batch] = tick
        self.next_batch += 1
        self.activation = self.activation.formed(tick)
        return sorted(groups)

    # ---------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        formed = [[batch, tick] for batch, tick in self.formed_at.items()]
        return {"counts": [self.active, self.next_batch, self.started], "formed_at": formed, "closed": self.closed}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.active, self.next_batch, self.started = state["counts"]
        self.formed_at = {int(batch): int(tick) for batch, tick in state["formed_at"]}
        self.closed = state["closed"]


class StaleRule(NamedTuple):
    """How groups are handled whose oldest token becomes too stale."""

    by_deadline: bool
    """Whether groups start only if all can meet their deadlines, and batches take the earliest deadlines. Otherwise
    batches take groups in the order in which they finish."""
    drops: bool
    """Whether groups that have missed their deadline are dropped."""


STALE_RULES = {
    "wait": StaleRule(by_deadline=True, drops=False),
    "mask": StaleRule(by_deadline=False, drops=False),
    "drop": StaleRule(by_deadline=False, drops=True),
}
"""Rules by `recipe.off_policy.stale`."""


class PipelineSchedule(Schedule):
    """PipelineRL-k: groups start continuously, under one of the three rules.

    Example: PipelineSchedule(16, AtTick(42), max_lag=8, stale="wait")
    """

    def __init__(
        self,
        per_batch: int,
        activation: Activation,
        max_lag: int,
        stale: str = "wait",
        most_untrained: float = math.inf,
    ) -> None:
        """Start before the first group.

        Args:
            per_batch: P, groups in a batch.
            activation: Rule for when new weights become active.
            max_lag: k, maximum staleness in updates.
            stale: Key of STALE_RULES.
            most_untrained: Maximum number of groups that are under way, finished, or in batches whose update is not
                active yet.
        """
        super().__init__(per_batch, activation)
        self.max_lag, self.rule, self.most_untrained = max_lag, STALE_RULES[stale], most_untrained
        self._deadline: dict[int, int] = {}
        """Deadline of every open group, which has started and is neither in a batch nor dropped."""
        self._by_deadline: Counter[int] = Counter()
        """Number of open groups per deadline; there are only a few different deadlines."""
        self._done: dict[int, deque[int]] = {}
        """Finished open groups in the order of finishing: one queue per deadline under `wait`, otherwise one queue."""

    def may_start(self) -> bool:
        """Return whether one more group may start under the active weights."""
        if len(self._deadline) + len(self.formed_at) * self.per_batch >= self.most_untrained:
            return False
        if self.rule.by_deadline:
            return self._fits(self.next_batch, extra=self.active + self.max_lag)
        # counts only finished groups: long sequences must not hold back the others
        return self.next_batch + self._finished() // self.per_batch <= self.active + self.max_lag

    def start(self) -> int:
        """Count a group as started; return its index."""
        index, self.started = self.started, self.started + 1
        self._deadline[index] = self.active + self.max_lag
        self._by_deadline[self.active + self.max_lag] += 1
        return index

    def finish(self, index: int) -> None:
        """Count a group as finished."""
        rank = self._deadline[index] if self.rule.by_deadline else 0
        self._done.setdefault(rank, deque()).append(index)

    def form(self, tick: int) -> list[int] | None:
        """Return the groups of the next batch if it is complete at this tick, in the order they were started."""
        finished = self._finished()
        last = self.closed and 0 < finished == len(self._deadline) <= self.per_batch
        if finished < self.per_batch and not last:
            return None
        if self.rule.by_deadline:
            open_counts, remaining = self._by_deadline.copy(), self.per_batch
            for deadline in sorted(self._done):  # the groups that `_take` would return
                count = min(remaining, len(self._done[deadline]))
                open_counts[deadline] -= count
                remaining -= count
            if not self._fits(self.next_batch + 1, counts=open_counts):
                return None  # this update would make an open group miss its deadline: wait for it
        groups = self._take(self.per_batch)
        self._close(groups)
        return self._formed(tick, groups)

    def expired(self) -> list[int]:
        """Return the groups that have missed their deadline, under `drop`, and forget them."""
        if not self.rule.drops or min(self._by_deadline, default=self.next_batch) >= self.next_batch:
            return []
        late = sorted(index for index, deadline in self._deadline.items() if deadline < self.next_batch)
        self._close(late)
        in_time = [index for index in self._take(self._finished()) if index in self._deadline]
        self._done = {0: deque(in_time)} if in_time else {}
        return late

    def _finished(self) -> int:
        return sum(map(len, self._done.values()))

    def _fits(self, first: int, extra: int | None = None, counts: Counter[int] | None = None) -> bool:
        """Return whether open groups meet their deadlines if updates from number `first` on train on P groups each.

        Args:
            first: Number of the next update.
            extra: Deadline of one additional group.
            counts: Number of open groups per deadline; None: all open groups.
        """
        counts = self._by_deadline if counts is None else counts
        deadlines = set(counts) if extra is None else {*counts, extra}
        before = 0
        for deadline in sorted(deadlines):
            before += counts[deadline] + (deadline == extra)
            if before and first + (before - 1) // self.per_batch > deadline:
                return False
        return True

    def _take(self, count: int) -> list[int]:
        """Remove and return finished groups: by deadline under `wait`, otherwise in the order of finishing."""
        groups: list[int] = []
        for rank in sorted(self._done):
            queue = self._done[rank]
            while queue and len(groups) < count:
                groups.append(queue.popleft())
            if not queue:
                del self._done[rank]
        return groups

    def _close(self, indices: list[int]) -> None:
        for index in indices:
            deadline = self._deadline.pop(index)
            self._by_deadline[deadline] -= 1
            if not self._by_deadline[deadline]:
                del self._by_deadline[deadline]

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        done = [[rank, list(queue)] for rank, queue in self._done.items()]
        return {**super().state(), "deadlines": [[i, d] for i, d in self._deadline.items()], "done": done}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._deadline = {int(index): int(deadline) for index, deadline in state["deadlines"]}
        self._by_deadline = Counter(self._deadline.values())
        self._done = {int(rank): deque(queue) for rank, queue in state["done"]}


class RoundSchedule(Schedule):
    """PPO-off-policy-k: k batches are sampled with one frozen policy, then trained on, then the next k are sampled.

    Batches follow the order of starting, so that the updates of a round are not sorted by length.

    Example: RoundSchedule(16, AtTick(0), batches=8)
    """

    def __init__(self, per_batch: int, activation: Activation, batches: int) -> None:
        """Start before the first round.

        Args:
            per_batch: P, groups in a batch.
            activation: Rule for when versions within a round become active; no sequence is sampled with them.
            batches: k, batches per round.
        """
        super().__init__(per_batch, activation)
        self.batches = batches
        self._open: dict[int, bool] = {}
        """Whether each group has finished, for groups in no batch, in the order of starting."""

    def may_start(self) -> bool:
        """Return whether the current round has groups to start."""
        first = self.active - self.active % self.batches  # the version that opened the round
        return self.started < (first + self.batches) * self.per_batch

    def start(self) -> int:
        """Count a group as started; return its index."""
        index, self.started = self.started, self.started + 1
        self._open[index] = False
        return index

    def finish(self, index: int) -> None:
        """Count a group as finished."""
        self._open[index] = True

    def form(self, tick: int) -> list[int] | None:
        """Return the groups of the next batch if it is complete at this tick, in the order they were started."""
        groups = list(islice(self._open, self.per_batch))
        full = len(groups) == self.per_batch or (self.closed and bool(groups))
        if not full or not all(self._open[index] for index in groups):
            return None
        for index in groups:
            del self._open[index]
        return self._formed(tick, groups)

    def due(self, tick: int, idle: bool) -> bool:
        """Return whether the generators must wait for the next version: when the round is done."""
        return self.active in self.formed_at and idle

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {**super().state(), "open": [[index, done] for index, done in self._open.items()]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._open = {int(index): bool(done) for index, done in state["open"]}


def first_visits(run: RunSizes) -> int:
    """Return how many prompts a run draws for its first weights: those of k + 1 batches.

    If groups need not wait for longer ones, the prompts that start while the longest completion is sampled are added.
    """
    rule = run.recipe.off_policy
    visits = run.recipe.prompts_per_step * (rule.max_lag + 1)
    return visits if rule.waits else visits + _groups_in_flight(run)


def most_untrained(run: RunSizes) -> int:
    """Return how many groups may be started but not trained on yet, if weights are used on arrival.

    Without a limit, a fast generator fills the queue until every token is k updates stale. The limit covers the groups
    that fill the slots, one batch in training, and the `rollouts.ahead` batches that may wait.
    """
    return _groups_in_flight(run) + (1 + run.ahead) * run.recipe.prompts_per_step


def _groups_in_flight(run: RunSizes) -> int:
    """Return how many groups start while the longest completion is sampled, if it does not hold back the others."""
    longest = run.recipe.length.max_tokens / run.expected_tokens
    return math.ceil(run.slots / run.recipe.generations_per_prompt * longest)


def _pipeline(rule: PipelineRL, per_batch: int, activation: Activation, most: float = math.inf) -> Schedule:
    return PipelineSchedule(per_batch, activation, rule.max_lag, rule.stale, most)


def _rounds(rule: PpoOffPolicy, per_batch: int, activation: Activation, most: float = math.inf) -> Schedule:
    return RoundSchedule(per_batch, activation, rule.batches)  # a round is limited by its own size


SCHEDULES: dict[str, Callable[..., Schedule]] = {"pipeline": _pipeline, "ppo-off-policy": _rounds}
"""By `recipe.off_policy.kind`; each factory takes the recipe's settings, P, the activation rule and the maximum number
of untrained groups."""


def schedule_of(run: RunSizes) -> Schedule:
    """Return the schedule of a run, before its first group."""
    recipe = run.recipe
    activation = Following(run.lag_ticks) if run.lag_follows else ACTIVATIONS[run.schedule](run.lag_ticks)
    most = most_untrained(run) if activation.on_arrival else math.inf
    return SCHEDULES[recipe.off_policy.kind](recipe.off_policy, recipe.prompts_per_step, activation, most)
