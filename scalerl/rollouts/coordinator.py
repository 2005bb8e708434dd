"""One generator: an engine, a schedule and the groups under way, advanced a tick at a time. It knows no processes.

Everything it does is a function of the prompts and weights it was given, in the order of their versions; when they
arrive does not matter (but in the eager schedule).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.rng import stream_key
from scalerl.rollouts.engine import Engine, Finished, Request
from scalerl.rollouts.schedule import Schedule
from scalerl.serialization import from_plain, to_plain
from scalerl.types import GeneratorStats, Group, Rollout, Visit


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The groups that one update trains.

    Example: RolloutBatch(number=7, groups=(Group(...), ...), stats=GeneratorStats(...))
    """

    number: int
    """The update that trains it, counted from 0; also the version of the weights it will be trained from."""
    groups: tuple[Group, ...]
    stats: GeneratorStats
    """The generator's counters when the batch was complete."""


@dataclass(frozen=True, slots=True)
class Update:
    """What the trainer hands the generator after each update.

    Example: Update(version=8, weights=block, visits=(Visit(...), ...), closed=False, lag_ticks=40)
    """

    version: int
    weights: Any
    """In the engine's form; None where no sequence will be sampled with this version."""
    visits: tuple[Visit, ...] = ()
    """Prompts that may be started once this version is active."""
    closed: bool = False
    """The curriculum has no more prompts."""
    lag_ticks: int = -1
    """The schedule's lag, where the trainer has measured it."""


@dataclass(slots=True)
class _Open:
    """A group under way."""

    visit: Visit
    rollouts: list[Rollout | None]


@dataclass(slots=True)
class Clock:
    """Seconds of this generator, by what they were spent on."""

    busy_s: float = 0.0
    idle_s: float = 0.0
    swap_s: float = 0.0


