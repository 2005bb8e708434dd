"""The column names of each source: frameworks, and tables of any origin."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from scalerl.importers.dialect import (
    GENERIC_EVALUATIONS,
    HELD_OUT,
    OTHER,
    SECOND,
    SECONDS,
    TRAINING,
    Dialect,
    Row,
    number,
    total,
    without,
)

# ----------------------------------------------------------------------------------------------------------------- trl
# TRL and the Hugging Face Trainer: trainer_state.json, and the same names in wandb and TensorBoard.
#
# Time is `step_time`, which TRL 0.16 and later write; older logs fall back to tokens.

RUNTIME = re.compile(r"eval_(?:(.+)_)?runtime")
COMPONENT = re.compile(r"eval_rewards/[^/]+(?:/mean)?")
"""The mean of one reward function; before TRL 0.16 without `/mean`."""


def prepare_trl(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Add the evaluation set of each row, and leave out the only reward function, which equals eval_reward."""
    for row in rows:
        sets = evaluation_sets(row)
        if len(sets) == 1:
            row["task"] = sets[0]
    functions = {name for row in rows for name in row if COMPONENT.fullmatch(name)}
    if len(functions) == 1:
        rows = [{name: value for name, value in row.items() if name not in functions} for row in rows]
    return rows, ()


def evaluation_sets(names: Iterable[str]) -> list[str]:
    """Return the evaluation sets of a row: with several, TRL writes `eval_reward` for each; only the runtime tells."""
    return [match[1] for match in map(RUNTIME.fullmatch, names) if match and match[1]]


def trainer_name(name: str) -> str:
    """Invert the Trainer's names for wandb: `train/reward` becomes `reward`, `eval/reward` becomes `eval_reward`."""
    if name.startswith("train/"):
        return name.removeprefix("train/")
    return "eval_" + name.removeprefix("eval/") if name.startswith("eval/") else name


TRL = Dialect(
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
    seconds=("step_time",),
    tokens=("num_tokens", "num_input_tokens_seen"),
    rename=trainer_name,
    prepare=prepare_trl,
)


# ---------------------------------------------------------------------------------------------------------------- verl
# verl: console lines `step:N - key:value - ...`, its JSONL file logger, and its names in wandb and TensorBoard.

PHASES = tuple(
    f"timing_s/{name}"
    for name in (
        "gen", "gen_max", "reward", "old_log_prob", "ref", "values", "adv",
        "update_critic", "update_actor", "update_weights",
    )
)  # fmt: skip
"""Phases of a training step that do not overlap."""
UNTRAINED = ("timing_s/testing", "timing_s/save_checkpoint")


