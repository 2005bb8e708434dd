"""verl: console lines `step:N - key:value - ...`, its JSONL file logger, and its names in wandb and TensorBoard."""

from __future__ import annotations

import numpy as np

from scalerl.importers.containers import Row
from scalerl.importers.dialect import HELD_OUT, OTHER, SECONDS, TRAINING, Dialect, number

PHASES = tuple(
    f"timing_s/{name}"
    for name in (
        "gen", "gen_max", "reward", "old_log_prob", "ref", "values", "adv",
        "update_critic", "update_actor", "update_weights",
    )
)  # fmt: skip
"""Phases of a training step that do not overlap."""
ASIDE = ("timing_s/testing", "timing_s/save_checkpoint")


def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Training seconds of each step, evaluation and checkpoints left out; mlflow's `_at_` back to `@`."""
    rows = [{name.replace("_at_", "@"): value for name, value in row.items()} for row in rows]
    inside = 0
    for row in rows:
        step = number(row, "timing_s/step") or number(row, "perf/time_per_step")
        if step is None:
            continue
        aside = sum(number(row, name) or 0.0 for name in ASIDE)
        row[SECONDS] = step
        # Older versions validate inside the timer of the step, newer ones after it. The phases tell which: what the
        # step took beyond them is either nothing or the time set aside.
        beyond = step - sum(number(row, name) or 0.0 for name in PHASES)
        if aside and abs(beyond - aside) < abs(beyond):
            row[SECONDS] = step - aside
            inside += 1
    note = f"timing_s/step includes validation and checkpoints in {inside} rows of this log; they were subtracted"
    return rows, (note,) if inside else ()


def devices(rows: list[Row]) -> int | None:
    """perf/throughput is tokens a second and GPU: tokens / (seconds x throughput) is the number of GPUs."""
    counts = [
        row["perf/total_num_tokens"] / (row["perf/time_per_step"] * row["perf/throughput"])
        for row in rows
        if all(number(row, f"perf/{name}") for name in ("total_num_tokens", "time_per_step", "throughput"))
    ]
    if not counts:
        return None
    count = float(np.median(counts))
    # console logs of old versions have three decimals only
    return round(count) if count > 0.5 and abs(count - round(count)) < 0.02 * count else None


DIALECT = Dialect(
    name="verl",
    marks=(r"timing_s/.+", r"val-(?:core|aux)/.+", r"critic/(?:score|rewards)/mean", r"val/test_score/.+"),
    steps=("step", "training/global_step", "_step"),
    evaluations=(
        (r"val-core/(?P<task>.+)/[^/]+/mean[@].+", HELD_OUT),
        (r"val/test_score/(?P<task>.+)", HELD_OUT),
        (r"val-core/(?P<task>.+)/[^/]+/(?:best|maj|worst)[@].+", OTHER),
        (r"val-aux/(?P<task>.+)/[^/]+/mean[@].+", OTHER),
        (r"critic/(?:score|rewards)/mean", TRAINING),
    ),
    about="timing_s/step without timing_s/testing and timing_s/save_checkpoint",
    seconds=(SECONDS,),
    step_tokens=("perf/total_num_tokens",),
    prepare=prepare,
    devices=devices,
)
