"""Compares training steps with TRL's GRPOTrainer: samples per second on the same model, prompts and work.

    python benchmarks/trainers.py --trl /path/to/an/environment/with/trl/bin/python [--sizes 3.3M 165k] [--rounds 3]

The work: 8 prompts x 8 generations x 64 new tokens per step, loss CISPO, no prompt filter, on all cores of the machine.
Rounds alternate between the two, and the ratio is the median over rounds. Each uses its defaults: scalerl overlaps
generation and training (PipelineRL-8), and TRL alternates between them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from work import machine, save_model, save_prompts, train

STEPS, WARM_UP = 48, 12
HERE = Path(__file__).parent
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1"}
"""Environment variables of both trainers: threads that sleep instead of spin, and the shared reward."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, help="python of an environment with TRL; default: only scalerl runs")
    parser.add_argument("--sizes", nargs="+", default=["3.3M", "165k"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("trainers.json"))
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            save_model(size, place / "model")
            save_prompts(place / "prompts.jsonl", 400)
            rounds = [compare(place / f"round-{i}", place, options.trl) for i in range(options.rounds)]
        results[size] = rounds
        scalerl_rate = statistics.median(r["scalerl"] for r in rounds)
        tokens = statistics.mean(r["tokens"] for r in rounds)
        line = f"{size}: scalerl {scalerl_rate:.1f} samples/s ({tokens:.1f} tokens each)"
        if options.trl:
            trl_rate = statistics.median(r["trl"] for r in rounds)
            ratio = statistics.median(r["scalerl"] / r["trl"] for r in rounds)
            line += f", TRL {trl_rate:.1f} samples/s, ratio {ratio:.2f}"
        print(line, flush=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


def compare(
    run: Path, place: Path, trl: Path | str | None, steps: int = STEPS, warm_up: int = WARM_UP
) -> dict[str, float]:
    """Run both trainers once; return their samples per second."""
    found = scalerl(run, place, steps, warm_up)
    if trl:
        command = [str(trl), str(HERE / "trl_baseline.py"), str(place / "model"), str(place / "prompts.jsonl"),
                   str(steps), str(warm_up)]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT})
        found["trl"] = json.loads(done.stdout.splitlines()[-1])["samples_per_s"]
    return found


def scalerl(run: Path, place: Path, steps: int, warm_up: int) -> dict[str, float]:
    """Train through the command line."""
    words = [
        "--model", str(place / "model"), "--data", str(place / "prompts.jsonl"), "--reward", "rewards:even_start",
        "--steps", str(steps), "--recipe.prompts_per_step", "8",
        "--recipe.generations_per_prompt", "8", "--recipe.length", "{kind = 'none', max_tokens = 64}",
        "--recipe.zero_variance", "keep", "--recipe.truncated", "keep", "--recipe.retire_pass_rate", "none",
        "--evaluation.prompts", "8", "--evaluation.samples", "1", "--evaluation.every", "1000",
        "--checkpoint.every", "1000",
    ]  # fmt: skip
    measured = train(run, words, **ENVIRONMENT)[warm_up:]
    seconds = sum(row["step_s"] for row in measured)
    tokens = statistics.mean(row["completion_tokens_mean"] for row in measured)
    return {"scalerl": 64 * len(measured) / seconds, "tokens": tokens}


if __name__ == "__main__":
    main()
