"""Simulates the timing of a run with the real coordinator and schedule, and engines that only count tokens.

The interplay of generation and training follows the code of real runs. The durations of decode steps, updates and
transfers (speed.py) and the lengths of completions (lengths.py) are assumptions or measurements.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scalerl.cluster.speed import Lengths, StepSeconds, UpdateSeconds
from scalerl.cluster.timed_engine import Shared, TimedEngine
from scalerl.config.run import RunConfig
from scalerl.rollouts.coordinator import Coordinator, Formed, Update
from scalerl.rollouts.local.simulated import Stuck, by_key, visit_of
from scalerl.rollouts.schedule import groups_beyond, schedule_of
from scalerl.types import Visit

QUANTA = 40
"""Polls per mean completion or batch, whichever is shorter. A finished sequence is replaced at the next poll."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Durations that a simulation needs.

    Example: Speeds(step_seconds=steps_from_rates([(64, 2500.0)]), update_seconds=updates_from_rate(40_000.0),
                    transfer_s=0.4)
    """

    step_seconds: StepSeconds
    """Seconds of a decode step of one engine."""
    update_seconds: UpdateSeconds
    """Seconds of an update by all trainer ranks."""
    transfer_s: float = 0.0
    """Seconds in which the trainer sends new weights, before engines can receive them."""
    swap_s: float = 0.0
    """Seconds that a swap stops an engine."""
    prompt_tokens: float = 0.0
    """Mean length of a prompt."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of a simulated run after its ramp-up, without evaluations.

    Example: Figures(updates=20, seconds=1200.0, tokens_per_s=64000.0, ...)
    """

    updates: int
    """Number of measured updates."""
    seconds: float
    """Seconds of the measured updates."""
    tokens_per_s: float
    """Tokens sampled per second by all engines."""
    trained_tokens_per_s: float
    """Tokens per second of completed batches; varies over few updates, because batches are completed in bursts."""
    updates_per_h: float
    """Computed from sampled tokens, which vary less: 3600 x tokens_per_s x (1 - dropped_share) / tokens per batch."""
    occupancy: float
    """Share of slots in use, over the engines' decode steps."""
    generator_idle: float
    """Share of time in which an engine decodes nothing, mean over engines; swaps count as work."""
    trainer_idle: float
    """Share of time in which the trainer waits for a batch; sending weights counts as work."""
    staleness_mean: float
    """Mean staleness of a trained token, in updates."""
    staleness_max: int
    stale_share: float
    """Share of tokens in trained batches that are staler than k and carry no loss (`mask`)."""
    dropped_share: float
    """Share of groups that are dropped (`drop`)."""

    @property
    def useful_tokens_per_s(self) -> float:
        """Tokens per second that are neither dropped nor too stale."""
        return self.tokens_per_s * (1.0 - self.dropped_share) * (1.0 - self.stale_share)


@dataclass(slots=True)
class _Sums:
    """Sums over the measured batches."""

    tokens: float = 0.0
    aged: float = 0.0
    stale: float = 0.0
    oldest: int = 0
    groups: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Counters:
    """Counters at one time; differences of two give an interval."""

    now: float
    tokens: float
    slot_steps: float
    empty_s: float
    trainer_s: float


