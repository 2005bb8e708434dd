"""Simulates a run in time: the real coordinator and schedule, over engines that only count tokens.

The interplay of generation and training follows the code of real runs. The durations of decode steps, updates and
transfers and the lengths of completions are assumptions or measurements (speed.py, measured.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.core.types import Prompt, Visit
from scalerl.training.engines.coordinator import Coordinator, Formed, NewVersion
from scalerl.training.engines.schedule import first_visits, schedule_of
from scalerl.training.machines.simulated_engine import Clock, ExactSimulatedEngine, SimulatedEngine, by_key
from scalerl.training.machines.speed import Lengths, Speeds
from scalerl.training.placement.sizes import RunSizes

QUANTA = 40
"""Default polls per mean completion or batch, if that is shorter. A finished sequence is replaced at the next poll."""


class Stuck(RuntimeError):
    """Neither side of a simulation can continue, which is a bug of the schedule."""


class SimulatedTrainer:
    """Simulates the training of a coordinator's batches, one at a time, and sends it updates with new prompts.

    Example:
        trainer = SimulatedTrainer(coordinator, Speeds(update_seconds=lambda lengths: 40.0), clock)
        trainer.start(first=144)
        for formed in trainer.batches(100): ...
    """

    def __init__(
        self,
        coordinator: Coordinator,
        speeds: Speeds,
        clock: Clock,
        sends_weights: Callable[[int], bool] = lambda version: True,
        poll_s: float = 1.0,
    ) -> None:
        """Make a trainer.

        Args:
            coordinator: A coordinator over simulated engines.
            speeds: Durations of updates and transfers.
            clock: The clock of the engines.
            sends_weights: Function that returns whether the weights of a version are sent.
            poll_s: Seconds between two polls of asynchronous engines.
        """
        self.coordinator, self.speeds, self.clock = coordinator, speeds, clock
        self.sends_weights, self.poll_s = sends_weights, poll_s
        self.drawn = 0
        """Visits drawn so far."""
        self.under_way: deque[tuple[float, NewVersion]] = deque()
        """(arrival time at the engines, update), in order."""
        self.blocked_s = 0.0
        """Seconds in which engines in lockstep waited for weights."""
        self._free_at, self._booked_s = 0.0, 0.0
        clock.pace = speeds.drift[0][0]

    @property
    def worked_s(self) -> float:
        """Seconds of training and sending so far."""
        return self._booked_s - max(0.0, self._free_at - self.clock.now)

    def start(self, first: int) -> None:
        """Start with version 0 and the first visits."""
        self.coordinator.begin(0, self.draw(first))

    def batches(self, count: int) -> Iterator[Formed]:
        """Train and yield `count` more batches, or fewer if the curriculum is exhausted.

        Raises:
            Stuck: Neither side can continue.
        """
        coordinator = self.coordinator
        while count > 0 and not (coordinator.schedule.closed and not self.under_way and coordinator.blocked()):
            for formed in self.step():
                self.train(formed)
                count -= 1
                yield formed

    def step(self) -> list[Formed]:
        """Advance the time to the next event; return the batches that were completed by then.

        Raises:
            Stuck: Neither side can continue.
        """
        coordinator, clock = self.coordinator, self.clock
        while self.under_way and self.under_way[0][0] <= clock.now:
            coordinator.receive(self.under_way.popleft()[1])
        arrival = self.under_way[0][0] if self.under_way else math.inf
        blocked = coordinator.blocked()
        if blocked and math.isinf(arrival):
            raise Stuck(f"no further event: {coordinator.schedule} after {coordinator.ticks} ticks")
        if blocked:
            clock.until = arrival
            self.blocked_s += arrival - clock.now if coordinator.lockstep else 0.0
        elif not coordinator.lockstep:
            clock.until = min(clock.now + self.poll_s, arrival)
        before = coordinator.ticks, coordinator.schedule.active
        formed = coordinator.step(self.activated)
        idle = not formed and before == (coordinator.ticks, coordinator.schedule.active)
        if idle and coordinator.lockstep and not blocked:
            raise Stuck(f"a step had no effect: {coordinator.schedule} after {coordinator.ticks} ticks")
        clock.now = clock.until
        coordinator.fresh.clear()
        coordinator.late.clear()
        return formed

    def train(self, formed: Formed) -> None:
        """Train a batch when the trainer is free; its update arrives later."""
        lengths = np.fromiter((len(r) for group in formed.groups.values() for r in group.rollouts), dtype=np.int64)
        speeds, version = self.speeds, formed.number + 1
        weights = self.sends_weights(version)
        took = speeds.update_seconds(lengths) * speeds.drift[formed.number % len(speeds.drift)][1]
        took += speeds.transfer_s if weights else 0.0
        self._free_at = max(self._free_at, self.clock.now) + took
        self._booked_s += took
        self.clock.pace = speeds.drift[version % len(speeds.drift)][0]
        count = self.coordinator.schedule.per_batch + len(formed.dropped)
        visits = self.draw(count)
        self.under_way.append((self._free_at, NewVersion(version, weights, visits, closed=len(visits) < count)))

    def draw(self, count: int) -> tuple[Visit, ...]:
        """Return the next visits of an endless curriculum."""
        first, self.drawn = self.drawn, self.drawn + count
        return tuple(map(visit_of, range(first, self.drawn)))

    def activated(self) -> None:
        """Do nothing; called when a version became active."""


_PROMPTS = [Prompt(f"{i:016x}", "", (1,), "", "none") for i in range(1000)]


def visit_of(index: int) -> Visit:
    """Return a visit of an endless curriculum of 1,000 prompts."""
    return Visit(_PROMPTS[index % len(_PROMPTS)], index // len(_PROMPTS), index)


# ---------------------------------------------------------------------------------------------------------- whole runs


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


def simulate_run(run: RunSizes, speeds: Speeds, lengths: Lengths, updates: int, quanta: int = QUANTA) -> Figures:
    """Simulate a run in its steady state.

    Args:
        run: The run.
        speeds: Durations.
        lengths: Lengths that completions are drawn from.
        updates: Number of updates to measure.
        quanta: Polls per mean completion or batch.

    Raises:
        Stuck: Neither side can continue.
    """
    recipe, count, slots = run.recipe, run.placement.engines, run.slots
    clock, length_of = Clock(), by_key(lengths)
    kind = ExactSimulatedEngine if run.schedule == "deterministic" else SimulatedEngine
    engines = [kind(slots // count + (number < slots % count), length_of, speeds, clock) for number in range(count)]
    coordinator = Coordinator(engines, schedule_of(run), recipe.generations_per_prompt, run.seed)
    mean = float(lengths.mean())
    batch_steps = mean * recipe.completions_per_step / slots
    poll_s = speeds.mean_step(engines[0].slots, mean) * max(1.0, min(mean, batch_steps) / quanta)
    trainer = SimulatedTrainer(coordinator, speeds, clock, recipe.off_policy.samples_with, poll_s)
    trainer.start(first_visits(run))

    def counters() -> npt.NDArray[np.float64]:
        stats, idle_s = coordinator.stats(), trainer.blocked_s + sum(engine.empty_s for engine in engines) / count
        return np.array([clock.now, stats.tokens, stats.slot_steps, idle_s, trainer.worked_s])

    untrained: list[int] = []
    while not _steady(run, lengths, untrained):
        for formed in trainer.step():
            trainer.train(formed)
            untrained.append(len(trainer.under_way))
    before, trained = counters(), _Trained(recipe.off_policy.max_lag)
    while trained.batches < updates or coordinator.stats().tokens <= before[1]:  # batches may come in one burst
        for formed in trainer.step():
            trainer.train(formed)
            trained.add(formed)
    return _figures((counters() - before).tolist(), trained)


def _steady(run: RunSizes, lengths: Lengths, untrained: Sequence[int]) -> bool:
    """Return whether a run is in its steady state.

    The ramp-up is over: k + 1 updates, and those during the longest completion. And generation has not moved further
    ahead of training for k + 1 batches. If training is only slightly slower than generation, this takes many updates.

    Args:
        run: The run.
        lengths: Lengths of completions.
        untrained: Number of untrained batches at each completion of a batch.
    """
    window = run.recipe.off_policy.max_lag + 1
    slots_batches = run.slots / run.recipe.completions_per_step
    ramp = window + math.ceil(float(lengths.max() / lengths.mean()) * slots_batches)
    if len(untrained) < ramp:
        return False
    return max(untrained[-window:]) <= max(untrained[:-window], default=0) or len(untrained) >= 8 * ramp


@dataclass(slots=True)
class _Trained:
    """Sums over the measured batches."""

    max_lag: int
    batches: int = 0
    tokens: int = 0
    aged: int = 0
    """Sum of the tokens' staleness."""
    stale: int = 0
    oldest: int = 0
    groups: int = 0
    dropped: int = 0

    def add(self, formed: Formed) -> None:
        self.batches += 1
        self.groups += len(formed.groups)
        self.dropped += len(formed.dropped)
        for group in formed.groups.values():
            self.oldest = max(self.oldest, formed.number - group.oldest_version)
            for rollout in group.rollouts:
                age_T = formed.number - rollout.versions
                self.tokens += len(age_T)
                self.aged += int(age_T.sum())
                self.stale += int((age_T > self.max_lag).sum())


def _figures(interval: Sequence[float], trained: _Trained) -> Figures:
    """Return the figures of an interval: its seconds, sampled tokens, slot-steps, idle seconds, training seconds."""
    seconds, sampled, slot_steps, idle_s, worked_s = interval
    rate, tokens = sampled / seconds, max(1, trained.tokens)
    dropped = trained.dropped / max(1, trained.groups + trained.dropped)
    return Figures(
        updates=trained.batches,
        seconds=seconds,
        tokens_per_s=rate,
        trained_tokens_per_s=trained.tokens / seconds,
        updates_per_h=3600.0 * rate * (1.0 - dropped) * trained.batches / tokens,
        occupancy=sampled / slot_steps,
        generator_idle=idle_s / seconds,
        trainer_idle=max(0.0, 1.0 - worked_s / seconds),
        staleness_mean=trained.aged / tokens,
        staleness_max=trained.oldest,
        stale_share=trained.stale / tokens,
        dropped_share=dropped,
    )
