"""256 conversations whose environment needs 0.5 s for every reply: how busy are engine and trainer?

python benchmarks/replies.py [--steps 5] [--max-lag 8] [--out benchmarks/results/replies.json]

Throughput is relative to an environment that replies at once. A tiny random model on CPU; the rows differ in
threads for replies, and in decode steps until a reply is used.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from own_environment import SETTINGS, Lookups
from tiny_model import QUICK, tiny_model

import scalerl

ROWS = [("at once", 0.0, 1, 8), ("64 threads, 8 steps", 0.5, 64, 8),
        ("64 threads, 64 steps", 0.5, 64, 64), ("64 threads, 256 steps", 0.5, 64, 256),
        ("1 thread, 8 steps", 0.5, 1, 8)]  # fmt: skip
"""Name, seconds of a reply, reply_threads, reply_ticks."""


class Slow(Lookups):
    """Look-ups that take time."""

    def __init__(self, wait_s: float = 0.5) -> None:
        """Set the time of a reply in seconds."""
        super().__init__()
        self.wait_s = wait_s

    def reply(self, row, messages):
        """Return the entry or the score, after a while."""
        time.sleep(self.wait_s)
        return super().reply(row, messages)


def measure(wait_s: float, threads: int, ticks: int, steps: int, max_lag: int = 1) -> dict[str, float]:
    """Return medians of a run's metrics without its first step."""
    with tempfile.TemporaryDirectory() as directory:
        run = scalerl.train(
            model=tiny_model("abcd>"),
            data={
                "kind": "custom", "function": "replies:Slow", "params": {"wait_s": wait_s}, "prompts": 200, "turns": 3,
                "reply_tokens": 2, "reply_threads": threads, "reply_ticks": ticks,
            },
            run_dir=Path(directory) / "run", progress=False, checkpoint={"every": 1000},
            rollouts={"slots": 64, "ahead": 32},
            **QUICK | SETTINGS | {
                "steps": steps, "evaluation": {"prompts": 16, "samples": 1, "every": 1000},
                "recipe__off_policy": {"kind": "pipeline", "max_lag": max_lag},
            },
        )  # fmt: skip
        rows = [json.loads(line) for line in (run.path / "metrics.jsonl").open()][1:]
    names = ("occupancy", "generator_tokens_per_s", "trainer_idle", "reply_wait_s", "step_s", "turns")
    return {name: statistics.median(row[name] for row in rows if row[name] is not None) for name in names}


def main() -> None:
    """Print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--max-lag", type=int, default=1, help="limits the rollouts under way; most wait for replies")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {}
    print(f"{'replies':24}{'tokens/s':>10}{'busy slots':>12}{'trainer idle':>14}{'wait':>8}{'step':>8}")
    for name, *settings in ROWS:
        one = results[name] = measure(*settings, options.steps, options.max_lag)
        print(
            f"{name:24}{one['generator_tokens_per_s']:10.0f}{one['occupancy']:12.0%}{one['trainer_idle']:14.0%}"
            f"{one['reply_wait_s']:7.2f}s{one['step_s']:7.2f}s", flush=True,
        )  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
