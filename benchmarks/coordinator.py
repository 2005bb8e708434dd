"""Measures the throughput of the coordinator and the cost of the three staleness rules, by simulation without a model.

    python benchmarks/coordinator.py [--groups 1000000] [--out coordinator.json]

Rates: 64 engines of 256 slots, lognormal lengths of 100 tokens on average, groups of 16, k = 8, batches as large as all
slots. Times are CPU seconds of the process, so that other load on the machine matters less. The engines only keep a
calendar of the times at which sequences end. Their share of the time is measured in a separate run, because timing each
call takes time.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from work import machine

from scalerl.training.config.base import replace
from scalerl.training.config.length import NoLengthControl
from scalerl.training.config.presets import LAB
from scalerl.training.config.recipe import PipelineRL
from scalerl.training.config.run import RunConfig
from scalerl.training.engines.coordinator import Coordinator
from scalerl.training.engines.schedule import first_visits, schedule_of
from scalerl.training.machines.measured import lognormal
from scalerl.training.machines.simulated_engine import Clock, ExactSimulatedEngine, by_key
from scalerl.training.machines.simulation import SimulatedTrainer, simulate_run
from scalerl.training.machines.speed import Speeds
from scalerl.training.placement.sizes import RunSizes

ENGINES, SLOTS, GROUP, MAX_LAG, MEAN = 64, 256, 16, 8, 100
BATCH = ENGINES * SLOTS // GROUP
MANY = ((512, 32), (512, 64))
"""Larger clusters: engines, and slots per engine."""
RULES = ("wait", "mask", "drop")
MAX_RATIO = 10
"""Longest completion, in multiples of the mean."""
Wrap = Callable[[ExactSimulatedEngine], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000_000, help="groups of the memory run")
    parser.add_argument("--rate-groups", type=int, default=30_000, help="groups of each rate run")
    parser.add_argument("--out", type=Path, default=Path("coordinator.json"))
    options = parser.parse_args()

    print(f"{ENGINES} engines of {SLOTS} slots, groups of {GROUP}\n\n| rule | groups/s | share of the coordinator |")
    print("|---|---|---|")
    rates: dict[str, Any] = {}
    for rule in RULES:
        plain, whole = rate(rule, options.rate_groups), rate(rule, options.rate_groups // 3, Timed)
        share = 1 - whole["engine_seconds"] / whole["seconds"]
        rates[rule] = {**plain, "coordinator_share": share}
        print(f"| {rule} | {plain['groups_per_s']:,.0f} | {share:.0%} |", flush=True)
    for engines, slots in MANY:
        many = rate("wait", options.rate_groups, size=(engines, slots))
        rates[f"wait, {engines} engines of {slots} slots"] = many
        print(f"with {engines} engines of {slots} slots: {many['groups_per_s']:,.0f} groups/s", flush=True)
    table = rules_table()
    sizes = memory(options.groups)
    figures = {"machine": machine(), "rates": rates, "rules": table, "resident_MiB_after_groups": sizes}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def config_of(rule: str, slots: int, batch: int, group_size: int, mean: int) -> RunConfig:
    """Return a configuration of a rule, with batches of a number of completions."""
    recipe = replace(
        LAB.recipe,
        prompts_per_step=batch // group_size,
        generations_per_prompt=group_size,
        length=NoLengthControl(max_tokens=MAX_RATIO * mean),
        off_policy=PipelineRL(max_lag=MAX_LAG, stale=rule),
    )
    return replace(LAB, recipe=recipe, rollouts=replace(LAB.rollouts, slots=slots, expected_tokens=mean))


def trainer_of(
    rule: str, group_size: int = GROUP, size: tuple[int, int] = (ENGINES, SLOTS), wrap: Wrap = lambda engine: engine
) -> SimulatedTrainer:
    """Return a trainer over engines with a number of slots each."""
    config, clock = config_of(rule, size[0] * size[1], size[0] * size[1], group_size, MEAN), Clock()
    length_of = by_key(lognormal(MEAN, 1.0, config.recipe.length))
    engines = [wrap(ExactSimulatedEngine(size[1], length_of, clock=clock)) for _ in range(size[0])]
    coordinator = Coordinator(engines, schedule_of(RunSizes.of(config)), group_size, 0)
    trainer = SimulatedTrainer(coordinator, Speeds(update_seconds=lambda lengths: MEAN / 2), clock)
    trainer.start(first_visits(RunSizes.of(config)))
    return trainer


def rate(
    rule: str, groups: int, wrap: Wrap = lambda engine: engine, size: tuple[int, int] = (ENGINES, SLOTS)
) -> dict[str, float]:
    """Return the groups per second of a whole run, its seconds, and those of the engines' calls if they are timed."""
    trainer = trainer_of(rule, size=size, wrap=wrap)
    began = time.process_time()
    done = sum(len(formed.groups) for formed in trainer.batches(-(-groups * GROUP // (size[0] * size[1]))))
    seconds = time.process_time() - began
    ticks = trainer.coordinator.ticks
    engine_seconds = sum(getattr(engine, "seconds", 0.0) for engine in trainer.coordinator.engines)
    return {
        "groups_per_s": done / seconds,
        "ticks_per_s": ticks / seconds,
        "seconds": seconds,
        "engine_seconds": engine_seconds,
    }


class Timed:
    """An engine that times the calls of a step."""

    def __init__(self, inner: ExactSimulatedEngine) -> None:
        self._inner, self.seconds = inner, 0.0
        for name in ("occupancy", "submit", "begin", "poll", "cancel"):
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


def memory(groups: int) -> dict[str, float]:
    """Return the resident size in MiB after a tenth, half and all of the groups."""
    print("\n| groups | resident MiB |\n|---|---|")
    trainer = trainer_of("wait", group_size=4)
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
    lengths = lognormal(40.0, 1.0, NoLengthControl(max_tokens=400))
    for batches in (1, 2, 4):
        speeds = Speeds(update_seconds=lambda completions, batches=batches: 20.0 / batches)  # type: ignore[misc]
        for rule in RULES:
            figures = simulate_run(
                RunSizes.of(config_of(rule, batches * 256, 256, 16, 40)), speeds, lengths, updates=480
            )
            trained = figures.trained_tokens_per_s * figures.seconds / figures.updates / 256 / float(lengths.mean())
            rows.append({"slots_per_batch": batches, "rule": rule, "length": trained, **asdict(figures)})
            shares = f"{figures.stale_share:.1%} | {figures.dropped_share:.1%}"
            print(f"| {batches} | {rule} | {figures.occupancy:.2f} | {trained:.3f} | {shares} |", flush=True)
    return rows


if __name__ == "__main__":
    main()