def prepare_verl(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Add the training seconds of each step, without evaluation and checkpoints."""
    timed = [row for row in rows if number(row, "timing_s/step") is not None]
    aside = [total(row, UNTRAINED) for row in timed]
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


def verl_name(name: str) -> str:
    """Return the name that verl uses: `mean_at_8` becomes `mean@8`, and `timing/step` becomes `timing_s/step`.

    mlflow does not allow `@`. Some versions and forks of verl write the seconds of a step under `timing/`.
    """
    return re.sub(r"_at_(?=\d)", "@", re.sub(r"^timing/", "timing_s/", name))


def verl_devices(rows: list[Row]) -> int | None:
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


VERL = Dialect(
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
    rename=verl_name,
    prepare=prepare_verl,
    devices=verl_devices,
)


# ------------------------------------------------------------------------------------------------------------ prime_rl
# prime-rl: metrics.jsonl of the orchestrator, or the same names in wandb.
#
# The step of an evaluation is the version of the weights it sampled from: its `policy_version`,
# `progress/ckpt_step`, or its step.

EVALUATION_TIME = re.compile(r"eval/[^/]+/time|time/eval/[^/]+")
TRAINING_STEP = frozenset(("time/step", "progress/tokens", "progress/total_tokens"))
"""Columns that only a training step has."""
POLICY_VERSION = re.compile(r"eval/[^/]+/policy_version")


def prepare_prime_rl(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Count steps in updates, move evaluations to separate rows, and subtract evaluation time from step time."""
    evaluation_s: dict[float, float] = defaultdict(float)
    for row in rows:
        times = [row[name] for name in row if EVALUATION_TIME.fullmatch(name)]
        if times and "step" in row:  # environments are evaluated in parallel, so the longest counts
            evaluation_s[row["step"]] = max(evaluation_s[row["step"]], *times)
    trained = [row["step"] for row in rows if "step" in row and not TRAINING_STEP.isdisjoint(row)]
    # steps are counted from 0: the row of step s ends after s + 1 updates
    shift = 1.0 if trained and min(trained) == 0 else 0.0
    prepared, subtracted = [], 0
    for row in rows:
        evaluation = {n: v for n, v in row.items() if n.startswith(("eval/", "time/eval/"))}
        rest = {n: v for n, v in row.items() if n not in evaluation}
        if evaluation:
            versions = [v for n, v in evaluation.items() if POLICY_VERSION.fullmatch(n)]
            version = versions[0] if versions else number(row, "progress/ckpt_step")
            step = version if version is not None else number(row, "step")
            if step is not None:
                prepared.append({**evaluation, "step": step})
        seconds, step = number(rest, "time/step"), number(rest, "step")
        if step is not None and not TRAINING_STEP.isdisjoint(rest):
            rest["step"] = step + shift
            if seconds is not None:
                aside = evaluation_s.get(step, 0.0)
                # an evaluation that is longer than the step ran in parallel with training and took no time from it
                inside = aside if 0 < aside < seconds else 0.0
                subtracted += inside > 0
                rest[SECONDS] = seconds - inside
            prepared.append(rest)
    note = f"evaluation time was subtracted from time/step in {subtracted} rows"
    return prepared, (note,) if subtracted else ()


PRIME_RL = Dialect(
    name="prime-rl",
    marks=(r"progress/total_(?:samples|problems|rollouts)", r"progress/ckpt_step", r"eval/[^/]+/policy_version",
           r"eval/[^/]+/(?:all/|effective/)?(?:avg|pass)@\d+", r"(?:effective_batch_size|solve_none|solve_all)/all"),
    steps=("step", "_step"),
    evaluations=(
        # `effective` excludes rollouts that failed for reasons outside the model; older versions have only this
        (r"eval/(?P<task>[^/]+)/(?:effective/)?avg@\d+", HELD_OUT),
        (r"eval/(?P<task>[^/]+)/all/avg@\d+", SECOND),
        (r"eval/(?P<task>[^/]+)/(?:effective/)?pass@\d+", OTHER),
        (r"eval/(?P<task>[^/]+)/reward/mean", OTHER),
        (r"(?:train/[^/]+/(?:all|effective)/)?reward/(?:all/)?mean", TRAINING),
    ),
    about="time/step of the orchestrator without evaluation and checkpoints",
    seconds=(SECONDS,),
    clocks=("time", "_timestamp"),
    tokens=("progress/total_tokens",),
    step_tokens=("progress/tokens",),
    prepare=prepare_prime_rl,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- open_instruct
# open-instruct (GRPO): its wandb history. Evaluation uses the training engines; its time cannot be separated.

OPEN_INSTRUCT = Dialect(
    name="open-instruct",
    marks=(r"val/num_(?:total|step)_tokens", r"learner_tokens_per_second_.+", r"time/getting_response", r"eval/scores"),
    # wandb's own step is the episode; an evaluation row may have no other step
    steps=("training_step", "episode", "_step"),
    evaluations=(
        (r"eval/pass_at_1", HELD_OUT),
        # the maximum score is 10 by default
        (r"eval/scores", SECOND),
        (r"eval/pass_at_\d+(?:_unbiased)?", OTHER),
        (r"eval/objective/.+", OTHER),
        (r"objective/(?:verifiable_correct_rate|scores)|scores", TRAINING),
    ),
    about="time/total without time/saving; evaluation shares the engines with training and cannot be separated",
    seconds=(SECONDS,),
    tokens=("val/num_total_tokens",),
    step_tokens=("val/num_step_tokens",),
    prepare=without("time/total", ("time/saving",)),
)


# --------------------------------------------------------------------------------------------------------------- skyrl
# SkyRL: its names in wandb, mlflow and TensorBoard. It does not log the number of tokens.

SAVING = ("timing/save_checkpoints", "timing/save_hf_model")
"""Timers that the timer of the step includes; evaluation is not included."""


SKYRL = Dialect(
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
    prepare=without("timing/step", SAVING),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------------- any framework

WANDB = Dialect(
    name="wandb",
    marks=(),
    steps=("train/global_step", "trainer/global_step", "global_step", "step", "_step"),
    evaluations=GENERIC_EVALUATIONS,
    about="the run's clock: it includes evaluation and checkpoints, which cannot be separated",
    clocks=("_runtime", "_timestamp"),
    tokens=("train/num_tokens", "num_tokens", "total_tokens", "tokens"),
)

TABLE = Dialect(
    name="table",
    marks=(),
    steps=("step", "global_step", "Step", "_step"),
    evaluations=GENERIC_EVALUATIONS,
    about="the columns of the table",
    tokens=("num_tokens", "total_tokens"),
)

IMPORTERS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (TRL, VERL, PRIME_RL, OPEN_INSTRUCT, SKYRL, WANDB, replace(WANDB, name="tensorboard"), TABLE)
}
"""The sources, by the name that `source` and `--from` take."""
