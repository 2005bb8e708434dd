"""Runs one schedule over one or several engines: starts groups, forms batches, swaps weights, evaluates.

Exact engines decode in lockstep. Everything the coordinator does is then a function of the prompts and weights
that it receives, in the order of their versions. Arrival times matter only under OnArrival. Asynchronous engines are
polled for finished sequences, and a version is active when all of them use it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

from scalerl.core.rng import stream_key
from scalerl.core.serialization import from_plain, to_plain
from scalerl.core.types import GeneratorStats, Group, Rollout, Visit
from scalerl.training.engines.engine import (
    ENGINE_POLL_S,
    NO_WEIGHTS,
    ActivitySeconds,
    Engine,
    ExactEngine,
    Finished,
    Request,
    WaitEnded,
    Work,
    generate,
)
from scalerl.training.engines.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Formed:
    """A complete batch: the groups that one update trains on.

    Example: Formed(number=7, groups={112: Group(...), 114: Group(...)}, stats=GeneratorStats(...), dropped=())
    """

    number: int
    """Number of the update that trains on it, from 0; also the version of the weights before that update."""
    groups: dict[int, Group]
    """Groups by index, in the order in which they were started."""
    stats: GeneratorStats
    """The generators' counters when the batch was complete."""
    dropped: tuple[Visit, ...] = ()
    """Visits dropped since the previous batch, because no update could train on them in time."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """Message from the trainer to the coordinator after each update.

    Example: NewVersion(version=8, weights=True, visits=(Visit(...), ...), closed=False)
    """

    version: int
    weights: bool = True
    """Whether the weights were sent; False if no sequence will be sampled with this version."""
    visits: tuple[Visit, ...] = ()
    """Prompts that may be started once this version is active."""
    closed: bool = False
    """Whether the curriculum has no more prompts."""


@dataclass(slots=True)
class _Open:
    """A group under way, and the engine that samples it."""

    visit: Visit
    rollouts: list[Rollout | None]
    engine: int
    missing: int = field(init=False)
    """Number of unfinished rollouts."""

    def __post_init__(self) -> None:
        self.missing = self.rollouts.count(None)


@dataclass(slots=True)
class Coordinator:
    """Admission, batches, activation and evaluation over one or several engines."""

    engines: Sequence[Engine]
    schedule: Schedule
    group_size: int
    """G, rollouts per prompt."""
    seed: int
    evaluators: Sequence[Engine] = ()
    """Engines for held-out prompts; each shares its weights with the training engine at the same position."""
    exact: Sequence[ExactEngine] = field(init=False)
    """The engines, if all are exact: they decode in lockstep. Otherwise none."""
    seconds: ActivitySeconds = field(default_factory=ActivitySeconds)
    ticks: int = 0
    """Decode steps since the run began, in lockstep; otherwise polls that found a finished sequence."""
    finished: dict[int, Group] = field(default_factory=dict)
    """Finished groups that are in no batch yet."""
    fresh: list[tuple[int, Group]] = field(default_factory=list)
    """Finished groups not yet handed out for scoring, with their indices; the caller empties it."""
    late: list[int] = field(default_factory=list)
    """Indices of dropped groups; the caller empties it."""
    _queue: deque[Visit] = field(default_factory=deque)
    _updates: dict[int, NewVersion] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _untrained: dict[int, Formed] = field(default_factory=dict)
    _dropped: list[Visit] = field(default_factory=list)
    _last: bool = False
    """Whether the queue holds the last visits."""
    _requested: int = -1
    """Version last requested from the engines."""
    _requested_at: float = 0.0
    _target: int = -1
    """Version that training sequences are sampled with, or should be."""
    _settled: bool = False
    _quiet: bool = False
    """Whether the last poll of asynchronous engines found nothing."""
    _work_before: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        exact = [engine for engine in self.engines if isinstance(engine, ExactEngine)]
        self.exact = exact if len(exact) == len(self.engines) else []

    @property
    def lockstep(self) -> bool:
        """Whether all engines are exact and decode in lockstep."""
        return bool(self.exact)

    # ------------------------------------------------------------------------------------------------------- messages

    def begin(self, version: int, visits: Sequence[Visit] = ()) -> None:
        """Load the first weights (version 0, or the version of a restored state) and queue the first prompts."""
        self._target = version
        self._swap(version)
        self._queue.extend(visits)

    def receive(self, update: NewVersion) -> None:
        """Record an update; its version becomes active when the schedule allows it."""
        self._updates[update.version] = update

    @property
    def sampling_version(self) -> int:
        """Version of the weights in use: the smallest over the engines; if none has any, that which they should use."""
        in_use = [engine.version for engine in self.engines if engine.version != NO_WEIGHTS]
        return self._target if self._settled else min(in_use, default=self._target)

    def needed_versions(self) -> set[int]:
        """Return the versions whose weights are in use or wait for activation."""
        waiting = {version for version, update in self._updates.items() if update.weights}
        if any(engine.version == NO_WEIGHTS for engine in self.engines):
            waiting.add(self._requested)  # an engine that is replaced loads it
        return {self.sampling_version, *waiting}

    def blocked(self) -> bool:
        """Return whether the next update must arrive before anything can be done."""
        if self.schedule.active + 1 in self._updates:
            return False
        idle = self._idle()
        return idle or self.schedule.due(self.ticks, idle)

    def stuck(self) -> bool:
        """Return whether the batch that the trainer waits for can never be formed, which is a bug of the schedule.

        The next version is trained on the batch numbered as the active version. If that batch is neither formed nor
        under way, no further version arrives, and without one there are no further prompts.
        """
        waiting = self.schedule.active in self.schedule.formed_at or self.schedule.active + 1 in self._updates
        return not waiting and not self.schedule.closed and self._idle()

    # ----------------------------------------------------------------------------------------------------------- work

    def step(self, on_activation: Callable[[], None] = lambda: None) -> list[Formed]:
        """Swap in weights that are due, start groups, let every engine do a step; return the completed batches.

        Args:
            on_activation: Function called after each version that became active; there may be several before one tick.
                Its time, for example for an evaluation, does not count as generation.
        """
        start = time.perf_counter()
        start += self._activate(on_activation)
        if self.blocked() and not self._idle():
            return []  # two versions are due before this tick and only the first has arrived: wait for the second
        self._fill()
        # closing earlier would let a partial batch form before the last one
        self.schedule.closed = self._last and not self._queue
        full = [engine.occupancy() for engine in self.engines]
        busy = any(one.busy for one in full)
        if not self.lockstep:
            self._poll()
        elif busy:
            for exact in self.exact:
                exact.begin()
            for exact in self.exact:
                for finished in exact.poll():
                    self._collect(finished)
            self.ticks += 1
        elapsed = time.perf_counter() - start
        self.seconds.parked += elapsed * sum(one.parked for one in full)
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
        """Return the batches whose update is not active yet; they are handed out again after a resume."""
        return [self._untrained[number] for number in sorted(self._untrained)]

    def settle(self, on_activation: Callable[[], None]) -> None:
        """Activate all received versions without waiting for the engines, which may hang; sample nothing more.

        For a run that stops. Its state can be resumed, because new engines then load the weights and sample again
        what was under way.

        Args:
            on_activation: Function called after each version that became active.
        """
        assert not self.lockstep
        self._settled = True
        while (update := self._updates.get(self.schedule.active + 1)) is not None:
            self._begin(update)
            on_activation()

    def evaluate(
        self,
        version: int,
        visits: Sequence[Visit],
        samples: int | Sequence[int],
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Group]]:
        """Sample held-out prompts while training sequences pause; yield index and group of each visit, once complete.

        Args:
            version: Version of the weights to evaluate. Within a frozen round it differs from the version in use, which
                is swapped back afterwards.
            visits: Held-out prompts.
            samples: Rollouts per prompt: one number, or one per visit.
            stop: Function called while waiting; if it returns true, `settle` must follow.

        Raises:
            Stopped: `stop` ended the wait.
        """
        in_use = self.sampling_version
        if in_use != version:
            self._swap(version, stop)
        start, before = time.perf_counter(), self._tokens()
        yield from generate(self.evaluators, visits, samples, self.seed, "evaluate", stop)
        training, evaluating = (now - then for now, then in zip(self._tokens(), before, strict=True))
        # a vLLM server does not pause training sequences: their share of the tokens counts as generation
        self.seconds.busy += (time.perf_counter() - start) * training / max(1, training + evaluating)
        if in_use != version:
            self._swap(in_use)

    def stats(self) -> GeneratorStats:
        """Return the counters so far."""
        work, seconds = sum((engine.work for engine in self.engines), self._work_before), self.seconds
        counters = (self.ticks, work.tokens, work.flops, work.slot_steps, seconds.busy, seconds.idle, seconds.swap)
        return GeneratorStats(*counters, work.restarts, work.resampled, seconds.parked)

    def _tokens(self) -> tuple[int, int]:
        """Return the tokens sampled so far by the training engines and by the evaluation engines."""
        training, evaluating = (sum(e.work.tokens for e in some) for some in (self.engines, self.evaluators))
        return training, evaluating

    def _poll(self) -> None:
        """Collect finished sequences of asynchronous engines; wait briefly if the last poll found nothing."""
        wait_s = ENGINE_POLL_S / len(self.engines) if self._quiet else 0.0
        sequences = [finished for engine in self.engines for finished in engine.poll(wait_s)]
        for finished in sequences:
            self._collect(finished)
        self._quiet = not sequences
        self.ticks += bool(sequences)

    def _idle(self) -> bool:
        may_start = bool(self._queue) and self.schedule.may_start()
        return not may_start and not any(engine.occupancy().busy for engine in self.engines)

    def _request_version(self, version: int) -> bool:
        """Request a version from all engines, once; return whether all that have weights use it.

        An engine that is replaced loads the requested version before it samples, and does not hold back the others.
        """
        if self._requested != version:
            self._requested, self._requested_at = version, time.perf_counter()
            for engine in self.engines:
                engine.swap(version)
        return all(engine.version in (version, NO_WEIGHTS) for engine in self.engines)

    def _swap(self, version: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until all engines use a version; collect the sequences that finish during the wait."""
        while not self._request_version(version):
            if stop():
                raise WaitEnded
            self._poll()

    def _activate(self, on_activation: Callable[[], None]) -> float:
        """Make versions active that are due; return the seconds of `on_activation`."""
        aside_s = 0.0
        while (update := self._updates.get(self.schedule.active + 1)) is not None:
            if not self.schedule.on_arrival(update.version) and not self.schedule.due(self.ticks, self._idle()):
                return aside_s
            if update.weights and not self.lockstep and not self._request_version(update.version):
                return aside_s  # asynchronous engines swap later and are polled until then
            self._begin(update)
            if update.weights:
                self._swap(update.version)
                self.seconds.swap = time.perf_counter() - self._requested_at
            began = time.perf_counter()
            on_activation()
            aside_s += time.perf_counter() - began
        return aside_s

    def _begin(self, update: NewVersion) -> None:
        """Make the version of an update the active one."""
        self.schedule.activate(update.version)
        self._untrained.pop(update.version - 1)
        del self._updates[update.version]
        self._queue.extend(update.visits)
        self._last |= update.closed
        if update.weights:
            self._target = update.version

    def _fill(self) -> None:
        if not self._queue:
            return
        taken = [(-engine.occupancy().room, number) for number, engine in enumerate(self.engines)]
        heapify(taken)
        while self._queue and self.schedule.may_start():
            full, number = taken[0]  # the first engine with the most room
            if full >= 0:
                return
            visit = self._queue.popleft()
            index = self.schedule.start()
            self._open[index] = _Open(visit, [None] * self.group_size, number)
            self._submit(index, range(self.group_size))
            heapreplace(taken, (full + self.group_size, number))

    def _submit(self, index: int, samples: Sequence[int]) -> None:
        group = self._open[index]
        visit = group.visit
        self.engines[group.engine].submit(
            [Request.of((index, s), visit.prompt, sample_key(self.seed, visit, s)) for s in samples]
        )

    def _collect(self, finished: Finished) -> None:
        index, sample = finished.id
        group = self._open[index]
        group.rollouts[sample] = finished.rollout
        group.missing -= 1
        if not group.missing:
            del self._open[index]
            rollouts = tuple(r for r in group.rollouts if r is not None)
            oldest = min(int(one.versions[0]) for r in rollouts for one in r.sequences)
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
        """Return everything needed to resume, exactly if the engines support it.

        Received updates that are not active yet are left out: the trainer sends them again.
        """
        return {
            "engines": [engine.state() for engine in self.exact],
            "work_before": to_plain(self._work_before),
            "works": [to_plain(engine.work) for engine in self.engines],
            "slots": [engine.occupancy().slots for engine in self.engines],
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
            "seconds": [self.seconds.busy, self.seconds.idle, self.seconds.parked],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; call `begin` with the weights of its `sampling_version` afterwards."""
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
        self.seconds.busy, self.seconds.idle, self.seconds.parked = state["seconds"]
        self._work_before = from_plain(Work, state["work_before"])
        states = state["engines"]
        if self.lockstep and states and state["slots"] == [engine.occupancy().slots for engine in self.exact]:
            for engine, state in zip(self.exact, states, strict=True):
                engine.load_state(state)
            return
        # different engines or slots, or served ones: sequences in flight are sampled again from their prompts
        self._work_before = sum((from_plain(Work, work) for work in state["works"]), self._work_before)
        for index, group in self._open.items():
            group.engine %= len(self.engines)
            self._submit(index, [s for s, rollout in enumerate(group.rollouts) if rollout is None])


def sample_key(seed: int, visit: Visit, sample: int) -> int:
    """Return the key of a training sample's random stream."""
    return stream_key(seed, "train", visit.prompt.id, visit.number, sample)
