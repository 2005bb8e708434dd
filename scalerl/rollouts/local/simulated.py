"""Simulated engines and a simulated trainer around a real coordinator, for tests and benchmarks.

A simulated sequence has only a length. Time is counted in decode steps. An engine keeps a calendar of the steps at
which its sequences end, so that a step costs nothing for the sequences that do not end: 64 engines of 256 slots fit on
one core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalerl.rollouts.activation import AtTick
from scalerl.rollouts.coordinator import Coordinator, Formed, Update
from scalerl.rollouts.engine import Finished, Occupancy, Request, Work
from scalerl.rollouts.schedule import PipelineSchedule, groups_beyond
from scalerl.types import Prompt, Rollout, Visit

Lengths = npt.NDArray[np.int64]
LengthOf = Callable[[Request], int]
"""Returns the number of tokens of a request, at least one."""


def lognormal_lengths(
    mean: float, sigma: float = 1.0, cut: float = 10.0, count: int = 1 << 16
) -> npt.NDArray[np.int64]:
    """Return a population of long-tailed lengths with a mean close to `mean`.

    Args:
        mean: mean length in tokens, approximately.
        sigma: standard deviation of the logarithm.
        cut: longest sequence, in multiples of the mean.
        count: size of the population.
    """
    raw = np.random.default_rng(0).lognormal(-sigma * sigma / 2, sigma, count)
    lengths: Lengths = np.clip(np.rint(mean * raw), 1, round(cut * mean)).astype(np.int64)
    return lengths


def by_key(lengths: Lengths) -> LengthOf:
    """Return a function that selects a length from a population by the request's key."""
    values = lengths.tolist()
    return lambda request: values[request.key % len(values)]


