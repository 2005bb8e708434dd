"""TRL and the Hugging Face Trainer: trainer_state.json, and the same names in wandb and TensorBoard.

Time is `step_time`, which TRL 0.16 and later write; older logs fall back to `train_runtime`, then to tokens.
"""

from __future__ import annotations

import re

from scalerl.importers.dialect import HELD_OUT, OTHER, SECONDS, TRAINING, Dialect, number
from scalerl.importers.rows import Row

RUNTIME = re.compile(r"eval_(?:(.+)_)?runtime")
COMPONENT = re.compile(r"eval_rewards/[^/]+(?:/mean)?")
"""The mean of one reward function; before TRL 0.16 without `/mean`."""


def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Add the evaluation set of each row, and seconds from train_runtime if there is no step_time."""
    for row in rows:
        # with several evaluation sets TRL writes `eval_reward` for each; only the runtime has the name of the set
        sets = [match[1] for match in map(RUNTIME.fullmatch, row) if match and match[1]]
        if len(sets) == 1:
            row["task"] = sets[0]
    functions = {name for row in rows for name in row if COMPONENT.fullmatch(name)}
    if len(functions) == 1:  # with one reward function its mean equals eval_reward
        rows = [{name: value for name, value in row.items() if name not in functions} for row in rows]
    if any("step_time" in row for row in rows):
        return rows, ()
    return spread_runtime(rows)


def plain(name: str) -> str:
    """Invert the Trainer's names for wandb: `train/reward` becomes `reward`, `eval/reward` becomes `eval_reward`."""
    if name.startswith("train/"):
        return name.removeprefix("train/")
    return "eval_" + name.removeprefix("eval/") if name.startswith("eval/") else name


def spread_runtime(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Add the seconds of a log without step_time: the last total minus evaluation, spread evenly over all steps."""
    totals = [row for row in rows if number(row, "train_runtime") is not None]
    if not totals:
        return rows, ()
    evaluation = sum(number(row, name) or 0.0 for row in rows for name in row if RUNTIME.fullmatch(name))
    steps = max((number(totals[-1], name) or 0.0 for name in DIALECT.steps), default=0.0)
    seconds = totals[-1]["train_runtime"] - evaluation
    if steps <= 0 or seconds <= 0:
        return rows, ()
    note = "no step_time in this log: train_runtime minus eval_runtime was spread evenly over the steps"
    return [*rows[:-1], {**rows[-1], SECONDS: seconds / steps}], (note,)


DIALECT = Dialect(
    name="trl",
    marks=(
        r"(?:train/|eval/|eval_)?completions/(?:mean_length|clipped_ratio)",
        r"(?:train/|eval/|eval_)?completion_length",
        r"(?:train/|eval/|eval_)?rewards/[^/]+(?:/mean)?(?<!rewards/mean)",
    ),
    steps=("step", "global_step", "_step"),
    evaluations=(
        (r"eval_reward", HELD_OUT),
        (COMPONENT.pattern, HELD_OUT),
        (r"eval_(?:accuracy|pass_rate|pass@1)", HELD_OUT),
        (r"eval_[^/]*(?:accuracy|pass_rate|reward|score)(?!.*std)[^/]*(?<!_std)", OTHER),
        (r"reward", TRAINING),
        (r"rewards/[^/]+(?:/mean)?", TRAINING),
    ),
    about="step_time: generation, rewards and update; evaluation, checkpoints and data loading are not included",
    seconds=("step_time", SECONDS),
    tokens=("num_tokens", "num_input_tokens_seen"),
    rename=plain,
    prepare=prepare,
)
