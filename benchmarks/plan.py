"""Compares `scalerl plan` with real runs of the lab: throughput, occupancy, idle shares, staleness.

    python benchmarks/plan.py [--rounds 1] [--steps 160] [--runs DIR] [--out plan.json]

Each setting is trained on this machine and planned twice. "Own" reads speeds and lengths from the same run, and tests
the simulation of schedule, engines and trainer. "Others" reads them from the other runs of the round: it plans a
setting that was not measured, and includes the drift of the machine between runs. Shares of time are of the wall-clock
time without evaluations; the first fifth of the steps is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from work import QUIET, machine, train

from scalerl.training.config.base import replace
from scalerl.training.machines.measured import Measured, generator_seconds, measure, read_speeds
from scalerl.training.machines.plan import SpeedInputs, lengths_of, simulate
from scalerl.training.machines.speed import GPUS, Assumptions
from scalerl.training.placement.sizes import RunSizes

SETTINGS = {
    "default": [],
    "k = 1": ["--recipe.off_policy.max_lag", "1"],
    "128 slots": ["--rollouts.slots", "128"],
    "mask": ["--recipe.off_policy.stale", "mask"],
}
FIGURES = ("tokens_per_s", "occupancy", "generator_idle", "trainer_idle", "staleness_mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--runs", type=Path, help="directory of the runs; existing runs are reused")
    parser.add_argument("--out", type=Path, default=Path("plan.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = []
        for number in range(options.rounds):
            place = (options.runs or Path(scratch)) / str(number)
            rows += compare(make_runs(place, options.steps))
    show(rows)
    options.out.write_text(json.dumps({"machine": machine(), "rows": rows, "speed": speed()}, indent=1) + "\n")


def make_runs(place: Path, steps: int) -> dict[str, Path]:
    """Train every setting once, unless it exists."""
    paths = {}
    for name, words in SETTINGS.items():
        paths[name] = place / name.replace(" ", "").replace("=", "")
        if not (paths[name] / "metrics.jsonl").exists():
            train(paths[name], [*QUIET, "--steps", str(steps), *words])
    return paths


def compare(paths: dict[str, Path]) -> list[dict[str, Any]]:
    """Plan every setting from its own run and from the others."""
    rows = []
    for name, path in paths.items():
        others = [other for key, other in paths.items() if key != name]
        real = seen(path)
        rows.append({"setting": name, "run": real, "own": planned(path, [path]), "others": planned(path, others)})
    return rows


def seen(path: Path) -> dict[str, float]:
    """Return the figures of a run, over the wall-clock time of its later steps."""
    run = read_speeds(path)
    busy, idle = generator_seconds(run)
    wall = math.fsum(row["step_s"] for row in run.rows)
    tokens = sum(row["sampled"] for row in run.rows)
    slot_steps = sum(row["sampled"] / row["occupancy"] for row in run.rows if row["occupancy"])
    return {
        "tokens_per_s": tokens / wall,
        "occupancy": tokens / slot_steps,
        "generator_idle": idle / max(wall, busy + idle),
        "trainer_idle": math.fsum(row["trainer_idle"] * row["step_s"] for row in run.rows) / wall,
        "staleness_mean": statistics.fmean(row["staleness_mean"] for row in run.rows),
    }


def planned(path: Path, sources: list[Path]) -> dict[str, float]:
    """Return the planned figures of a run, with speeds and lengths from `sources`."""
    config = read_speeds(path).config
    measured: Measured = measure(sources)
    run = RunSizes.of(config)
    inputs = SpeedInputs(Assumptions(GPUS["H100"]), measured, updates=120)
    figures = simulate(run, inputs, lengths_of(run, measured)).figures
    return {name: float(getattr(figures, name)) for name in FIGURES}


def speed() -> dict[str, float]:
    """Return the CPU seconds of plans of 64 and 512 engines of 64 slots."""
    from scalerl.training.config import PRESETS, HuggingFaceModel
    from scalerl.training.config.data import PromptFile

    out = {}
    for engines, prompts in ((64, 256), (512, 320), (512, 2048)):
        paper = PRESETS["scalerl"]
        place = replace(paper.placement, backend="ray", engine="vllm", generators=engines, trainer_ranks=engines // 4)
        config = replace(
            paper,
            model=HuggingFaceModel(path="Qwen/Qwen3-8B"),
            data=(PromptFile(path="prompts.jsonl"),),
            hardware=replace(paper.hardware, device="cuda"),
            placement=place,
            recipe=replace(paper.recipe, prompts_per_step=prompts),
            rollouts=replace(paper.rollouts, slots=engines * 64),
        )
        run, inputs = RunSizes.of(config), SpeedInputs(Assumptions(GPUS["H100"]))
        began = time.process_time()
        simulate(run, inputs, lengths_of(run, None))
        seconds, batch = time.process_time() - began, config.recipe.completions_per_step
        out[f"{engines} engines of 64 slots, batches of {batch}"] = seconds
        print(f"a plan of {engines} engines of 64 slots, batches of {batch}: {seconds:.1f} s", flush=True)
    return out


def show(rows: list[dict[str, Any]]) -> None:
    """Print one table of all figures."""
    print("| setting | | tokens/s | occupancy | generators idle | trainer idle | staleness |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        for which in ("run", "own", "others"):
            f = row[which]
            ratio = "" if which == "run" else f" ({f['tokens_per_s'] / row['run']['tokens_per_s'] - 1:+.0%})"
            print(
                f"| {row['setting']} | {which} | {f['tokens_per_s']:,.0f}{ratio} | {f['occupancy']:.2f} "
                f"| {f['generator_idle']:.0%} | {f['trainer_idle']:.0%} | {f['staleness_mean']:.1f} |"
            )
    print()


if __name__ == "__main__":
    main()