class CalendarEngine:
    """An engine without a model: a sequence is a length, and its tokens are zeros."""

    deterministic = True
    exact_resume = True

    def __init__(self, slots: int, length_of: LengthOf) -> None:
        """Make an engine.

        Args:
            slots: sequences decoded together.
            length_of: function that returns the length of a request.
        """
        self.slots, self._length_of = slots, length_of
        self._steps, self._tokens = 0, 0
        self._waiting: deque[Request] = deque()
        self._running: dict[tuple[int, int], tuple[Request, int]] = {}
        """Requests with the step at which each started, in that order."""
        self._ends: dict[int, list[tuple[int, int]]] = {}
        """The calendar: ids of sequences by their last step."""
        self.version = 0
        """Version of the weights in use."""
        self._versions = np.zeros(1 << 10, np.int32)
        """Version of each step from `_first` to `_noted`; rollouts hold slices of this array."""
        self._first, self._noted = 0, 0

    @property
    def work(self) -> Work:
        """Work done so far."""
        return Work(self._steps, self._tokens, self.slots * self._steps, float(self._tokens))

    def occupancy(self) -> Occupancy:
        """Return how full the engine is."""
        running, waiting = len(self._running), len(self._waiting)
        return Occupancy(self.slots, running, waiting, self.slots - running + 1 - waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start when slots become free."""
        self._waiting.extend(requests)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences; `poll` ignores their entries in the calendar."""
        self._waiting = deque(request for request in self._waiting if request.id not in ids)
        for one in ids:
            self._running.pop(one, None)

    def advance(self) -> None:
        """Do nothing: the work is done in `poll`."""

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Give every running sequence one token; return those that ended."""
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting.popleft()
            self._running[request.id] = (request, self._steps)
            self._ends.setdefault(self._steps + self._length_of(request) - 1, []).append(request.id)
        if not self._running:
            return []
        self._tokens += len(self._running)
        ended = self._ends.pop(self._steps, ())
        self._steps += 1
        if not ended:
            return []
        self._note_versions()
        return [Finished(one, self._rollout(self._running.pop(one)[1])) for one in ended if one in self._running]

    def swap(self, version: int) -> None:
        """Use new weights from the next step on."""
        self._note_versions()
        self.version = version

    def state(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, except the weights."""
        running = [[list(r.id), list(r.prompt), r.key, started] for r, started in self._running.values()]
        waiting = [[list(r.id), list(r.prompt), r.key] for r in self._waiting]
        self._note_versions()
        seen = self._versions[: self._steps - self._first]
        return {
            "counts": [self._steps, self._tokens, self._first],
            "running": running,
            "waiting": waiting,
            "seen": seen,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._steps, self._tokens, self._first = state["counts"]
        self._noted = self._steps
        self._versions = np.concatenate([state["seen"], np.zeros(1 << 10, np.int32)])
        self._waiting = deque(Request(tuple(w[0]), tuple(w[1]), w[2]) for w in state["waiting"])
        self._running, self._ends = {}, {}
        for one, prompt, key, started in state["running"]:
            request = Request(tuple(one), tuple(prompt), key)
            self._running[request.id] = (request, started)
            self._ends.setdefault(started + self._length_of(request) - 1, []).append(request.id)

    def _rollout(self, started: int) -> Rollout:
        length = self._steps - started
        tokens, logps, sampled = _blank(length)
        versions = self._versions[started - self._first : self._steps - self._first]
        return Rollout(tokens, logps, versions, sampled, truncated=False, interrupted=False)

    def _note_versions(self) -> None:
        """Record the version of the steps since the last call; a full array is replaced, as rollouts hold slices."""
        if self._steps - self._first > len(self._versions):
            oldest = min((started for _, started in self._running.values()), default=self._noted)
            kept = self._versions[min(oldest, self._noted) - self._first : self._noted - self._first]
            room = np.zeros(self._steps - self._noted + (1 << 10), np.int32)
            self._versions, self._first = np.concatenate([kept, room]), self._noted - len(kept)
        self._versions[self._noted - self._first : self._steps - self._first] = self.version
        self._noted = self._steps


@cache
def _blank(length: int) -> tuple[Any, Any, Any]:
    """Return tokens, log-probabilities and the sampled mask, shared by all rollouts of this length."""
    return np.zeros(length, np.int32), np.zeros(length, np.float32), np.ones(length, np.bool_)


class Stuck(RuntimeError):
    """The simulation cannot continue: the coordinator waits for an update, and none is being computed."""


@dataclass(slots=True)
class SimulatedTrainer:
    """Simulates the training of a coordinator's batches, one at a time, and sends it updates with new visits.

    Example:
        trainer = SimulatedTrainer(coordinator, visit=lambda i: Visit(prompt, i, i), update_ticks=lambda n: 40.0)
        trainer.start(first=144)
        for formed in trainer.batches(100): ...
    """

    coordinator: Coordinator
    visit: Callable[[int], Visit]
    """Returns the i-th visit of the curriculum."""
    update_ticks: Callable[[int], float]
    """Returns the duration of an update in decode steps, by its number."""
    visits: int = 1 << 60
    """Number of visits in the curriculum; after them it is closed."""
    sends_weights: Callable[[int], bool] = lambda version: True
    on_activation: Callable[[int, int], None] = lambda version, drawn: None
    """Called with a version that became active and the number of visits drawn when it was sent.

    A run saves its state at this point.
    """
    drawn: int = 0
    clock: float = 0.0
    """Decode steps so far, including those during which the generators waited."""
    _done_at: float = 0.0
    _under_way: deque[tuple[float, Update]] = field(default_factory=deque)
    _drawn_after: dict[int, int] = field(default_factory=dict)

    def start(self, first: int) -> None:
        """Start with version 0 and the first visits."""
        self.coordinator.begin(0, self._draw(first))

    def resume(self, sampling_version: int, drawn: int) -> list[Formed]:
        """Resume with a coordinator whose state was restored; return the batches that had not been trained."""
        self.drawn = drawn
        self.coordinator.begin(sampling_version)
        again = self.coordinator.untrained()
        for formed in again:
            self._train(formed)
        return again

    def batches(self, count: int) -> Iterator[Formed]:
        """Yield `count` more batches, or fewer if the curriculum is exhausted.

        Raises:
            Stuck: neither side can continue.
        """
        coordinator, left = self.coordinator, count
        while left > 0:
            while self._under_way and self._under_way[0][0] <= self.clock:
                coordinator.receive(self._under_way.popleft()[1])
            if coordinator.blocked():
                if self._under_way:
                    self.clock = self._under_way[0][0]
                    continue
                if coordinator.stuck() or not coordinator.schedule.closed:
                    raise Stuck(f"no further event: {coordinator.schedule} after {coordinator.ticks} ticks")
                return
            before = coordinator.ticks, coordinator.schedule.active
            formed = coordinator.step(self._activated)
            if not formed and before == (coordinator.ticks, coordinator.schedule.active):
                raise Stuck(f"a step had no effect: {coordinator.schedule} after {coordinator.ticks} ticks")
            self.clock += coordinator.ticks - before[0]
            coordinator.fresh.clear()
            coordinator.late.clear()
            for batch in formed:
                self._train(batch)
                left -= 1
                yield batch

    def _draw(self, wanted: int) -> tuple[Visit, ...]:
        first, self.drawn = self.drawn, min(self.drawn + wanted, self.visits)
        return tuple(map(self.visit, range(first, self.drawn)))

    def _train(self, batch: Formed) -> None:
        self._done_at = max(self._done_at, self.clock) + self.update_ticks(batch.number)
        wanted = self.coordinator.schedule.per_batch + len(batch.dropped)
        visits = self._draw(wanted)
        version = batch.number + 1
        self._drawn_after[version] = self.drawn
        update = Update(version, self.sends_weights(version), visits, closed=len(visits) < wanted)
        self._under_way.append((self._done_at, update))

    def _activated(self) -> None:
        version = self.coordinator.schedule.active
        self.on_activation(version, self._drawn_after.pop(version))


_PROMPTS = [Prompt(f"{i:016x}", "", (1,), "", "none") for i in range(1000)]


def visit_of(index: int) -> Visit:
    """Return the visit of an endless curriculum of 1,000 prompts."""
    return Visit(_PROMPTS[index % len(_PROMPTS)], index // len(_PROMPTS), index)


def visits_ahead(coordinator: Coordinator, rule: str, max_lag: int, longest: float) -> int:
    """Return how many visits a run draws for its first weights; same as Session.initial_visits.

    Args:
        coordinator: coordinator with its engines and group size.
        rule: wait, mask or drop.
        max_lag: maximum staleness in updates.
        longest: longest completion, in multiples of the mean.
    """
    slots = sum(engine.occupancy().slots for engine in coordinator.engines)
    ahead = 0 if rule == "wait" else groups_beyond(slots, coordinator.group_size, longest)
    return coordinator.schedule.per_batch * (max_lag + 1) + ahead


class RuleFigures(NamedTuple):
    """Cost of a staleness rule.

    Example: RuleFigures(occupancy=0.86, length=0.999, stale_share=0.0, dropped_share=0.0)
    """

    occupancy: float
    """Tokens divided by slots x decode steps."""
    length: float
    """Mean length of the trained rollouts divided by that of the population."""
    stale_share: float
    """Share of the tokens in trained groups that are older than `max_lag` updates."""
    dropped_share: float
    """Share of the groups that were dropped."""


def measure_rule(
    rule: str, slots: int, updates: int, per_batch: int = 16, group_size: int = 16, max_lag: int = 8
) -> RuleFigures:
    """Simulate long-tailed lengths and a trainer twice as fast as full engines.

    The first fifth of the updates is a warm-up and is not counted.
    """
    population = lognormal_lengths(40.0)
    engine = CalendarEngine(slots, by_key(population))
    batch_ticks = float(population.mean()) * per_batch * group_size / slots
    schedule = PipelineSchedule(per_batch, AtTick(math.ceil(1.5 * batch_ticks)), max_lag, rule)
    coordinator = Coordinator([engine], schedule, group_size, seed=0)
    trainer = SimulatedTrainer(coordinator, visit_of, update_ticks=lambda number: batch_ticks / 2)
    trainer.start(visits_ahead(coordinator, rule, max_lag, float(population.max() / population.mean())))
    tokens = stale = groups = dropped = 0
    for before in trainer.batches(updates // 5):
        warm = before.stats
    for formed in trainer.batches(updates - updates // 5):
        rollouts = [rollout for group in formed.groups.values() for rollout in group.rollouts]
        tokens += sum(map(len, rollouts))
        stale += sum(int((rollout.versions < formed.number - max_lag).sum()) for rollout in rollouts)
        groups, dropped, end = groups + len(formed.groups), dropped + len(formed.dropped), formed.stats
    return RuleFigures(
        occupancy=(end.tokens - warm.tokens) / (end.slot_steps - warm.slot_steps),
        length=tokens / (groups * group_size) / float(population.mean()),
        stale_share=stale / tokens,
        dropped_share=dropped / (groups + dropped),
    )