@dataclass(slots=True)
class Generator:
    """Starts groups, ticks the engine, forms batches, swaps weights."""

    engine: Engine
    schedule: Schedule
    group_size: int
    """G: samples of each prompt."""
    seed: int
    clock: Clock = field(default_factory=Clock)
    ticks: int = 0
    """Decode steps done since the run began."""
    _queue: deque[Visit] = field(default_factory=deque)
    _updates: dict[int, Update] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _done: dict[int, Group] = field(default_factory=dict)
    _untrained: dict[int, RolloutBatch] = field(default_factory=dict)
    _weights: Any = None

    def begin(self, weights: Any, version: int, visits: Sequence[Visit] = ()) -> None:
        """Load the weights and prompts to start from: version 0, or those a restored state was sampling with."""
        self.engine.load_weights(version, weights)
        self._weights = weights
        self._queue.extend(visits)

    def receive(self, update: Update) -> None:
        """Take note of a version; it becomes active when the schedule says so."""
        self._updates[update.version] = update

    def blocked(self) -> bool:
        """Return whether nothing can be done before another update arrives."""
        if self.schedule.active + 1 in self._updates:
            return False
        idle = self._idle()
        return idle or self.schedule.due(self.ticks, idle)

    def stuck(self) -> bool:
        """Return whether the batch that the trainer waits for can never come: a fault of the schedule, not a wait.

        The next version is trained on the batch of the active one; if that is neither formed nor under way, no version
        will come, and nothing else brings prompts.
        """
        waiting = self.schedule.active in self.schedule.formed_at or self.schedule.active + 1 in self._updates
        return not waiting and not self.schedule.closed and self._idle()

    def step(self, on_activation: Callable[[], None] = lambda: None) -> list[RolloutBatch]:
        """Swap in what is due, start what may start, do one tick; return the batches it completed.

        Args:
            on_activation: called after each version that became active; several may before one tick.
        """
        began = time.perf_counter()
        self._activate(on_activation)
        if self.blocked() and not self._idle():
            return []  # two versions are due before this tick, and only the first has come: wait for the second
        self._start_groups()
        batches: list[RolloutBatch] = []
        if self.engine.busy():
            for finished in self.engine.tick():
                self._collect(finished)
            self.ticks += 1
        self.clock.busy_s += time.perf_counter() - began
        while (chosen := self.schedule.form(self.ticks)) is not None:
            number = self.schedule.next_batch - 1
            groups = tuple(self._done.pop(index) for index in chosen)
            batches.append(RolloutBatch(number, groups, self._stats()))
            self._untrained[number] = batches[-1]
        return batches

    def untrained(self) -> list[RolloutBatch]:
        """Return the batches whose update is not active yet: after a restore they are handed out again."""
        return [self._untrained[number] for number in sorted(self._untrained)]

    def active_weights(self) -> Any:
        """Return the weights in use, for whoever swapped in others for a while."""
        return self._weights

    def _idle(self) -> bool:
        may_start = bool(self._queue) and self.schedule.may_start()
        return not self.engine.busy() and not may_start

    def _activate(self, on_activation: Callable[[], None]) -> None:
        while (update := self._updates.get(self.schedule.active + 1)) is not None:
            arrived = self.schedule.eager and update.version - 1 in self.schedule.formed_at
            if not arrived and not self.schedule.due(self.ticks, self._idle()):
                return
            began = time.perf_counter()
            self.schedule.activate(update.version)
            self._untrained.pop(update.version - 1)
            del self._updates[update.version]
            self._queue.extend(update.visits)
            self.schedule.closed |= update.closed
            if update.lag_ticks >= 0:
                self.schedule.lag_ticks = update.lag_ticks
            if update.weights is not None:
                self.engine.load_weights(update.version, update.weights)
                self._weights = update.weights
                self.clock.swap_s = time.perf_counter() - began
            on_activation()

    def _start_groups(self) -> None:
        while self._queue and self.engine.room() > 0 and self.schedule.may_start():
            visit = self._queue.popleft()
            index = self.schedule.start()
            self._open[index] = _Open(visit, [None] * self.group_size)
            self.engine.add(
                [
                    Request((index, sample), visit.prompt.tokens, sample_key(self.seed, visit, sample))
                    for sample in range(self.group_size)
                ]
            )

    def _collect(self, finished: Finished) -> None:
        index, sample = finished.id
        group = self._open[index]
        group.rollouts[sample] = finished.rollout
        rollouts = tuple(r for r in group.rollouts if r is not None)
        if len(rollouts) == self.group_size:
            del self._open[index]
            oldest = min(int(r.versions[0]) for r in rollouts)
            self._done[index] = Group(group.visit, rollouts, oldest)
            self.schedule.finish(index)

    def _stats(self) -> GeneratorStats:
        work, clock = self.engine.work, self.clock
        return GeneratorStats(self.ticks, work.tokens, work.flops, clock.busy_s, clock.idle_s, clock.swap_s)

    # --------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on exactly. Received versions that wait are left out: they come again."""
        return {
            "engine": self.engine.state(),
            "schedule": self.schedule.state(),
            "ticks": self.ticks,
            "queue": [to_plain(v) for v in self._queue],
            "open": {str(i): [to_plain(o.visit), [to_plain(r) for r in o.rollouts]] for i, o in self._open.items()},
            "done": {str(i): to_plain(group) for i, group in self._done.items()},
            "untrained": [to_plain(batch) for batch in self.untrained()],
            "clock": [self.clock.busy_s, self.clock.idle_s],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; `begin` must follow with the weights of the engine's version."""
        self.engine.load_state(state["engine"])
        self.schedule.load_state(state["schedule"])
        self.ticks = state["ticks"]
        self._queue = deque(from_plain(Visit, v) for v in state["queue"])
        self._open = {
            int(i): _Open(from_plain(Visit, visit), [None if r is None else from_plain(Rollout, r) for r in rollouts])
            for i, (visit, rollouts) in state["open"].items()
        }
        self._done = {int(i): from_plain(Group, group) for i, group in state["done"].items()}
        batches = [from_plain(RolloutBatch, batch) for batch in state["untrained"]]
        self._untrained = {batch.number: batch for batch in batches}
        self.clock.busy_s, self.clock.idle_s = state["clock"]


def sample_key(seed: int, visit: Visit, sample: int) -> int:
    """Return the key of a training sample's random stream."""
    return stream_key(seed, "train", visit.prompt.id, visit.number, sample)


def generate(engine: Engine, visits: Sequence[Visit], samples: int, seed: int, purpose: str) -> list[Group]:
    """Run an engine over a fixed list of prompts until all are done.

    Args:
        engine: idle; its weights are used as they are.
        visits: the prompts.
        samples: rollouts of each.
        seed: of the streams.
        purpose: keeps the streams apart from those of training.

    Returns:
        One group a visit, in order.
    """
    requests = [
        Request((i, s), visit.prompt.tokens, stream_key(seed, purpose, visit.prompt.id, visit.number, s))
        for i, visit in enumerate(visits)
        for s in range(samples)
    ]
    rollouts: dict[tuple[int, int], Rollout] = {}
    engine.add(requests)
    while engine.busy():
        rollouts |= {done.id: done.rollout for done in engine.tick()}
    groups = [tuple(rollouts[i, s] for s in range(samples)) for i in range(len(visits))]
    return [Group(visit, g, engine.version) for visit, g in zip(visits, groups, strict=True)]
