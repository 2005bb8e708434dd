"""Measures the speedup by overlap: the lab with PipelineRL-8 compared with alternating generation and training (k = 0).

    python benchmarks/overlap.py [--rounds 3] [--steps 80] [--out overlap.json] [-- --any.field VALUE ...]

When they alternate, one side always waits, so each side may use all cores; the case with one thread per side is
measured too. Steps per second are from the metrics of the run after the first ten steps, without evaluations. Prints
medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from work import machine, seconds_a_step

ARMS = {
    "pipeline, 1 thread per side": ["--recipe.off_policy.max_lag", "8"],
    "alternating, 1 thread per side": ["--recipe.off_policy.max_lag", "0"],
    "alternating, 2 threads per side": ["--recipe.off_policy.max_lag", "0", "--hardware.generator_threads", "2",
                                   "--hardware.trainer_threads", "2"],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--out", type=Path, default=Path("overlap.json"))
    parser.add_argument("extra", nargs="*", help="options of `scalerl train`, after --")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(options.rounds):
        for name, words in ARMS.items():
            rates[name].append(1 / seconds_a_step([*words, "--steps", str(options.steps), *options.extra]))
    pipeline = rates["pipeline, 1 thread per side"]
    for name, values in rates.items():
        ratio = statistics.median(p / v for p, v in zip(pipeline, values, strict=True))
        print(f"{name:31s} {statistics.median(values):6.2f} steps/s   pipeline is {ratio:.2f}x")
    options.out.write_text(json.dumps({"machine": machine(), "steps_per_s": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