@dataclass(slots=True)
class Simulation:
    """Simulation of one run: a coordinator over timed engines, and a trainer that processes batches in order.

    Example: Simulation(config, speeds, lengths).run(updates=30)
    """

    config: RunConfig
    speeds: Speeds
    lengths: Lengths
    """Lengths that completions are drawn from."""
    shared: Shared = field(default_factory=Shared)
    _engines: list[TimedEngine] = field(default_factory=list)
    _coordinator: Coordinator = field(init=False)
    _under_way: deque[tuple[float, Update]] = field(default_factory=deque)
    """(arrival time at the engines, update), in order."""
    _trainer_free_at: float = 0.0
    _trainer_s: float = 0.0
    _blocked_s: float = 0.0
    _drawn: int = 0

    def __post_init__(self) -> None:
        config, recipe = self.config, self.config.recipe
        count, slots = config.placement.engines, config.slots
        lockstep = config.placement.deterministic
        length_of = by_key(self.lengths)
        for number in range(count):
            self._engines.append(
                TimedEngine(
                    slots // count + (number < slots % count),
                    length_of,
                    self.speeds.step_seconds,
                    self.shared,
                    lockstep=lockstep,
                    prompt_tokens=self.speeds.prompt_tokens,
                    swap_s=0.0 if lockstep else self.speeds.swap_s,
                )
            )
        schedule = schedule_of(config, config.lag_ticks)
        self._coordinator = Coordinator(self._engines, schedule, recipe.generations_per_prompt, config.seed)
        self._coordinator.begin(0, self._draw(self._first_visits()))

    def run(self, updates: int) -> Figures:
        """Simulate the run.

        Args:
            updates: Number of updates to measure in the steady state.

        Raises:
            Stuck: Neither side can continue, which is a bug of the schedule.
        """
        ahead: list[int] = []
        while not self._steady(ahead):
            for formed in self._advance():
                self._train(formed)
                self._note(formed, _Sums())
                ahead.append(len(self._under_way))
        sums, before, seen = _Sums(), self._counters(), 0
        while seen < updates:
            for formed in self._advance():
                self._train(formed)
                self._note(formed, sums)
                seen += 1
        return self._figures(before, self._counters(), sums, seen)

    def _steady(self, ahead: list[int]) -> bool:
        """Return whether the run is in its steady state.

        The ramp-up is over, and generation has not moved further ahead of training for k + 1 batches. If training is
        only slightly slower than generation, this takes many updates.

        Args:
            ahead: Number of untrained batches at each completion of a batch.
        """
        recipe, ramp = self.config.recipe, self._ramp()
        window = recipe.off_policy.max_lag + 1
        if len(ahead) < ramp:
            return False
        return max(ahead[-window:]) <= max(ahead[:-window], default=0) or len(ahead) >= 8 * ramp

    # ------------------------------------------------------------------------------------------------------- one event

    def _advance(self) -> list[Formed]:
        """Advance the time to the next event; return the batches completed by then."""
        coordinator, shared = self._coordinator, self.shared
        while self._under_way and self._under_way[0][0] <= shared.now:
            coordinator.receive(self._under_way.popleft()[1])
        if coordinator.blocked():
            self._wait()
            return []
        ticks, active = coordinator.ticks, coordinator.schedule.active
        arrival = self._under_way[0][0] if self._under_way else math.inf
        shared.until = min(shared.now + self._quantum, arrival)
        formed = coordinator.step()
        coordinator.fresh.clear()
        self._forget(coordinator.late)
        if not coordinator.lockstep:
            shared.now = shared.until
            return formed
        if coordinator.ticks == ticks:
            if not formed and coordinator.schedule.active == active:
                raise Stuck(f"a step had no effect: {coordinator.schedule} after {ticks} ticks")
            return formed
        swapped = self.speeds.swap_s * (coordinator.schedule.active - active)
        shared.now += max(engine.step_s for engine in self._engines) + swapped
        return formed

    def _wait(self) -> None:
        """Advance the time to the arrival of the next weights."""
        if not self._under_way:
            raise Stuck(f"no further event: {self._coordinator.schedule} after {self._coordinator.ticks} ticks")
        arrival = self._under_way[0][0]
        self._blocked_s += arrival - self.shared.now
        self.shared.now = arrival
        for engine in self._engines:
            engine.wait_until(arrival)

    @property
    def _quantum(self) -> float:
        """Seconds between two polls of asynchronous engines."""
        slots = max(engine.slots for engine in self._engines)
        mean = float(self.lengths.mean())
        step = self.speeds.step_seconds(slots, slots * (self.speeds.prompt_tokens + mean / 2))
        batch = mean * self.config.recipe.completions_per_step / self.config.slots
        return step * max(1.0, min(mean, batch) / QUANTA)

    def _train(self, formed: Formed) -> None:
        lengths = np.fromiter(
            (len(rollout) for group in formed.groups.values() for rollout in group.rollouts), dtype=np.int64
        )
        took = self.speeds.update_seconds(lengths)
        weights = self.config.recipe.off_policy.samples_with(formed.number + 1)
        sending = self.speeds.transfer_s if weights else 0.0
        self._trainer_free_at = max(self._trainer_free_at, self.shared.now) + took + sending
        self._trainer_s += took + sending
        visits = self._draw(self.config.recipe.prompts_per_step + len(formed.dropped))
        self._under_way.append((self._trainer_free_at, Update(formed.number + 1, weights, visits)))

    # --------------------------------------------------------------------------------------------------------- prompts

    def _first_visits(self) -> int:
        """Return how many prompts a run draws for its first weights; same as Session.initial_visits."""
        recipe = self.config.recipe
        visits = recipe.prompts_per_step * (recipe.off_policy.max_lag + 1)
        if recipe.off_policy.waits:
            return visits
        longest = recipe.length.max_tokens / self.config.expected_tokens
        return visits + groups_beyond(self.config.slots, recipe.generations_per_prompt, longest)

    def _draw(self, wanted: int) -> tuple[Visit, ...]:
        first, self._drawn = self._drawn, self._drawn + wanted
        return tuple(map(visit_of, range(first, self._drawn)))

    def _ramp(self) -> int:
        """Return the updates of the ramp-up: those during the longest completion, and k + 1."""
        slots_batches = self.config.slots / self.config.recipe.completions_per_step
        spans = float(self.lengths.max() / self.lengths.mean()) * slots_batches
        return self.config.recipe.off_policy.max_lag + 1 + math.ceil(spans)

    # --------------------------------------------------------------------------------------------------------- figures

    def _note(self, formed: Formed, sums: _Sums) -> None:
        max_lag = self.config.recipe.off_policy.max_lag
        sums.groups += len(formed.groups)
        sums.dropped += len(formed.dropped)
        for index in formed.groups:
            for sample in range(self.config.recipe.generations_per_prompt):
                for version, count in self.shared.spans.pop((index, sample)):
                    age = formed.number - version
                    sums.tokens += count
                    sums.aged += age * count
                    sums.oldest = max(sums.oldest, age)
                    if age > max_lag:
                        sums.stale += count

    def _forget(self, late: list[int]) -> None:
        for index in late:
            for sample in range(self.config.recipe.generations_per_prompt):
                self.shared.spans.pop((index, sample), None)
        late.clear()

    def _counters(self) -> _Counters:
        work = [engine.work for engine in self._engines]
        now = self.shared.now
        empty = sum(engine.empty_s for engine in self._engines) / len(work)
        lockstep = self.config.placement.deterministic
        busy = self._trainer_s - max(0.0, self._trainer_free_at - now)
        return _Counters(
            now,
            sum(w.tokens for w in work),
            sum(w.slot_steps for w in work),
            self._blocked_s if lockstep else empty,
            busy,
        )

    def _figures(self, before: _Counters, after: _Counters, sums: _Sums, updates: int) -> Figures:
        seconds = max(1e-9, after.now - before.now)
        steps = after.slot_steps - before.slot_steps
        sampled = (after.tokens - before.tokens) / seconds
        dropped = sums.dropped / max(1, sums.groups + sums.dropped)
        return Figures(
            updates=updates,
            seconds=seconds,
            tokens_per_s=sampled,
            trained_tokens_per_s=sums.tokens / seconds,
            updates_per_h=3600.0 * sampled * (1.0 - dropped) * updates / sums.tokens if sums.tokens else 0.0,
            occupancy=(after.tokens - before.tokens) / steps if steps else 0.0,
            generator_idle=(after.empty_s - before.empty_s) / seconds,
            trainer_idle=max(0.0, 1.0 - (after.trainer_s - before.trainer_s) / seconds),
            staleness_mean=sums.aged / sums.tokens if sums.tokens else 0.0,
            staleness_max=sums.oldest,
            stale_share=sums.stale / sums.tokens if sums.tokens else 0.0,
            dropped_share=dropped,
        )
