"""The contract between the coordinator and an engine: submit, poll, swap, occupancy.

An engine decodes many sequences together, refills its slots as sequences end, and swaps in new weights without dropping
the cache. There are two kinds. An `ExactEngine` decodes a step when it is told to, and saves its sequences. An engine
that samples on its own is a `ServedEngine` (served.py), behind a handle with three methods; `HostedEngines` (hosted.py)
is a handle of exact engines. To add one, write either (docs/extending.md has examples). Every engine is tested by
replay: each token's log-probability must match the weights of its version, given the cache at that step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import islice
from operator import add, attrgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from scalerl.core.rng import stream_key
from scalerl.core.types import AGENT, TURNS, Group, IntArray, Prompt, Rollout, Visit

NO_WEIGHTS = -1
"""Version of an engine that uses no weights: before the first swap, or while it is replaced."""
ENGINE_POLL_S = 0.02
"""Seconds to wait in a poll of all asynchronous engines after one that found nothing."""


EVALUATION_CACHE = 1 << 28
"""Bytes by which an evaluation may enlarge the torch engine's cache, to decode more sequences together than training,
because the run waits for it; at least one sequence."""

PASS_BYTES = 1 << 28
"""Working memory of the torch engine in one forward pass over prompts, and in one draw of tokens; more prompts, or more
sequences, take several passes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    Example: Request(id=(17, 3), prompt=(7, 11, 4, 25), key=1234567890123)
    """

    id: tuple[int, int]
    """(index of the group, number of the rollout): returned with the finished rollout."""
    prompt: tuple[int, ...]
    """Prompt tokens, at least one."""
    key: int
    """Key of the rollout's random stream (core/rng.py)."""
    source: Prompt | None = None
    """The prompt if its environment replies, or a program makes its rollouts, for `TurnEngine` and `AgentEngine`; other
    engines never see it."""

    @classmethod
    def of(cls, id: tuple[int, int], prompt: Prompt, key: int) -> Request:
        """Return the request for a rollout of a prompt."""
        return cls(id, prompt.tokens, key, prompt if {TURNS, AGENT} & prompt.columns.keys() else None)


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished sequence.

    Example: Finished(id=(17, 3), rollout=Rollout(...))
    """

    id: tuple[int, int]
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full an engine is.

    Example: Occupancy(slots=256, running=240, waiting=16, room=16)
    """

    slots: int
    """Sequences that the engine can decode together."""
    running: int
    """Sequences that are being decoded."""
    waiting: int
    """Sequences submitted but not started."""
    room: int
    """Requests to submit now to keep the slots filled; 0 or less: none."""
    parked: int = 0
    """Those of the waiting sequences that wait for a reply of their environment."""

    @property
    def busy(self) -> bool:
        """Whether any submitted sequence has not finished."""
        return self.running + self.waiting > 0


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an engine since it was made.

    Example: Work(steps=120, tokens=7680, slot_steps=30720, flops=5.1e10)
    """

    steps: int = 0
    """Decode steps."""
    tokens: int = 0
    """Tokens sampled."""
    slot_steps: int = 0
    """Slots times decode steps."""
    flops: float = 0.0
    restarts: int = 0
    """Restarts after a death."""
    resampled: int = 0
    """Sequences sampled again after a restart."""

    def __add__(self, other: Work) -> Work:
        """Return the sum of two engines' work."""
        return Work(*map(add, _COUNTERS(self), _COUNTERS(other)))


_COUNTERS = attrgetter(*(counter.name for counter in fields(Work)))


@dataclass(slots=True)
class ActivitySeconds:
    """Seconds that the generators spent, by activity.

    Example: Seconds(busy=31.2, idle=0.4, swap=0.003)
    """

    busy: float = 0.0
    """Sampling for training."""
    idle: float = 0.0
    """Waiting for weights or prompts."""
    swap: float = 0.0
    """The last swap of weights."""
    parked: float = 0.0
    """Waiting for replies, summed over sequences."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Example: Sampling(temperature=1.0, top_p=1.0, stop=(26,))
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus."""
    stop: tuple[int, ...] = ()
    """Token ids that end a sequence; the stop token belongs to the rollout."""


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """Shape of the recorded expert choices of a mixture of experts.

    Example (Qwen3-30B-A3B): RoutingShape(layers=48, active=8, experts=128)
    """

    layers: int
    """Number of layers with experts."""
    active: int
    """Number of experts per token."""
    experts: int
    """Number of experts per layer."""

    @property
    def dtype(self) -> Any:
        """The smallest type that holds an expert index: one byte for up to 256 experts, otherwise two."""
        return np.uint8 if self.experts <= 256 else np.int16


def joined(sets: Sequence[npt.NDArray[np.integer[Any]]]) -> tuple[IntArray, IntArray]:
    """Return the sizes of sets of ids, and all ids one after the other."""
    return np.array([len(ids) for ids in sets], np.int32), np.concatenate([np.empty(0, np.int32), *sets])


class Engine(Protocol):
    """Continuous batching with per-token log-probabilities and versions: what the coordinator calls."""

    @property
    def work(self) -> Work:
        """Work done so far."""

    @property
    def version(self) -> int:
        """Version of the weights in use, never of those that were only requested; `NO_WEIGHTS`: none."""

    def occupancy(self) -> Occupancy:
        """Return how full the engine is."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start when slots become free."""

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences; they are never returned."""

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished since the last call.

        Args:
            timeout_s: Seconds to wait for one.
        """

    def swap(self, version: int) -> None:
        """Request new weights, received over the engine's weight channel; running sequences keep their cache.

        `version` changes when they are in use. An engine samples nothing before the first swap.
        """


