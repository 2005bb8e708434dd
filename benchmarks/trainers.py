"""Compares training with TRL's GRPOTrainer: samples per second, and learning on the same task.

    python benchmarks/trainers.py --trl /path/to/an/environment/with/trl/bin/python [--sizes 3.3M 165k] [--rounds 3]
    python benchmarks/trainers.py --learning --trl PYTHON [--arms scalerl trl] [--rates 1.2e-4] [--seeds 0 1 2]

Samples per second: 8 prompts x 8 generations x 64 new tokens per step, loss CISPO, no filter, on all cores of the
machine. Rounds alternate between the two, and the ratio is the median over rounds. Each uses its defaults: scalerl
overlaps generation and training (PipelineRL-8), and TRL alternates between them.

Learning: the lab's model, prompts, reward and evaluation (512 held-out prompts x 2, after every 8 updates of 16 x 16
completions). Rollouts, CPU seconds and seconds are those to a pass rate of 0.6 and 0.75 as the mean of two successive
evaluations; evaluations are not counted. Each arm has its best of the rates, by rollouts to 0.75. The arms of TRL have
its defaults besides sizes and gradient checkpointing (off), and generate with transformers. A finished run in --out is
not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from learning import LEVELS, reached, start
from learning import save_prompts as save_lab_prompts
from work import machine, rows, save_model, save_prompts, train

STEPS, WARM_UP = 48, 12
HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": SOURCES, "HF_HUB_OFFLINE": "1"}
"""Environment variables of both trainers: threads that sleep instead of spin, the shared reward, and this scalerl."""

COMPLETIONS, EVERY = 256, 8
"""Completions of an update, and updates between evaluations, in the comparison of learning."""

RECIPE = {"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "batch"}
"""What TRL's documentation gives for ScaleRL, without the FP32 head: it does not support tied embeddings."""

TRL_ARMS: dict[str, dict[str, Any]] = {
    "trl": {},
    "trl-scalerl": RECIPE,
    "trl-scalerl-8": {**RECIPE, "steps_per_generation": 8},
}
"""Settings of GRPOConfig that differ from its defaults, besides sizes and the rate."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, help="python of an environment with TRL; default: only scalerl runs")
    parser.add_argument("--sizes", nargs="+", default=["3.3M", "165k"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--learning", action="store_true", help="compare what is learned")
    parser.add_argument("--arms", nargs="+", default=["scalerl", *TRL_ARMS], choices=["scalerl", *TRL_ARMS])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.2e-4, 2.4e-4, 4.8e-4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--updates", type=int, default=240, help="most updates of a run of --learning")
    parser.add_argument("--out", type=Path, help="default: trainers.json or learning.json")
    options = parser.parse_args()
    if options.learning:
        compare_learning(options)
        return
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
    (options.out or Path("trainers.json")).write_text(json.dumps(results, indent=1) + "\n")


def compare(run: Path, place: Path, trl: Path | None) -> dict[str, float]:
    """Run both trainers once; return their samples per second."""
    found = scalerl(run, place)
    if trl:
        command = [str(trl), str(HERE / "trl_baseline.py"), str(place / "model"), str(place / "prompts.jsonl"),
                   str(STEPS), str(WARM_UP)]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT})
        found["trl"] = json.loads(done.stdout.splitlines()[-1])["samples_per_s"]
    return found


def scalerl(run: Path, place: Path) -> dict[str, float]:
    """Train through the command line."""
    words = [
        "--model", str(place / "model"), "--data", str(place / "prompts.jsonl"), "--reward", "rewards:even_start",
        "--steps", str(STEPS), "--recipe.prompts_per_step", "8",
        "--recipe.generations_per_prompt", "8", "--recipe.length", "{kind = 'none', max_tokens = 64}",
        "--recipe.zero_variance", "keep", "--recipe.truncated", "keep", "--recipe.retire_pass_rate", "none",
        "--evaluation.prompts", "8", "--evaluation.samples", "1", "--evaluation.every", "1000",
        "--checkpoint.every", "1000",
    ]  # fmt: skip
    measured = train(run, words, **ENVIRONMENT)[WARM_UP:]
    seconds = sum(row["step_s"] for row in measured)
    tokens = statistics.mean(row["completion_tokens_mean"] for row in measured)
    return {"scalerl": 64 * len(measured) / seconds, "tokens": tokens}


# ------------------------------------------------------------------------------------------------------------ learning


def compare_learning(options: argparse.Namespace) -> None:
    """Train every arm with every rate and seed, and print each arm with its best rate."""
    out = options.out or Path("learning.json")
    results = json.loads(out.read_text()) if out.exists() else {"machine": machine(), "runs": []}
    known = {(run["arm"], run["rate"], run["seed"]) for run in results["runs"]}
    model = start()
    for seed in options.seeds:
        for arm in options.arms:
            for rate in options.rates:
                if (arm, rate, seed) in known:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    learn = learn_scalerl if arm == "scalerl" else learn_trl
                    found = learn(arm, rate, seed, model, Path(scratch), options)
                results["runs"].append({"arm": arm, "rate": rate, "seed": seed, "rows": found})
                out.write_text(json.dumps(results, indent=1) + "\n")
                print(f"{arm} {rate:g} seed {seed}: {', '.join(_levels(found))}", flush=True)
    print("\n".join(summary(results["runs"])))


def _levels(found: list[dict[str, float]]) -> list[str]:
    """Return rollouts, CPU seconds and seconds to each level, as text."""
    spent = []
    for level in LEVELS:
        updates, cpu, seconds = (reached(found, level, value) for value in ("step", "cpu_s", "seconds"))
        if updates is None or cpu is None or seconds is None:
            spent.append(f"{level} not reached in {found[-1]['step']:.0f} updates")
        else:
            spent.append(f"{level} after {updates * COMPLETIONS:,.0f} rollouts, {cpu:.0f} CPU-s, {seconds:.0f} s")
    return spent


def summary(runs: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table: every arm at the rate with the fewest rollouts to the highest level, over its seeds."""
    lines = ["| arm | rate | seeds | level | rollouts | CPU-s | s |", "|---|---|---|---|---|---|---|"]
    for arm in dict.fromkeys(run["arm"] for run in runs):
        by_rate: dict[float, list[Any]] = {}
        for run in runs:
            if run["arm"] == arm:
                by_rate.setdefault(run["rate"], []).append(run["rows"])
        mean = {rate: _means(curves, LEVELS[-1]) for rate, curves in by_rate.items()}
        best = min(mean, key=lambda rate: mean[rate][0])
        for level in LEVELS:
            updates, cpu, seconds = _means(by_rate[best], level)
            cells = [f"{updates * COMPLETIONS:,.0f}", f"{cpu:.0f}", f"{seconds:.0f}"]
            lines.append(f"| {arm} | {best:g} | {len(by_rate[best])} | {level} | {' | '.join(cells)} |")
    return lines


