"""An engine without a model, for simulations: a sequence is only a length, and a decode step takes simulated time.

The state between two events is a few numbers, so that one core can simulate hundreds of engines.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from scalerl.core.types import Rollout
from scalerl.training.engines.engine import Finished, Occupancy, Request, Work
from scalerl.training.machines.speed import Lengths, Speeds

LengthOf = Callable[[Request], int]
"""Returns the number of tokens of a request, at least one."""

VERSIONS = 1 << 10
"""Steps by which an engine's record of versions grows, at least."""


def by_key(lengths: Lengths) -> LengthOf:
    """Return a function that selects a length from a population by the request's key."""
    values = lengths.tolist()
    return lambda request: values[request.key % len(values)]


@dataclass(slots=True)
class Clock:
    """Time of a simulation, shared by its engines and its trainer.

    Example: Clock(now=12.0, until=12.5, pace=1.03)
    """

    now: float = 0.0
    """Current time, seconds."""
    until: float = 0.0
    """Time up to which the next `poll` of asynchronous engines decodes. In lockstep: the time that the slowest engine
    has reached."""
    pace: float = 1.0
    """Current factor on the seconds of decode steps."""


class SimulatedEngine:
    """An engine without a model: a sequence is a length, its tokens are zeros, and a decode step takes simulated time.

    It samples on its own: a poll does all steps up to `clock.until`.
    """

    def __init__(
        self,
        slots: int,
        length_of: LengthOf,
        speeds: Speeds | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make an engine.

        Args:
            slots: Sequences decoded together.
            length_of: Function that returns the length of a request, tokens.
            speeds: Durations of decode steps and swaps; None: a step takes 1 s.
            clock: Time of the simulation; None: a separate one.
        """
        self.slots, self._length_of = slots, length_of
        self._speeds, self.clock = speeds or Speeds(), clock or Clock()
        self.version = 0
        """Version of the weights in use."""
        self.now = self.clock.now
        """Time that the engine has reached."""
        self.empty_s = 0.0
        """Seconds in which nothing ran, if not in lockstep."""
        self._position, self._tokens = 0.0, 0.0
        """Decode steps and tokens so far."""
        self._waiting: deque[Request] = deque()
        self._running: dict[tuple[int, int], float] = {}
        """Position at which each running sequence started, in that order."""
        self._starts = 0.0
        """Sum of the start positions: the caches hold running x (prompt + position) - sum tokens."""
        self._ends: list[tuple[float, tuple[int, int]]] = []
        """Heap of the positions at which sequences end."""
        self._versions = np.zeros(VERSIONS, np.int32)
        """Version of each step from `_first` to `_noted`; rollouts hold slices of this array."""
        self._full = Occupancy(slots, 0, 0, slots + 1)
        self._first, self._noted = 0, 0

    @property
    def work(self) -> Work:
        """Work done so far."""
        tokens = round(self._tokens)
        return Work(round(self._position), tokens, round(self._position * self.slots), float(tokens))

    def occupancy(self) -> Occupancy:
        """Return how full the engine is."""
        running, waiting = len(self._running), len(self._waiting)
        full = self._full  # made again only if it changed: of a thousand engines, most are idle at most polls
        if full.running != running or full.waiting != waiting:
            self._full = full = Occupancy(self.slots, running, waiting, self.slots - running + 1 - waiting)
        return full

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start when slots become free."""
        self._waiting.extend(requests)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences; their sampled tokens are lost."""
        self._waiting = deque(request for request in self._waiting if request.id not in ids)
        for id in ids:
            self._starts -= self._running.pop(id, 0.0)

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Decode up to `clock.until`; return the sequences that finished."""
        clock, finished = self.clock, list[Finished]()
        while self.now < clock.until:
            if self._waiting or self._ends:
                self._refill()
            if not self._running:
                self.empty_s += clock.until - self.now
                self.now = clock.until
                break
            step = self._step_s()
            remaining = (clock.until - self.now) / step
            steps = min(remaining, self._ends[0][0] - self._position)
            self.now = clock.until if steps == remaining else self.now + steps * step
            self._decode(steps)
            finished += self._ended()
        return finished

    def swap(self, version: int) -> None:
        """Use new weights from the next step on."""
        self._note_versions()
        self.version = version
        self.now = max(self.now, self.clock.now) + self._speeds.swap_s

    def _refill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting.popleft()
            self._running[request.id] = self._position
            self._starts += self._position
            heapq.heappush(self._ends, (self._position + self._length_of(request), request.id))
        while self._ends and self._ends[0][1] not in self._running:  # canceled
            heapq.heappop(self._ends)

    def _step_s(self) -> float:
        running, speeds = len(self._running), self._speeds
        context = running * (speeds.prompt_tokens + self._position) - self._starts
        return speeds.step_seconds(running, context) * self.clock.pace

    def _decode(self, steps: float) -> None:
        self._position += steps
        self._tokens += steps * len(self._running)

    def _ended(self) -> list[Finished]:
        finished: list[Finished] = []
        ends, position = self._ends, self._position + 1e-9
        if ends and ends[0][0] <= position:
            self._note_versions()
        while ends and ends[0][0] <= position:
            end, id = heapq.heappop(ends)
            if id in self._running:
                start = self._running.pop(id)
                self._starts -= start
                finished.append(Finished(id, self._rollout(math.ceil(start), round(end - start))))
        return finished

    def _rollout(self, start: int, length: int) -> Rollout:
        tokens, logps, sampled = (array[:length] for array in _blank(1 << (length - 1).bit_length()))
        versions = self._versions[start - self._first : start - self._first + length]
        return Rollout(tokens, logps, versions, sampled, truncated=False, interrupted=False)

    def _note_versions(self) -> None:
        """Record the version of the steps since the last call; a full array is replaced, as rollouts hold slices."""
        steps = math.ceil(self._position)
        if steps - self._first >= len(self._versions):
            oldest = int(next(iter(self._running.values()), self._position))
            recent = self._versions[oldest - self._first : self._noted - self._first]
            room = np.zeros(VERSIONS + len(recent) + steps - self._noted, np.int32)
            self._versions, self._first = np.concatenate([recent, room]), self._noted - len(recent)
        # one more than known, because positions between two steps are rounded
        self._versions[self._noted - self._first : steps - self._first + 1] = self.version
        self._noted = steps


class ExactSimulatedEngine(SimulatedEngine):
    """A simulated engine that decodes in lockstep with others."""

    def begin(self) -> None:
        """Decode one step."""
        clock = self.clock
        self._refill()
        self.now = max(self.now, clock.now)
        if self._running:
            self.now += self._step_s()
            self._decode(1.0)
        clock.until = max(clock.until, self.now)

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished."""
        return self._ended()

    def state(self) -> dict[str, Any]:
        """Return the sequences under way and the counts."""
        self._note_versions()
        return {
            "counts": [self._position, self._tokens, self._first],
            "running": [[list(one), start] for one, start in self._running.items()],
            "ends": [[end, list(one)] for end, one in self._ends],
            "waiting": [[list(r.id), list(r.prompt), r.key] for r in self._waiting],
            "versions": self._versions[: self._noted - self._first],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._position, self._tokens, self._first = state["counts"]
        self._running = {tuple(one): start for one, start in state["running"]}
        self._starts = sum(self._running.values())
        self._ends = [(end, tuple(one)) for end, one in state["ends"]]
        self._waiting.extend(Request(tuple(w[0]), tuple(w[1]), w[2]) for w in state["waiting"])
        self._noted = self._first + len(state["versions"])
        self._versions[: len(state["versions"])] = state["versions"]


@cache
def _blank(size: int) -> tuple[Any, Any, Any]:
    """Return tokens, log-probabilities and sampled marks; all rollouts are slices of them."""
    return np.zeros(size, np.int32), np.zeros(size, np.float32), np.ones(size, np.bool_)
