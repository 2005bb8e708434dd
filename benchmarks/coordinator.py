"""Measures the throughput of the coordinator and the cost of the three staleness rules, by simulation without a model.

    python benchmarks/coordinator.py [--groups 1000000] [--out coordinator.json]

Rates: 64 engines of 256 slots, lognormal lengths of 100 tokens on average, groups of 16, k = 8, batches as large as all
slots. Times are CPU seconds of the process, so that other load on the machine matters less. The engines only keep a
calendar of finishing times. Their share of the time is measured in a separate run, because timing each call takes time.
Engines: the rate with 512 engines of 32 and of 64 slots, including the bookkeeping of the engines. Memory: resident
size during one run with groups of 4. Rules: occupancy and trained tokens for slots of 1, 2 and 4 batches, with a
trainer that is twice as fast as full engines.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from work import machine

from scalerl.rollouts.activation import AtTick
from scalerl.rollouts.coordinator import Coordinator
from scalerl.rollouts.engine import Engine
from scalerl.rollouts.local.scripted import scripted_engine
from scalerl.rollouts.local.simulated import (
    CalendarEngine,
    RuleFigures,
    SimulatedTrainer,
    by_key,
    lognormal_lengths,
    measure_rule,
    visit_of,
    visits_ahead,
)
from scalerl.rollouts.schedule import PipelineSchedule

ENGINES, SLOTS, GROUP, MAX_LAG, MEAN = 64, 256, 16, 8, 100.0
BATCH = ENGINES * SLOTS // GROUP
MANY = ((512, 32), (512, 64))
"""Larger clusters: engines, and slots per engine."""
RULES = ("wait", "mask", "drop")
MAX_RATIO = 10.0
"""Longest completion, in multiples of the mean."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000_000, help="groups of the memory run")
    parser.add_argument("--rate-groups", type=int, default=30_000, help="groups of each rate run")
    parser.add_argument("--out", type=Path, default=Path("coordinator.json"))
    options = parser.parse_args()
    lengths = by_key(lognormal_lengths(MEAN, cut=MAX_RATIO))
    print(f"{ENGINES} engines of {SLOTS} slots, groups of {GROUP}\n\n| rule | groups/s | share of the coordinator |")
    print("|---|---|---|")
    rates: dict[str, Any] = {}
    for rule in RULES:
        plain = rate(rule, options.rate_groups, lambda: CalendarEngine(SLOTS, lengths))
        timed = [Timed(CalendarEngine(SLOTS, lengths)) for _ in range(ENGINES)]
        whole = rate(rule, options.rate_groups // 3, iter(timed).__next__)
        share = 1 - sum(engine.seconds for engine in timed) / whole["seconds"]
        rates[rule] = {**plain, "coordinator_share": share}
        print(f"| {rule} | {plain['groups_per_s']:,.0f} | {share:.0%} |", flush=True)
    decoded = rate("wait", 2 * BATCH, lambda: scripted_engine(SLOTS, MEAN, round(MAX_RATIO * MEAN)))
    rates["wait, slot engines of a scripted decoder"] = decoded
    print(f"\nwith slot engines of a scripted decoder: {decoded['groups_per_s']:,.0f} groups/s", flush=True)
    for engines, slots in MANY:
        many = rate("wait", options.rate_groups, partial(CalendarEngine, slots, lengths), (engines, slots))
        rates[f"wait, {engines} engines of {slots} slots"] = many
        print(f"with {engines} engines of {slots} slots: {many['groups_per_s']:,.0f} groups/s", flush=True)
    table = rules_table()
    sizes = memory(options.groups, lengths)
    figures = {"machine": machine(), "rates": rates, "rules": table, "resident_MiB_after_groups": sizes}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def trainer_of(
    rule: str, make: Callable[[], Engine], group_size: int = GROUP, size: tuple[int, int] = (ENGINES, SLOTS)
) -> SimulatedTrainer:
    """Return a trainer over engines with a number of slots each."""
    batch = size[0] * size[1] // group_size
    engines = [make() for _ in range(size[0])]
    coordinator = Coordinator(engines, PipelineSchedule(batch, AtTick(round(1.5 * MEAN)), MAX_LAG, rule), group_size, 0)
    trainer = SimulatedTrainer(coordinator, visit_of, update_ticks=lambda n: MEAN / 2)
    trainer.start(visits_ahead(coordinator, rule, MAX_LAG, MAX_RATIO))
    return trainer


def rate(
    rule: str, groups: int, make: Callable[[], Engine], size: tuple[int, int] = (ENGINES, SLOTS)
) -> dict[str, float]:
    """Return the groups per second of a whole run, and its time in seconds."""
    trainer = trainer_of(rule, make, size=size)
    began = time.process_time()
    done = sum(len(formed.groups) for formed in trainer.batches(-(-groups * GROUP // (size[0] * size[1]))))
    seconds = time.process_time() - began
    ticks = trainer.coordinator.ticks
    return {"groups_per_s": done / seconds, "ticks_per_s": ticks / seconds, "seconds": seconds}


class Timed:
    """An engine that times the calls of a step."""

    def __init__(self, inner: CalendarEngine) -> None:
        self._inner, self.seconds = inner, 0.0
        for name in ("occupancy", "submit", "advance", "poll", "cancel"):
            setattr(self, name, self._timed(getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.process_time()
            result = method(*arguments)
            self.seconds += time.process_time() - began
            return result

        return call


def memory(groups: int, lengths: Any) -> dict[str, float]:
    """Return the resident size in MiB after a tenth, half and all of the groups."""
    print("\n| groups | resident MiB |\n|---|---|")
    trainer = trainer_of("wait", lambda: CalendarEngine(SLOTS, lengths), group_size=4)
    sizes: dict[str, float] = {}
    done = 0
    for formed in trainer.batches(groups):
        before, done = done, done + len(formed.groups)
        for mark in (groups // 10, groups // 2, groups):
            if before < mark <= done:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                sizes[str(mark)] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
                print(f"| {mark:,} | {sizes[str(mark)]:.1f} |", flush=True)
        if done >= groups:
            break
    return sizes


def rules_table() -> list[dict[str, Any]]:
    """Measure and print the three rules for slots of 1, 2 and 4 batches of 16 groups of 16."""
    print("\n| slots / batch | rule | occupancy | trained length / population | tokens past k | dropped groups |")
    print("|---|---|---|---|---|---|")
    rows = []
    for batches in (1, 2, 4):
        for rule in RULES:
            figures: RuleFigures = measure_rule(rule, slots=batches * 256, updates=600)
            rows.append({"slots_per_batch": batches, "rule": rule, **figures._asdict()})
            shares = f"{figures.stale_share:.1%} | {figures.dropped_share:.1%}"
            print(f"| {batches} | {rule} | {figures.occupancy:.2f} | {figures.length:.3f} | {shares} |", flush=True)
    return rows


if __name__ == "__main__":
    main()
