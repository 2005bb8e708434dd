"""An engine for simulations of time: a sequence is only a length, and a function gives the seconds of a decode step.

The state between two events is a few numbers, so that steps are cheap: one core can simulate hundreds of engines.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.cluster.speed import StepSeconds
from scalerl.rollouts.engine import Finished, Occupancy, Request, Work
from scalerl.rollouts.local.simulated import LengthOf
from scalerl.types import Rollout

Span = tuple[tuple[int, float], ...]
"""(version, tokens sampled with it) of one rollout, in order."""


@dataclass(slots=True)
class Shared:
    """State shared by the engines of a simulation.

    Example: Shared(now=12.0, until=12.5, spans={(17, 3): ((4, 120.0), (5, 33.0))})
    """

    now: float = 0.0
    """Current time, seconds."""
    until: float = 0.0
    """Time up to which the next `poll` of an asynchronous engine advances."""
    spans: dict[tuple[int, int], Span] = field(default_factory=dict)
    """Spans of finished sequences by request; removed when a sequence is trained on or dropped."""
    _blank: dict[int, tuple[Any, Any, Any, Any]] = field(default_factory=dict)
    """Arrays by version; all rollouts are slices of them."""

    def blank(self, version: int, length: int) -> tuple[Any, Any, Any, Any]:
        """Return placeholder tokens, log-probabilities, sampled marks and versions of a given length."""
        arrays = self._blank.get(version)
        if arrays is None or len(arrays[0]) < length:
            size = 1 << (length - 1).bit_length()
            arrays = (np.zeros(size, np.int32), np.zeros(size, np.float32), np.ones(size, np.bool_),
                      np.full(size, version, np.int32))  # fmt: skip
            self._blank[version] = arrays
        return arrays[0][:length], arrays[1][:length], arrays[2][:length], arrays[3][:length]


class TimedEngine:
    """An engine in simulated time: a poll does one decode step in lockstep, otherwise all steps up to `until`."""

    exact_resume = False

    def __init__(
        self,
        slots: int,
        length_of: LengthOf,
        step_seconds: StepSeconds,
        shared: Shared,
        *,
        lockstep: bool,
        prompt_tokens: float = 0.0,
        swap_s: float = 0.0,
    ) -> None:
        """Make an engine.

        Args:
            slots: Sequences decoded together.
            length_of: Function that returns the length of a request, tokens.
            step_seconds: Function that returns the seconds of one decode step.
            shared: State shared by the engines of the simulation.
            lockstep: Whether a poll does one decode step, whose seconds are `step_s`.
            prompt_tokens: Tokens of a prompt, in the cache from the start.
            swap_s: Seconds that a swap stops the engine.
        """
        self.slots, self.deterministic = slots, lockstep
        self._length_of, self._step_seconds, self._shared = length_of, step_seconds, shared
        self._prompt, self._swap_s = prompt_tokens, swap_s
        self.version = 0
        """Version of the weights in use."""
        self.work = Work()
        """Work done so far."""
        self.empty_s = 0.0
        """Seconds in which nothing ran."""
        self.pause_s = 0.0
        """Seconds that swaps have cost so far."""
        self.step_s = 0.0
        """Seconds of the last poll, in lockstep."""
        self._now = shared.now
        self._position, self._tokens, self._slot_steps = 0.0, 0.0, 0.0
        self._waiting: deque[Request] = deque()
        self._running: dict[tuple[int, int], float] = {}
        """Start position of each running sequence."""
        self._starts = 0.0
        """Sum of the start positions: the caches hold running x (prompt + position) - sum tokens."""
        self._ends: list[tuple[float, tuple[int, int]]] = []
        self._swaps: deque[tuple[float, int]] = deque([(0.0, 0)])
        """(position, version) of the swaps that running sequences may have seen."""

    def occupancy(self) -> Occupancy:
        """Return how full the engine is."""
        running, waiting = len(self._running), len(self._waiting)
        return Occupancy(self.slots, running, waiting, self.slots - running + 1 - waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start when slots become free."""
        self._waiting.extend(requests)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences; their sampled tokens are lost."""
        self._waiting = deque(request for request in self._waiting if request.id not in ids)
        for one in ids:
            if one in self._running:
                self._starts -= self._running.pop(one)

    def advance(self) -> None:
        """Do nothing: the work is done in `poll`."""

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Decode one step, or up to `until`; return the sequences that finished."""
        if self.deterministic:
            self._refill()
            running = len(self._running)
            self.step_s = self._seconds_per_step() if running else 0.0
            self._decode(1.0 if running else 0.0)
            ended = self._ended()
            self._note_work()
            return ended
        finished: list[Finished] = []
        while self._now < self._shared.until:
            self._refill()
            if not self._running:
                self.empty_s += self._shared.until - self._now
                self._now = self._shared.until
                break
            step = self._seconds_per_step()
            left = (self._shared.until - self._now) / step
            steps = min(left, self._ends[0][0] - self._position)
            self._now = self._shared.until if steps == left else self._now + steps * step
            self._decode(steps)
            finished += self._ended()
        self._note_work()
        return finished

    def swap(self, version: int) -> None:
        """Use new weights from the next token on."""
        self.version = version
        self._swaps.append((self._position, version))
        self._now += self._swap_s
        self.pause_s += self._swap_s

    def state(self) -> dict[str, Any]:
        """Return nothing: sequences in flight are sampled again."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def wait_until(self, now: float) -> None:
        """Advance the time without work, while the coordinator waits."""
        self.empty_s += max(0.0, now - self._now)
        self._now = max(self._now, now)

    def _refill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting.popleft()
            self._running[request.id] = self._position
            self._starts += self._position
            heapq.heappush(self._ends, (self._position + self._length_of(request), request.id))
        while self._ends and self._ends[0][1] not in self._running:  # canceled
            heapq.heappop(self._ends)

    def _seconds_per_step(self) -> float:
        running = len(self._running)
        return self._step_seconds(running, running * (self._prompt + self._position) - self._starts)

    def _decode(self, steps: float) -> None:
        self._position += steps
        self._tokens += steps * len(self._running)
        self._slot_steps += steps * self.slots

    def _note_work(self) -> None:
        self.work = Work(round(self._position), round(self._tokens), round(self._slot_steps), 0.0)

    def _ended(self) -> list[Finished]:
        found = []
        while self._ends and self._ends[0][0] <= self._position + 1e-9:
            end, one = heapq.heappop(self._ends)
            if one in self._running:
                start = self._running.pop(one)
                self._starts -= start
                found.append(Finished(one, self._rollout(one, start, end)))
        if found:
            self._forget_swaps()
        return found

    def _rollout(self, one: tuple[int, int], start: float, end: float) -> Rollout:
        """Return a rollout with a length and the version of its first token; `spans` has all versions."""
        bounds = [max(start, position) for position, _ in self._swaps] + [end]
        counts = [(version, bounds[i + 1] - bounds[i]) for i, (_, version) in enumerate(self._swaps)]
        self._shared.spans[one] = span = tuple((version, count) for version, count in counts if count > 0)
        tokens, logps, sampled, versions = self._shared.blank(span[0][0], round(end - start))
        return Rollout(tokens, logps, versions, sampled, truncated=False, interrupted=False)

    def _forget_swaps(self) -> None:
        """Drop the swaps before the oldest running sequence; `_running` is in the order of starting."""
        oldest = next(iter(self._running.values()), self._position)
        while len(self._swaps) > 1 and self._swaps[1][0] <= oldest:
            self._swaps.popleft()
