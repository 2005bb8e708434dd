"""Runs of the coordinator with simulated engines and a trainer of random speed, at random sizes."""

import math
import random
from dataclasses import dataclass
from functools import cache

from scalerl.training.config.length import NoLengthControl
from scalerl.training.engines.activation import AtTick, Following, OnArrival
from scalerl.training.engines.coordinator import Coordinator
from scalerl.training.engines.schedule import PipelineSchedule, RoundSchedule
from scalerl.training.machines.measured import lognormal
from scalerl.training.machines.simulated_engine import Clock, ExactSimulatedEngine, by_key
from scalerl.training.machines.simulation import SimulatedTrainer
from scalerl.training.machines.speed import Speeds

PIPELINES = [("pipeline", k, rule) for k in (0, 1, 3, 8) for rule in ("wait", "mask", "drop")]
ROUNDS = [("rounds", 1, ""), ("rounds", 4, "")]
ACTIVATIONS = {
    "lag unknown": AtTick(-1),
    "lag 0": AtTick(0),
    "lag 3": AtTick(3),
    "lag 60": AtTick(60),
    "follows": Following(3),
}
LENGTHS = by_key(lognormal(8.0, 1.0, NoLengthControl(max_tokens=80)))
SEED = 5
UPDATES = 25
SAVED = (1, 6, 13)
"""Versions at which runs are saved. At 25 only the last group of the curriculum is left, unless some were dropped."""


class FiniteTrainer(SimulatedTrainer):
    """A trainer whose curriculum ends, and which can resume."""

    visits = 1 << 60
    """Number of visits in the curriculum; after them it is closed."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.on_activation = lambda version, drawn: None
        """Called with a version that became active and the number of visits drawn when it was sent; a run saves its
        state at this point."""
        self._drawn_after = {}

    def draw(self, wanted):
        return super().draw(min(wanted, self.visits - self.drawn))

    def train(self, formed):
        super().train(formed)
        self._drawn_after[formed.number + 1] = self.drawn

    def activated(self):
        version = self.coordinator.schedule.active
        self.on_activation(version, self._drawn_after.pop(version))

    def resume(self, sampling_version, drawn):
        """Resume with a coordinator whose state was restored; return the batches that had not been trained."""
        self.drawn = drawn
        self.coordinator.begin(sampling_version)
        again = self.coordinator.untrained()
        for formed in again:
            self.train(formed)
        return again


@dataclass(frozen=True)
class Sizes:
    """Sizes of one trial: slots from about half a batch to four batches."""

    engines: int
    slots: int
    per_batch: int
    group_size: int
    delays: int = 0

    @classmethod
    def draw(cls, *name):
        rng = random.Random(repr(name))
        per_batch, group_size, engines = rng.choice((1, 3, 5)), rng.choice((1, 2, 4)), rng.choice((1, 2, 3))
        slots = max(1, round(rng.choice((0.5, 1, 2, 4)) * per_batch * group_size / engines))
        return cls(engines, slots, per_batch, group_size)


def make(schedule, activation, sizes):
    """Return a trainer with coordinator and engines; the last batch has one group if none is dropped."""
    kind, k, rule = schedule
    when = ACTIVATIONS.get(activation) or OnArrival()
    if kind == "pipeline":
        plan = PipelineSchedule(sizes.per_batch, when, k, rule)
    else:
        plan = RoundSchedule(sizes.per_batch, when, k)
    clock = Clock()
    engines = [ExactSimulatedEngine(sizes.slots, LENGTHS, clock=clock) for _ in range(sizes.engines)]
    delays = random.Random(f"{sizes} {schedule}")
    times = [delays.choice((0, 1, 5, 30, 200)) * delays.random() for _ in range(4 * UPDATES)]
    trainer = FiniteTrainer(
        Coordinator(engines, plan, sizes.group_size, SEED),
        Speeds(drift=[(1.0, time) for time in times]),
        clock,
        lambda version: kind == "pipeline" or version % k == 0,
    )
    trainer.visits = curriculum(schedule, sizes)
    return trainer


def curriculum(schedule, sizes):
    """Return the number of visits: 25 batches and one group; four times as many if most may be dropped."""
    return (4 if schedule[2] == "drop" else 1) * UPDATES * sizes.per_batch + 1


def start(trainer, schedule):
    """Start with the visits of k + 1 batches and, unless groups wait, those of ten times the slots."""
    kind, k, rule = schedule
    coordinator, lag = trainer.coordinator, k if kind == "pipeline" else k - 1
    slots = sum(engine.slots for engine in coordinator.engines)
    ahead = 0 if rule in ("wait", "") else math.ceil(10 * slots / coordinator.group_size)
    trainer.start(coordinator.schedule.per_batch * (lag + 1) + ahead)


@cache
def played(schedule, activation, trial=0):
    """Run a whole curriculum; return the sizes and the batches."""
    sizes = Sizes.draw(schedule, activation, trial)
    trainer = make(schedule, activation, sizes)
    start(trainer, schedule)
    return sizes, list(trainer.batches(1000))


def bits(batches):
    """Return the content of a batch without seconds."""
    return [
        (
            b.number,
            (b.stats.tick, b.stats.tokens, b.stats.slot_steps),
            [v.index for v in b.dropped],
            [
                (i, g.visit.index, g.oldest_version, [r.versions.tolist() for r in g.rollouts])
                for i, g in b.groups.items()
            ],
        )
        for b in batches
    ]