@runtime_checkable
class ExactEngine(Engine, Protocol):
    """An engine that decodes a step when it is told to: equal requests and weights give equal tokens.

    Its `swap` holds when it returns, several of them step together, and sequences under way are saved.
    """

    def begin(self) -> None:
        """Begin a decode step; the next `poll` waits for its end and returns the sequences that it finished.

        An engine in another process returns at once, so that several work in parallel.
        """

    def state(self) -> dict[str, Any]:
        """Return everything needed for an exact resume except the weights: nested dicts of arrays and plain values."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


def step(engine: ExactEngine) -> list[Finished]:
    """Decode one step; return the sequences that finished."""
    engine.begin()
    return engine.poll()


class Lane(IntEnum):
    """What an engine samples for; also its place in a pair of engines over one model."""

    TRAINING = 0
    EVALUATION = 1


class EnginePair(NamedTuple):
    """The engines over one model, one for each lane.

    Example: EnginePair(training=SlotEngine(...), evaluation=SlotEngine(...))
    """

    training: Engine
    evaluation: Engine

    def wrapped(self, wrap: Callable[[Engine], Engine]) -> EnginePair:
        """Return both engines, each inside another one."""
        return EnginePair(wrap(self.training), wrap(self.evaluation))


class OuterEngine:
    """An engine around another one; subclasses have the methods that are not forwarded here."""

    def __init__(self, inner: Engine) -> None:
        """Wrap an engine."""
        self.inner = inner

    @property
    def work(self) -> Work:
        """Work of the inner engine."""
        return self.inner.work

    @property
    def version(self) -> int:
        """Version of the inner engine."""
        return self.inner.version

    def swap(self, version: int) -> None:
        """Use new weights."""
        self.inner.swap(version)


class EngineWrapper(OuterEngine):
    """An exact engine around another one; subclasses replace some methods."""

    inner: ExactEngine

    def __init__(self, inner: ExactEngine) -> None:
        """Wrap an engine."""
        super().__init__(inner)

    def occupancy(self) -> Occupancy:
        """Return how full the inner engine is."""
        return self.inner.occupancy()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences."""
        self.inner.submit(requests)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        self.inner.cancel(ids)

    def begin(self) -> None:
        """Begin a decode step."""
        self.inner.begin()

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished."""
        return self.inner.poll(timeout_s)

    def state(self) -> dict[str, Any]:
        """Return the state of the inner engine."""
        return self.inner.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.inner.load_state(state)


class WaitEnded(RuntimeError):
    """A wait for engines was ended, because the run stops."""


def generate(
    engines: Sequence[Engine],
    visits: Sequence[Visit],
    samples: int | Sequence[int],
    seed: int,
    purpose: str,
    stop: Callable[[], bool] = lambda: False,
    finished: Callable[[int], None] = lambda count: None,
) -> Iterator[tuple[int, Group]]:
    """Run idle engines over a fixed list of prompts until all are done, with their current weights.

    Engines get the next requests as they need them, and groups leave as they are complete, so that only sequences
    under way take memory.

    Args:
        engines: Idle engines; prompts are assigned to them in turn.
        visits: Prompts.
        samples: Rollouts per prompt: one number, or one per visit.
        seed: Seed of the random streams.
        purpose: Name that separates the random streams from those of training.
        stop: Function called while waiting; if it returns true, the sequences are dropped.
        finished: Function called while waiting with the number of finished rollouts.

    Yields:
        Index and group of each visit, as they are complete.

    Raises:
        Stopped: `stop` ended the wait.
    """
    counts = [samples] * len(visits) if isinstance(samples, int) else list(samples)
    exact = [engine for engine in engines if isinstance(engine, ExactEngine)]

    def requests(number: int) -> Iterator[Request]:
        for i in range(number, len(visits), len(engines)):
            visit = visits[i]
            for s in range(counts[i]):
                key = stream_key(seed, purpose, visit.prompt.id, visit.number, s)
                yield Request.of((i, s), visit.prompt, key)

    rest = [requests(number) for number in range(len(engines))]
    under_way = [set[tuple[int, int]]() for _ in engines]
    groups, missing, done = dict[int, list[Rollout | None]](), dict[int, int](), 0
    while True:
        for engine, own, ids in zip(engines, rest, under_way, strict=True):
            full = engine.occupancy()
            # more wait than can start in a step, as if all had been submitted at once
            if full.waiting <= full.slots and (some := list(islice(own, 2 * full.slots))):
                engine.submit(some)
                ids.update(request.id for request in some)
        if not any(engine.occupancy().busy for engine in engines):
            break
        if stop():
            for engine, ids in zip(engines, under_way, strict=True):
                engine.cancel(ids)
            raise WaitEnded
        for engine in exact:
            engine.begin()
        for engine, ids in zip(engines, under_way, strict=True):
            for end in engine.poll(ENGINE_POLL_S):
                ids.discard(end.id)
                i, s = end.id
                groups.setdefault(i, [None] * counts[i])[s] = end.rollout
                missing[i] = missing.get(i, counts[i]) - 1
                done += 1
                if not missing[i]:
                    del missing[i]
                    rollouts = tuple(rollout for rollout in groups.pop(i) if rollout is not None)
                    yield i, Group(visits[i], rollouts, min(int(rollout.versions[0]) for rollout in rollouts))
        finished(done)
    assert not any(under_way) and not missing, "an engine has lost sequences"
