"""One schedule over one or many engines: starts groups, forms batches, swaps weights, evaluates.

Deterministic engines do a decode step together. Everything the coordinator does is then a function of the prompts and
weights it was given, in the order of their versions; when they arrive does not matter (but to OnArrival). Engines that
run on their own are asked what has finished, and a version is active when all of them use it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.rng import stream_key
from scalerl.rollouts.engine import POLL_S, Engine, Finished, Request, Work
from scalerl.rollouts.generate import generate
from scalerl.rollouts.schedule import Schedule
from scalerl.rollouts.seconds import Seconds
from scalerl.serialization import from_plain, to_plain
from scalerl.types import GeneratorStats, Group, Rollout, Visit


@dataclass(frozen=True, slots=True)
class Formed:
    """A batch that is complete: the groups that one update trains.

    Example: Formed(number=7, groups={112: Group(...), 114: Group(...)}, stats=GeneratorStats(...), dropped=())
    """

    number: int
    """The update that trains it, counted from 0; also the version of the weights it will be trained from."""
    groups: dict[int, Group]
    """By index, in the order in which they were started."""
    stats: GeneratorStats
    """The generators' counters when the batch was complete."""
    dropped: tuple[Visit, ...] = ()
    """Visits dropped since the batch before, because no update could train them in time."""


@dataclass(frozen=True, slots=True)
class Update:
    """What the trainer hands the coordinator after each update.

    Example: Update(version=8, weights=True, visits=(Visit(...), ...), closed=False, lag_ticks=-1)
    """

    version: int
    weights: bool = True
    """Whether the weights were sent; False where no sequence will be sampled with this version."""
    visits: tuple[Visit, ...] = ()
    """Prompts that may be started once this version is active."""
    closed: bool = False
    """The curriculum has no more prompts."""
    lag_ticks: int = -1
    """The activation's lag, where the trainer has measured it."""


@dataclass(slots=True)
class _Open:
    """A group under way, and the engine that samples it."""

    visit: Visit
    rollouts: list[Rollout | None]
    engine: int
    missing: int = field(init=False)
    """Rollouts that have not finished."""

    def __post_init__(self) -> None:
        self.missing = self.rollouts.count(None)


