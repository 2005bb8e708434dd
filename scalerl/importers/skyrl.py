"""SkyRL: its names in wandb, mlflow and TensorBoard. It does not log the number of tokens."""

from __future__ import annotations

from scalerl.importers.dialect import HELD_OUT, OTHER, SECONDS, TRAINING, Dialect, without

ASIDE = ("timing/save_checkpoints", "timing/save_hf_model")
"""Timers that the timer of the step includes; evaluation is not included."""


DIALECT = Dialect(
    name="skyrl",
    marks=(r"timing/(?:sync_weights|train_critic_and_policy|generate|fwd_logprobs_values_reward)",
           r"reward/avg_raw_reward", r"eval/.+/avg_score"),
    steps=("trainer/global_step", "step", "_step"),
    evaluations=(
        (r"eval/(?P<task>.+)/avg_score", HELD_OUT),
        (r"eval/(?P<task>.+)/pass_at_\d+", OTHER),
        (r"eval/(?P<task>.+)/mean_positive_reward", OTHER),
        (r"reward/avg_raw_reward", TRAINING),
    ),
    about="timing/step without timing/save_checkpoints and timing/save_hf_model; evaluation is not included",
    seconds=(SECONDS,),
    prepare=without("timing/step", ASIDE),
)  # fmt: skip