def _means(curves: list[list[dict[str, float]]], level: float) -> list[float]:
    """Return the mean updates, CPU seconds and seconds to a level; infinite if a run does not reach it."""
    spent = [[reached(curve, level, value) for curve in curves] for value in ("step", "cpu_s", "seconds")]
    return [statistics.fmean(float("inf") if one is None else one for one in ones) for ones in spent]


def learn_scalerl(
    arm: str, rate: float, seed: int, model: Path, scratch: Path, options: argparse.Namespace
) -> list[dict[str, float]]:
    """Train with the lab's recipe; the costs per update are those of a second run without evaluations."""
    words = ["--preset", "quick", "--model", str(model), "--seed", str(seed),
             "--recipe.optimizer.learning_rate", str(rate)]  # fmt: skip
    train(scratch / "run", [*words, "--steps", str(options.updates), "--evaluation.every", str(EVERY)], **ENVIRONMENT)
    costs = []
    for steps in (WARM_UP, WARM_UP + STEPS):
        before, quiet = children_cpu(), ["--evaluation.every", "100000", "--evaluation.prompts", "16"]
        measured = train(scratch / f"costs-{steps}", [*words, "--steps", str(steps), *quiet], **ENVIRONMENT)
        costs.append((sum(row["step_s"] for row in measured), children_cpu() - before))
    seconds, cpu = ((after - before) / STEPS for before, after in zip(*costs, strict=True))
    points = rows(scratch / "run" / "points.jsonl")
    return [
        {"step": p["step"], "pass_rate": p["pass_rate"], "seconds": p["step"] * seconds, "cpu_s": p["step"] * cpu}
        for p in points
    ]


def children_cpu() -> float:
    """Return the CPU seconds of finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def learn_trl(
    arm: str, rate: float, seed: int, model: Path, scratch: Path, options: argparse.Namespace
) -> list[dict[str, float]]:
    """Train with TRL until the last level is reached."""
    save_lab_prompts(model, scratch / "prompts.jsonl")
    settings = {
        "per_device_train_batch_size": COMPLETIONS, "num_generations": 16, "max_completion_length": 69,
        "max_steps": options.updates, "learning_rate": rate, "seed": seed, **TRL_ARMS[arm],
    }  # fmt: skip
    job = {"model": str(model), "prompts": str(scratch / "prompts.jsonl"), "settings": settings, "every": EVERY,
           "until": LEVELS[-1]}  # fmt: skip
    (scratch / "job.json").write_text(json.dumps(job))
    command = [str(options.trl), str(HERE / "trl_learning.py"), str(scratch / "job.json")]
    variables = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
