"""PipelineRL: the wandb histories of its trainer (`stats/...`) and of its actor (`actor/...`), together or one alone.

While a test runs, no new training rollouts are scheduled; that waiting is inside the step's time and stays there.
"""

from __future__ import annotations

from scalerl.importers.dialect import HELD_OUT, OTHER, TRAINING, Dialect
from scalerl.importers.rows import Row

VERSION = "actor/trainer_model_version"


def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """The actor's weight version is the number of samples trained on: it joins the trainer's rows by that."""
    for row in rows:
        if VERSION in row:
            row.setdefault("stats/samples", row[VERSION])
    if any("stats/completed_steps" in row for row in rows):
        return rows, ()
    return rows, ("steps are counted in samples: this log has no stats/completed_steps (the trainer's log has)",)


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
    about="throughput/sec_per_step of the trainer, waiting for data included; checkpoints are outside it",
    seconds=("throughput/sec_per_step",),
    clocks=("actor/time_since_start", "_runtime", "_timestamp"),
    tokens=("stats/tokens",),
    prepare=prepare,
)  # fmt: skip
