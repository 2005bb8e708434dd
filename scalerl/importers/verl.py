"""verl: console lines `step:N - key:value - ...`, its JSONL file logger, and its names in wandb and TensorBoard."""

from __future__ import annotations

import re

import numpy as np

from scalerl.importers.dialect import HELD_OUT, OTHER, SECONDS, TRAINING, Dialect, number, total
from scalerl.importers.rows import Row

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
    """Add the training seconds of each step, without evaluation and checkpoints."""
    timed = [row for row in rows if number(row, "timing_s/step") is not None]
    aside = [total(row, ASIDE) for row in timed]
    if not timed or not any(aside):
        return rows, ()
    # Older versions validate inside the timer of the step, newer ones after it. If it is inside, the time of the step
    # minus that of its phases grows by the validation time.
    beyond = [row["timing_s/step"] - total(row, PHASES) for row in timed]
    plain = [extra for extra, some in zip(beyond, aside, strict=True) if not some]
    usual = float(np.median(plain)) if plain else 0.0
    shares = [(extra - usual) / some for extra, some in zip(beyond, aside, strict=True) if some]
    if not any(total(row, PHASES) for row in timed):
        return rows, (
            "the log has no timers of a step's phases: if timing_s/step includes validation, it was not subtracted",
        )
    if float(np.median(shares)) < 0.5:
        return rows, ()
    for row, some in zip(timed, aside, strict=True):
        row[SECONDS] = row["timing_s/step"] - some
    return rows, ("timing_s/step includes validation and checkpoints in this log; they were subtracted",)


def plain_name(name: str) -> str:
    """Return the name that verl uses: `mean_at_8` becomes `mean@8`, and `timing/step` becomes `timing_s/step`.

    mlflow does not allow `@`. Some versions and forks of verl write the seconds of a step under `timing/`.
    """
    return re.sub(r"_at_(?=\d)", "@", re.sub(r"^timing/", "timing_s/", name))


def devices(rows: list[Row]) -> int | None:
    """Return the number of GPUs: tokens / (seconds x throughput), because perf/throughput is per second and GPU."""
    counts = [
        row["perf/total_num_tokens"] / (row["perf/time_per_step"] * row["perf/throughput"])
        for row in rows
        if all(number(row, f"perf/{name}") for name in ("total_num_tokens", "time_per_step", "throughput"))
    ]
    if not counts:
        return None
    count = float(np.median(counts))
    # console logs of old versions have only three decimals
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
    seconds=(SECONDS, "timing_s/step", "perf/time_per_step"),
    step_tokens=("perf/total_num_tokens",),
    rename=plain_name,
    prepare=prepare,
    devices=devices,
)
