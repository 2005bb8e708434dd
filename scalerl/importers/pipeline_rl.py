"""PipelineRL: the wandb histories of its trainer (`stats/...`) and of its actor (`actor/...`), together or only one.

During an evaluation no new training rollouts are scheduled; this waiting time is part of the step's time and is not
subtracted.
"""

from __future__ import annotations

from scalerl.importers.dialect import HELD_OUT, OTHER, TRAINING, Dialect
from scalerl.importers.rows import Row

VERSION = "actor/trainer_model_version"


def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Join the actor's rows to the trainer's: the version of its weights is the number of trained samples."""
    for row in rows:
        if VERSION in row:
            row.setdefault("stats/samples", row[VERSION])
    if any("stats/completed_steps" in row for row in rows):
        return rows, ()
    return rows, ("steps are counted in samples: stats/completed_steps is only in the trainer's log",)


DIALECT = Dialect(
    name="pipelinerl",
    marks=(r"actor/(?:test_success_mean|trainer_model_version|published_samples)", r"stats/completed_steps",
           r"throughput/tokens_perGPU_per_sec"),
    steps=("stats/completed_steps", "stats/samples"),
    evaluations=(
        (r"actor/test_success_mean", HELD_OUT),
        (r"actor/test_reward_mean", OTHER),
        (r"actor/(?P<task>.+)/success_mean", OTHER),
        (r"actor/(?:success|reward)_mean", TRAINING),
    ),
    about="throughput/sec_per_step of the trainer, including the wait for data, without checkpoints",
    seconds=("throughput/sec_per_step",),
    clocks=("actor/time_since_start", "_runtime", "_timestamp"),
    tokens=("stats/tokens",),
    prepare=prepare,
)  # fmt: skip
