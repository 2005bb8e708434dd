"""Whole configurations by name: the embedded lab, sizes for your data, the paper's sizes."""

from __future__ import annotations

from scalerl.core.machine import sees_gpu
from scalerl.training.config.base import replace
from scalerl.training.config.data import ArithmeticTask
from scalerl.training.config.length import Interruption
from scalerl.training.config.model import TinyModel, WarmStart
from scalerl.training.config.recipe import SCALERL, AdamW, PipelineRL
from scalerl.training.config.run import Checkpointing, Evaluation, Rollouts, RunConfig

QUICK = RunConfig(
    steps=240,
    recipe=replace(
        SCALERL,
        name="scalerl-lab",
        prompts_per_step=16,
        length=Interruption(thinking_tokens=(50, 60), answer_tokens=9, phrase="</think>"),
        optimizer=AdamW(learning_rate=1.2e-4, warmup_steps=20),
    ),
    evaluation=Evaluation(every=8, prompts=512, samples=2),
    checkpoint=Checkpointing(every=25),
)

# docs/replication.md#the-rate-of-the-lab
LAB = replace(
    QUICK,
    recipe=replace(
        QUICK.recipe, off_policy=PipelineRL(max_lag=1), optimizer=AdamW(learning_rate=2.4e-4, warmup_steps=20)
    ),
)

LONG_TAIL = replace(
    QUICK,
    recipe=replace(
        QUICK.recipe,
        name="long-tail-lab",
        length=Interruption(thinking_tokens=(180, 200), answer_tokens=9, phrase="</think>"),
    ),
    data=ArithmeticTask(operations=(2, 30), lengths="long-tailed"),
    model=TinyModel(warm_start=WarmStart(steps=1500, learning_rate=2e-3)),
    rollouts=Rollouts(expected_tokens=36),
)

SMALL = RunConfig(
    steps=200,
    recipe=replace(
        SCALERL, prompts_per_step=16, generations_per_prompt=8, optimizer=AdamW(learning_rate=1e-6, warmup_steps=10),
        length=Interruption(thinking_tokens=(900, 1000), answer_tokens=256),
    ),
    evaluation=Evaluation(every=20, prompts="auto", samples=4),
    checkpoint=Checkpointing(every=20),
)  # fmt: skip

LAPTOP = replace(
    SMALL,
    steps=100,
    recipe=replace(
        SMALL.recipe, prompts_per_step=8, length=Interruption(thinking_tokens=(200, 256), answer_tokens=64)
    ),
    evaluation=replace(SMALL.evaluation, samples=1),
)  # fmt: skip

PRESETS = {
    "lab": LAB, "quick": QUICK, "long-tail": LONG_TAIL, "small": SMALL, "laptop": LAPTOP, "scalerl": RunConfig(),
}  # fmt: skip
"""lab: the embedded default, minutes on two cores, with the rate and lag that reach its level first. quick: the same
with the paper's lag of 8, the base of studies, which published plans name. long-tail: quick with chains of lognormal
length. small: the default for your model and data, for one machine with a GPU. laptop: the same for a machine without:
a few hours for a model of 135M parameters on two cores. scalerl: the paper's sizes.
"""


def own_data_preset(device: str, backend: str) -> str:
    """Return the preset for a user's model and data, from the values of `hardware.device` and `placement.backend`."""
    local_cpu = backend == "local" and device in ("auto", "cpu")
    return "laptop" if local_cpu and (device == "cpu" or not sees_gpu()) else "small"
