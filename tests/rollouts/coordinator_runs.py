"""Runs of the coordinator with simulated engines and a trainer of random speed, at random sizes."""

import random
from dataclasses import dataclass
from functools import cache

from scalerl.rollouts.activation import AtTick, Following, OnArrival
from scalerl.rollouts.coordinator import Coordinator
from scalerl.rollouts.local.simulated import (
    CalendarEngine,
    SimulatedTrainer,
    by_key,
    lognormal_lengths,
    visit_of,
    visits_ahead,
)
from scalerl.rollouts.schedule import PipelineSchedule, RoundSchedule

PIPELINES = [("pipeline", k, rule) for k in (0, 1, 3, 8) for rule in ("wait", "mask", "drop")]
ROUNDS = [("rounds", 1, ""), ("rounds", 4, "")]
ACTIVATIONS = {
    "lag unknown": AtTick(-1),
    "lag 0": AtTick(0),
    "lag 3": AtTick(3),
    "lag 60": AtTick(60),
    "follows": Following(3),
}
LENGTHS = by_key(lognormal_lengths(8.0))
SEED = 5
UPDATES = 25
SAVED = (1, 6, 13)
"""Versions at which runs are saved. At 25 only the last group of the curriculum is left, unless some were dropped."""


class Forgetful(CalendarEngine):
    """An engine that cannot save sequences in flight."""

    exact_resume = False

    def state(self):
        raise AssertionError("asked for a state it does not have")


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


def make(schedule, activation, sizes, exact=True):
    """Return a trainer with coordinator and engines; the last batch has one group if none is dropped."""
    kind, k, rule = schedule
    when = ACTIVATIONS.get(activation) or OnArrival()
    if kind == "pipeline":
        plan = PipelineSchedule(sizes.per_batch, when, k, rule)
    else:
        plan = RoundSchedule(sizes.per_batch, when, k)
    kind_of_engine = CalendarEngine if exact else Forgetful
    engines = [kind_of_engine(sizes.slots, LENGTHS) for _ in range(sizes.engines)]
    delays = random.Random(f"{sizes} {schedule}")
    times = [delays.choice((0, 1, 5, 30, 200)) * delays.random() for _ in range(4 * UPDATES)]
    return SimulatedTrainer(
        Coordinator(engines, plan, sizes.group_size, SEED),
        visit_of,
        update_ticks=lambda number: times[number % len(times)],
        visits=curriculum(schedule, sizes),
        sends_weights=lambda version: kind == "pipeline" or version % k == 0,
    )


def curriculum(schedule, sizes):
    """Return the number of visits: 25 batches and one group; four times as many if most may be dropped."""
    return (4 if schedule[2] == "drop" else 1) * UPDATES * sizes.per_batch + 1


def start(trainer, schedule):
    kind, k, rule = schedule
    lag, rule = (k, rule) if kind == "pipeline" else (k - 1, "wait")
    trainer.start(visits_ahead(trainer.coordinator, rule, lag, 10.0))


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