@dataclass(slots=True)
class Coordinator:
    """Admission, batches, activation and evaluation, over one or many engines."""

    engines: Sequence[Engine]
    schedule: Schedule
    group_size: int
    """G: samples of each prompt."""
    seed: int
    evaluators: Sequence[Engine] = ()
    """Engines that share their weights with those above, by position, and sample held-out prompts."""
    lockstep: bool = field(init=False)
    """Whether all engines do their decode steps together."""
    seconds: Seconds = field(default_factory=Seconds)
    ticks: int = 0
    """Decode steps done since the run began: one of every engine that has work. Polls that found something, where
    engines run on their own."""
    finished: dict[int, Group] = field(default_factory=dict)
    """Groups that finished and are in no batch yet."""
    fresh: list[tuple[int, Group]] = field(default_factory=list)
    """Groups that finished and were not handed out for scoring, with their indices; the caller empties it."""
    late: list[int] = field(default_factory=list)
    """Indices of groups that were dropped; the caller empties it."""
    _queue: deque[Visit] = field(default_factory=deque)
    _updates: dict[int, Update] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _untrained: dict[int, Formed] = field(default_factory=dict)
    _dropped: list[Visit] = field(default_factory=list)
    _last: bool = False
    """No visits will come but those in the queue."""
    _asked: int = -1
    """Version that the engines were last asked to use."""
    _asked_at: float = 0.0
    _quiet: bool = False
    """The last poll of engines that run on their own found nothing."""
    _work_before: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        self.lockstep = all(engine.deterministic for engine in self.engines)

    # ------------------------------------------------------------------------------------------------------- messages

    def begin(self, version: int, visits: Sequence[Visit] = ()) -> None:
        """Load the weights and take the prompts to start from: version 0, or that of a restored state."""
        self._swap(version)
        self._queue.extend(visits)

    def receive(self, update: Update) -> None:
        """Take note of a version; it becomes active when the schedule says so."""
        self._updates[update.version] = update

    @property
    def sampling_version(self) -> int:
        """Version of the weights in use: the smallest of any engine's."""
        return min(engine.version for engine in self.engines)

    def needed_versions(self) -> set[int]:
        """Return the versions whose weights are in use or wait for their activation."""
        return {self.sampling_version, *(version for version, update in self._updates.items() if update.weights)}

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

    # ----------------------------------------------------------------------------------------------------------- work

    def step(self, on_activation: Callable[[], None] = lambda: None) -> list[Formed]:
        """Swap in what is due, start what may start, let every engine do a step; return the batches it completed.

        Args:
            on_activation: called after each version that became active; several may before one tick. What it does,
                such as an evaluation, does not count as generation.
        """
        began = time.perf_counter()
        self._activate(self.seconds.aside(on_activation))
        if self.blocked() and not self._idle():
            return []  # two versions are due before this tick, and only the first has come: wait for the second
        self._start_groups()
        busy = self._busy()
        if not self.lockstep:
            self._poll()
        elif busy:
            for engine in self.engines:
                engine.advance()
            for engine in self.engines:
                for finished in engine.poll():
                    self._collect(finished)
            self.ticks += 1
        elapsed = self.seconds.since(began)
        if busy or self.lockstep:
            self.seconds.busy += elapsed
        else:
            self.seconds.idle += elapsed
        batches: list[Formed] = []
        while (chosen := self.schedule.form(self.ticks)) is not None:
            number = self.schedule.next_batch - 1
            groups = {index: self.finished.pop(index) for index in chosen}
            self._drop(self.schedule.expired())
            batches.append(Formed(number, groups, self.stats(), tuple(self._dropped)))
            self._dropped.clear()
            self._untrained[number] = batches[-1]
        return batches

    def untrained(self) -> list[Formed]:
        """Return the batches whose update is not active yet: after a restore they are handed out again."""
        return [self._untrained[number] for number in sorted(self._untrained)]

    def evaluate(self, version: int, visits: Sequence[Visit], samples: int | Sequence[int]) -> list[Group]:
        """Sample held-out prompts to their end, with the training sequences held still; one group a visit, in order.

        Args:
            version: of the weights to evaluate. Within a frozen round it is not the one in use; that is swapped back.
            visits: the prompts.
            samples: rollouts of each; one number, or one a visit.
        """
        held = self.sampling_version
        if held != version:
            self._swap(version)
        began, before = time.perf_counter(), self._tokens()
        groups = generate(self.evaluators, visits, samples, self.seed, "evaluate")
        training, evaluating = (now - then for now, then in zip(self._tokens(), before, strict=True))
        # a vLLM server still samples training sequences: their share of the tokens counts as generation
        self.seconds.busy += (time.perf_counter() - began) * training / max(1, training + evaluating)
        if held != version:
            self._swap(held)
        return groups

    def stats(self) -> GeneratorStats:
        """Return the counters so far."""
        work, seconds = sum((engine.work for engine in self.engines), self._work_before), self.seconds
        return GeneratorStats(
            self.ticks,
            work.tokens,
            work.flops,
            work.slot_steps,
            seconds.busy,
            seconds.idle,
            seconds.swap,
            work.restarts,
            work.resampled,
        )

    def _tokens(self) -> tuple[int, int]:
        """Return the tokens sampled so far by the engines for training, and by those for evaluation."""
        training, evaluating = (sum(e.work.tokens for e in some) for some in (self.engines, self.evaluators))
        return training, evaluating

    def _busy(self) -> bool:
        return any(engine.occupancy().busy for engine in self.engines)

    def _poll(self) -> None:
        """Collect what engines that run on their own have finished; wait a little where there was nothing before."""
        wait_s = POLL_S / len(self.engines) if self._quiet else 0.0
        found = [finished for engine in self.engines for finished in engine.poll(wait_s)]
        for finished in found:
            self._collect(finished)
        self._quiet = not found
        self.ticks += bool(found)

    def _idle(self) -> bool:
        may_start = bool(self._queue) and self.schedule.may_start()
        return not may_start and not self._busy()

    def _ask(self, version: int) -> bool:
        """Ask all engines to use a version, once; return whether all of them do."""
        if self._asked != version:
            self._asked, self._asked_at = version, time.perf_counter()
            for engine in self.engines:
                engine.swap(version)
        return all(engine.version == version for engine in self.engines)

    def _swap(self, version: int) -> None:
        """Wait until all engines use a version; what they finish meanwhile is kept."""
        while not self._ask(version):
            self._poll()

    def _activate(self, on_activation: Callable[[], None]) -> None:
        while (update := self._updates.get(self.schedule.active + 1)) is not None:
            if not self.schedule.on_arrival(update.version) and not self.schedule.due(self.ticks, self._idle()):
                return
            if update.weights and not self.lockstep and not self._ask(update.version):
                return  # engines that run on their own swap in their own time, and are polled meanwhile
            self.schedule.activate(update.version)
            self._untrained.pop(update.version - 1)
            del self._updates[update.version]
            self._queue.extend(update.visits)
            self._last |= update.closed
            if update.lag_ticks >= 0:
                self.schedule.activation = self.schedule.activation.measured(update.lag_ticks)
            if update.weights:
                self._swap(update.version)
                self.seconds.swap = time.perf_counter() - self._asked_at
            on_activation()

    def _start_groups(self) -> None:
        self._fill()
        self.schedule.closed = self._last and not self._queue  # before, a small batch would not be the last one

    def _fill(self) -> None:
        if not self._queue:
            return
        rooms = [engine.occupancy().room for engine in self.engines]
        while self._queue and self.schedule.may_start():
            number = max(range(len(rooms)), key=rooms.__getitem__)  # the first of those with the most room
            if rooms[number] <= 0:
                return
            visit = self._queue.popleft()
            index = self.schedule.start()
            self._open[index] = _Open(visit, [None] * self.group_size, number)
            self._submit(index, range(self.group_size))
            rooms[number] -= self.group_size

    def _submit(self, index: int, samples: Sequence[int]) -> None:
        group = self._open[index]
        prompt, visit = group.visit.prompt.tokens, group.visit
        self.engines[group.engine].submit(
            [Request((index, s), prompt, sample_key(self.seed, visit, s)) for s in samples]
        )

    def _collect(self, finished: Finished) -> None:
        index, sample = finished.id
        group = self._open[index]
        group.rollouts[sample] = finished.rollout
        group.missing -= 1
        if not group.missing:
            del self._open[index]
            rollouts = tuple(r for r in group.rollouts if r is not None)
            oldest = min(int(r.versions[0]) for r in rollouts)
            self.finished[index] = Group(group.visit, rollouts, oldest)
            self.fresh.append((index, self.finished[index]))
            self.schedule.finish(index)

    def _drop(self, indices: Sequence[int]) -> None:
        for index in indices:
            if index in self.finished:
                self._dropped.append(self.finished.pop(index).visit)
            else:
                group = self._open.pop(index)
                under_way = [(index, sample) for sample, rollout in enumerate(group.rollouts) if rollout is None]
                self.engines[group.engine].cancel(under_way)
                self._dropped.append(group.visit)
        self.late.extend(indices)

    # ---------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on, exactly where the engines allow it; received versions come again."""
        return {
            "engines": [engine.state() if engine.exact_resume else None for engine in self.engines],
            "work_before": to_plain(self._work_before),
            "works": [to_plain(engine.work) for engine in self.engines],
            "schedule": self.schedule.state(),
            "activation": to_plain(self.schedule.activation),
            "ticks": self.ticks,
            "sampling_version": self.sampling_version,
            "queue": [to_plain(v) for v in self._queue],
            "last": self._last,
            "open": [
                [i, to_plain(o.visit), [to_plain(r) for r in o.rollouts], o.engine] for i, o in self._open.items()
            ],
            "finished": {str(i): to_plain(group) for i, group in self.finished.items()},
            "untrained": [
                [f.number, {str(i): to_plain(g) for i, g in f.groups.items()}, to_plain(f.stats), to_plain(f.dropped)]
                for f in self.untrained()
            ],
            "dropped": [to_plain(v) for v in self._dropped],
            "seconds": [self.seconds.busy, self.seconds.idle],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; `begin` must follow with the weights of its `sampling_version`."""
        self.schedule.load_state(state["schedule"])
        self.schedule.activation = self.schedule.activation.restored(state["activation"])
        self.ticks = state["ticks"]
        self._queue = deque(from_plain(Visit, v) for v in state["queue"])
        self._last = state["last"]
        self._open = {
            int(i): _Open(from_plain(Visit, v), [None if r is None else from_plain(Rollout, r) for r in rollouts], e)
            for i, v, rollouts, e in state["open"]
        }
        self.finished = {int(i): from_plain(Group, group) for i, group in state["finished"].items()}
        for number, groups, stats, dropped in state["untrained"]:
            self._untrained[number] = Formed(
                number,
                {int(i): from_plain(Group, group) for i, group in groups.items()},
                from_plain(GeneratorStats, stats),
                tuple(from_plain(Visit, v) for v in dropped),
            )
        self.fresh = [(i, g) for formed in self.untrained() for i, g in formed.groups.items()]
        self.fresh += self.finished.items()
        self._dropped = [from_plain(Visit, v) for v in state["dropped"]]
        self.seconds.busy, self.seconds.idle = state["seconds"]
        self._work_before = from_plain(Work, state["work_before"])
        states = state["engines"]
        exact = len(states) == len(self.engines) and all(
            held is not None and engine.exact_resume for held, engine in zip(states, self.engines, strict=True)
        )
        if exact:
            for engine, held in zip(self.engines, states, strict=True):
                engine.load_state(held)
            return
        # other engines, or ones that cannot hold sequences in flight: those are sampled again from their prompts
        self._work_before = sum((from_plain(Work, work) for work in state["works"]), self._work_before)
        for index, group in self._open.items():
            group.engine %= len(self.engines)
            self._submit(index, [s for s, rollout in enumerate(group.rollouts) if rollout is None])


def sample_key(seed: int, visit: Visit, sample: int) -> int:
    """Return the key of a training sample's random stream."""
    return stream_key(seed, "train", visit.prompt.id, visit.number, sample)
