"""The table of dialects: the names that each trainer logs, with the file of its repository that logs them.

A dialect holds for all forms of a log, because loggers only change the spelling of names (`table.key`).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from scalerl.reading.logs.dialect import Dialect
from scalerl.reading.tables.names import HELD_OUT, MINOR, OTHER, SECOND, TRAINING
from scalerl.reading.tables.table import Table

VERL = Dialect(
    name="verl",
    title="verl",
    source="verl-project/verl verl/trainer/ppo/metric_utils.py, ray_trainer.py",
    marks=(
        "timing_s/<x>",
        "val-(core|aux)/<task>",
        "critic/score/mean",
        "val/test_score/<task>",
        "timing_per_token_ms/<x>",
    ),
    steps=(("training/global_step", "global_step"), ("step",), ("_step",)),
    metrics=(
        ("val-core/<task>/<x>/mean@<n>", HELD_OUT),
        ("val/test_score/<task>", HELD_OUT),
        ("val/success_rate", HELD_OUT),  # verl-agent
        ("val/<task>/(test_score|success_rate)", HELD_OUT),
        ("val-core/<task>/<x>/(best|maj|worst)@<n>(/mean)?", OTHER),
        ("val-aux/<task>/<x>/mean@<n>", OTHER),
        ("critic/score/mean", TRAINING),
        ("critic/rewards/mean", MINOR),
        ("episode/(success_rate|reward/mean)", MINOR),
    ),
    no_metrics=r"^val_aux.*(?:std|best|worst|maj)|returns|advantages",
    about="timing_s/step without timing_s/testing and timing_s/save_checkpoint",
    seconds=("timing_s/step", "timing/step", "perf/time_per_step"),
    aside=("timing_s/testing", "timing_s/save_checkpoint", "timing/testing", "timing/save_checkpoint"),
    step_tokens=("perf/total_num_tokens",),
    extremes=(
        ("critic/score/mean", "critic/score/min", "critic/score/max"),
        ("critic/rewards/mean", "critic/rewards/min", "critic/rewards/max"),
    ),
)

TRL = Dialect(
    name="trl",
    title="TRL or Unsloth",
    source="huggingface/trl trl/trainer/grpo_trainer.py, rloo_trainer.py",
    marks=(
        "(train/)?(eval_)?completions/(mean_length|clipped_ratio|min_length|max_length)",
        "(train/)?(eval_)?completion_length",
        "(train/|eval/|eval_)?rewards/<f>/mean",
        "(train/)?frac_reward_zero_std",
    ),
    steps=(("step", "global_step"), ("_step",)),
    metrics=(
        ("eval_reward", HELD_OUT),
        ("eval_rewards/<f>(/mean)?", HELD_OUT),
        ("eval_(accuracy|pass_rate|pass@1)", HELD_OUT),
        ("(train/)?reward", TRAINING),
        ("(train/)?rewards/<f>/mean", TRAINING),
        ("(train/)?rewards/<f>", TRAINING),
    ),
    no_metrics=r"rewards_.*_std$|reward_std|rewards_(?:mean|std)$",
    about="step_time: generation, rewards and update; evaluation, checkpoints and data loading are not included",
    seconds=("step_time",),
    tokens=("num_tokens", "num_input_tokens_seen"),
)

UNSLOTH = replace(
    TRL,
    name="unsloth",
    title="Unsloth",
    source="unslothai/unsloth unsloth/models/rl.py (the names are TRL's)",
    marks=(),
)

MS_SWIFT = replace(
    TRL,
    name="ms-swift",
    title="ms-swift",
    source="modelscope/ms-swift swift/trainers/patcher.py, swift/rlhf_trainers/grpo_trainer.py",
    marks=(r"train_speed\(<x>\)", "global_step/max_steps", r"memory\(GiB\)"),
    steps=(("global_step/max_steps", "step", "global_step", "iteration"), ("_step",)),
    clocks=("elapsed_time",),
    about="step_time if it is logged, else elapsed_time, which includes evaluation; train_speed is a mean and not used",
    extends=("trl",),
)

PRIME_RL = Dialect(
    name="prime-rl",
    title="prime-rl",
    source="PrimeIntellect-ai/prime-rl src/prime_rl/orchestrator/metrics.py, orchestrator.py",
    marks=(
        "progress/total_(samples|problems|rollouts|tasks)", "progress/ckpt_step", "eval/<x>/policy_version",
        "eval/<x>/(all/|effective/)?(<y>/)?(avg|pass)@<n>", "(effective_batch_size|solve_none|solve_all)/all",
        "train/agg/<x>", "train/<x>/(all|effective)/<y>/mean", "time/wait_for_(policy|ckpt|batch)",
        "Seq. Length", "Async Level", "Max. Off-Policy Level",  # of the console
    ),
    extends=("trl",),  # the console's "Completion Length"
    steps=(("step",), ("_step",)),
    metrics=(
        # `effective` leaves out rollouts that failed for reasons outside the model
        ("eval/<task>/effective/(<agent>/)?avg@<n>", HELD_OUT),
        ("eval/<task>/all/(<agent>/)?avg@<n>", SECOND),
        ("eval/<task>/avg@<n>", HELD_OUT),
        ("eval/<task>/((effective|all)/)?(<agent>/)?pass@<n>", OTHER),
        ("eval/<task>/reward/mean", OTHER),
        ("train/agg/all/(<agent>/)?reward/mean", TRAINING),
        ("reward/(all/)?mean", TRAINING),
        ("train/<task>/all/(<agent>/)?reward/mean", MINOR),
        ("train/<task>/effective/(<agent>/)?reward/mean", MINOR),
        ("Avg@<n>", HELD_OUT),
        ("Val. Reward", HELD_OUT),
        ("Pass@<n>", OTHER),
        ("Reward", TRAINING),
    ),
    about="time/step of the orchestrator without evaluation and checkpoints",
    seconds=("time/step",),
    clocks=("time", "_timestamp"),
    tokens=("progress/total_tokens",),
    step_tokens=("progress/tokens",),
    aside=("(eval/<x>/time|time/eval/<x>)",),
    from_zero=True,
    evaluation_steps=("eval/<x>/policy_version", "progress/ckpt_step"),
)  # fmt: skip

OPEN_INSTRUCT = Dialect(
    name="open-instruct",
    title="open-instruct",
    source="allenai/open-instruct open_instruct/grpo_fast.py, grpo_utils.py",
    marks=("val/num_(total|step)_tokens", "learner_tokens_per_second_<x>", "time/getting_response", "eval/scores",
           "objective/verifiable_correct_rate"),
    # wandb's own step may be the episode; an evaluation row may have no other step
    steps=(("training_step",), ("episode",), ("_step",)),
    metrics=(
        ("eval/pass_at_1", HELD_OUT),
        ("eval/scores", SECOND),
        ("eval/pass_at_<n>(_unbiased)?", OTHER),
        ("eval/objective/<task>", OTHER),
        ("objective/verifiable_correct_rate", TRAINING),
        ("(objective/)?scores", TRAINING),
    ),
    no_metrics=r"^val_",
    about="time/total without time/saving; evaluation shares the engines with training and cannot be separated",
    seconds=("time/total",),
    aside=("time/saving",),
    tokens=("val/num_total_tokens",),
    step_tokens=("val/num_step_tokens",),
    ranges=(("(eval/|objective/)?scores", (0.0, 10.0)),),
)  # fmt: skip

SKYRL = Dialect(
    name="skyrl",
    title="SkyRL",
    source="NovaSky-AI/SkyRL skyrl/train/trainer.py, evaluate.py",
    marks=("timing/(sync_weights|train_critic_and_policy|generate|fwd_logprobs_values_reward)", "reward/avg_raw_reward",
           "eval/<task>/avg_score", "generate/avg_num_tokens"),
    steps=(("trainer/global_step",), ("step",), ("_step",)),
    metrics=(
        ("eval/<task>/avg_score", HELD_OUT),
        ("eval/<task>/pass_at_<n>", OTHER),
        ("eval/<task>/mean_positive_reward", OTHER),
        ("reward/avg_raw_reward", TRAINING),
        ("loss/avg_final_rewards", MINOR),
    ),
    about="timing/step without timing/save_checkpoints and timing/save_hf_model; evaluation is not included",
    seconds=("timing/step",),
    aside=("timing/save_checkpoints", "timing/save_hf_model"),
)  # fmt: skip

NEMO_RL = Dialect(
    name="nemo-rl",
    title="NeMo-RL",
    source="NVIDIA-NeMo/RL nemo_rl/algorithms/grpo.py",
    marks=("timing/train/total_step_time", "timing/validation/total_validation_time", "train/global_valid_(toks|seqs)",
           "Total step time", "Generation KL Error", "Mean Generation Length", "train/gen_kl_error"),
    steps=(("step",), ("train/step",), ("_step",)),
    metrics=(
        ("validation/(<task>/)?accuracy", HELD_OUT),
        ("validation/<task>", OTHER),
        ("train/reward", TRAINING),
        ("Avg (Total )?Reward", TRAINING),  # not `Avg Filtered Reward`, of the prompts that dynamic sampling kept
    ),
    no_metrics=r"^validation.*(?:length|len|processed|time|tokens|pass_k)",
    about="total_step_time, which includes validation and checkpoints",
    seconds=("timing/train/total_step_time", "Total step time"),
    step_tokens=("train/total_num_tokens", "train/global_valid_toks"),
)  # fmt: skip

SLIME = Dialect(
    name="slime",
    title="slime or miles",
    source="THUDM/slime slime/observability/rollout_metrics.py, train_metric_utils.py; "
    "radixark/miles miles/ray/rollout/metrics.py",
    marks=("rollout/(raw_reward|step|response_lengths|truncated)", 
           "perf/(step_time|train_time|rollout_time|train_wait_time)",
           "eval/step"),
    # train/step counts optimizer steps, of which a rollout may have several
    steps=(("rollout/step", "eval/step"), ("train/step",), ("_step",)),
    metrics=(
        ("eval/<task>-pass@1", SECOND),
        ("eval/<task>-pass@<n>", OTHER),
        ("eval/<task>", HELD_OUT),
        ("rollout/raw_reward", TRAINING),
    ),
    no_metrics=r"^eval_(?:step$|skipped|.*(?:ratio|response_len|_len_|_std|zero_std|repetition|tool|turn|effort))",
    about="perf/step_time: generation and training; evaluation and checkpoints are not included",
    seconds=("perf/step_time",),
    parts=("perf/train_wait_time", "perf/train_time"),
    from_zero=True,
    evaluates_after=True,
)  # fmt: skip

OPENRLHF = Dialect(
    name="openrlhf",
    title="OpenRLHF",
    source="OpenRLHF/OpenRLHF openrlhf/trainer/ppo_trainer.py, openrlhf/utils/logging_utils.py",
    marks=("(train/)?timing/(make_experience|ppo_train|broadcast|generation|step_total)", "(eval/)?eval_<task>_pass<n>",
           "train/(policy_loss|actor_lr|act_loss|group_reward_stds|num_actions|total_length"
           "|dynamic_filtering_pass_rate)"),
    steps=(("train/global_step", "eval/global_step", "global_step"), ("step",), ("_step",)),
    metrics=(
        ("(eval/)?eval_<task>_pass1", HELD_OUT),
        ("(eval/)?eval_<task>_pass<n>", OTHER),
        ("(train/)?reward", TRAINING),
        ("rollout/reward_mean", MINOR),
        ("(train/)?return", MINOR),
    ),
    about="timing/step_total: generation, experience, update and broadcast; evaluation is not included",
    seconds=("timing/step_total",),
    parts=("timing/generation", "timing/make_experience", "timing/ppo_train", "timing/broadcast"),
)  # fmt: skip

TINKER = Dialect(
    name="tinker",
    title="tinker-cookbook",
    source="thinking-machines-lab/tinker-cookbook tinker_cookbook/rl/train.py, metric_util.py",
    marks=("progress/done_frac", "env/all/(reward/total|total_ac_tokens|correct|turns_per_episode)", "test/env/all/<x>",
           "time/trajectory_group_worker_loop/total"),
    steps=(("progress/batch",), ("step",), ("_step",)),
    metrics=(
        ("test/env/<task>/correct", HELD_OUT),
        ("test/env/<task>/reward/total", SECOND),
        ("env/all/correct", TRAINING),
        ("env/all/reward/total", TRAINING),
        ("env/<task>/(correct|reward/total)", MINOR),
    ),
    about="time/total without time/run_evals",
    seconds=("time/total",),
    aside=("time/run_evals", "time/run_evals:total", "time/save_checkpoint"),
    step_tokens=("env/all/total_ac_tokens + env/all/total_ob_tokens", "env/all/total_ac_tokens"),
    from_zero=True,
)  # fmt: skip

AREAL = Dialect(
    name="areal",
    title="AReaL",
    source="areal-project/AReaL areal/trainer/rl_trainer.py, areal/utils/stats_tracker.py",
    marks=("timeperf/<x>", "(ppo|grpo)_actor/<x>", "eval-rollout/<x>"),
    steps=(("step",), ("_step",)),
    metrics=(
        ("eval-rollout/(<task>/)?(reward|accuracy)", HELD_OUT),
        ("(ppo|grpo)_actor/task_reward/avg", TRAINING),
        ("rollout/reward", TRAINING),
        ("(ppo|grpo)_actor/final_reward/avg", MINOR),
    ),
    about="the sum of timeperf/rollout, train_step and the other phases, without timeperf/eval and checkpoints",
    parts=(
        "timeperf/rollout", "timeperf/train_step", "timeperf/critic_train_step", "timeperf/recompute_logp",
        "timeperf/ref_logp", "timeperf/teacher_logp", "timeperf/critic_values", "timeperf/compute_advantage",
        "timeperf/compute_advantages", "timeperf/update_weights",
    ),
    step_tokens=("ppo_actor/n_tokens", "grpo_actor/n_tokens"),
    from_zero=True,
    evaluates_after=True,
    extremes=(("ppo_actor/task_reward/avg", "ppo_actor/task_reward/min", "ppo_actor/task_reward/max"),),
)  # fmt: skip

ROLL = Dialect(
    name="roll",
    title="ROLL",
    source="alibaba/ROLL roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/agentic/agentic_pipeline.py",
    marks=("val_correct/<task>/mean", "time/step_(total|generate|train|model_update|rollout|stop_server|val|adv)",
           "time/(val_step|ref_log_probs_values|old_log_probs)", "system/(tps|samples|global_step)"),
    steps=(("system/global_step", "step"), ("_step",)),
    metrics=(
        ("val_correct/all/mean", HELD_OUT),
        ("val_correct/<task>/mean", SECOND),
        ("val/score/mean", HELD_OUT),
        ("val/<task>/score/mean", SECOND),
        ("critic/(score|correct)/mean", TRAINING),
        ("rollout/score/mean", TRAINING),
        ("critic/rewards/mean", MINOR),
    ),
    about="time/step_total without time/val_step",
    seconds=("time/step_total",),
    aside=("time/val_step", "time/step_val"),
    from_zero=True,
    extends=("verl",),
    extremes=(("critic/score/mean", "critic/score/min", "critic/score/max"),),
)  # fmt: skip

LLAMA_FACTORY = Dialect(
    name="llama-factory",
    title="LLaMA-Factory",
    source="hiyouga/LLaMA-Factory src/llamafactory/train/callbacks.py, train/ppo/trainer.py",
    marks=("current_steps", "total_steps"),
    steps=(("current_steps", "step"), ("_step",)),
    # `accuracy` is that of a reward model or DPO on pairs
    metrics=(("reward", TRAINING),),
    no_metrics=r"accuracy|rewards_",
    about="elapsed_time, which includes evaluation and checkpoints",
    clocks=("elapsed_time",),
    tokens=("total_tokens",),
)

SUPERVISED = Dialect(
    name="supervised",
    title="supervised training, DPO or a reward model",
    source="huggingface/trl trl/trainer/sft_trainer.py, dpo_trainer.py, reward_trainer.py",
    marks=("(train/|eval/|eval_)?rewards/(chosen|rejected|margins|accuracies)", 
           "(train/|eval/|eval_)?logps/(chosen|rejected)",
           "(train/|eval/|eval_)?mean_token_accuracy", "(train/|eval/|eval_)?(center_rewards|min_reward|margin)"),
    metrics=(),
    supervised=True,
)  # fmt: skip

TRL_PPO = Dialect(
    name="trl-ppo",
    title="TRL's PPO or online DPO",
    source="huggingface/trl trl/experimental/ppo/ppo_trainer.py, online_dpo/online_dpo_trainer.py",
    marks=("objective/(rlhf_reward|non_score_reward)", "policy/(approxkl_avg|clipfrac_avg)"),
    steps=(("step", "global_step"), ("episode",), ("_step",)),
    metrics=(("objective/scores", TRAINING), ("objective/rlhf_reward", MINOR)),
    # `val` is the value function here
    no_metrics=r"(?:^|_)val_|rewards_",
    tokens=("num_tokens",),
    extends=("supervised", "trl"),
)

# ------------------------------------------------------------------------------------------------------- any trainer

GENERAL_STEPS = (
    ("train/global_step", "trainer/global_step", "training/global_step", "global_step", "train/step", "step",
     "training_step",
     "iteration", "iter", "rollout", "rollout/step", "update", "updates", "num_updates", "current_steps", "train_step",
     "optimizer_step", "trainer_step", "batch", "eval/step", "eval/global_step", "step_num", "global step",
     "train step", "it", "round"),
    ("episode", "episodes"), ("epoch",), ("_step",), ("@bar",), ("steps",),
)  # fmt: skip
"""Names of steps, best first; columns of the first group count updates."""

GENERAL_SECONDS = (
    "step_time", "time_per_step", "seconds_per_step", "sec_per_step", "step_time_s", "step_seconds", "step_duration",
    "time/step", "time_step", "perf/step_time", "perf/time_per_step", "timing/step", "timing_s/step", "iteration_time",
    "iter_time", "time_per_iteration", "time_per_iter", "seconds_per_iteration", "iteration_seconds", "train_step_time",
    "total_step_time", "duration_s", "step_wall_time", "seconds_per_iter", "s/it", "sec/it", "secs_per_iter",
    "step_sec",
)  # fmt: skip
STEP_TIME_WITH_UNIT = re.compile(
    r"(?:.*_)?(?:(?P<per_ms>ms|milliseconds)|(?P<per_min>min|mins|minutes)|(?P<per_h>h|hrs?|hours))"
    r"_per_(?:step|iter(?:ation)?|update)"
    r"|(?:.*_)?(?:(?:time_per_)?(?:step|iter(?:ation)?|update)(?:_wall)?(?:_time|_duration)?|duration)"
    r"_(?:(?P<ms>ms)|(?P<min>min|mins|minutes)|(?P<h>h|hrs?|hours))"
)
"""Name of the time of a step in another unit than seconds, as `plain_key` writes it: step_time_ms, minutes_per_step."""
GENERAL_RATES = ("it/s", "iter/s", "steps_per_second", "iterations_per_second", "steps_per_sec", "it_per_s",
                 "iters_per_sec",
                 "train_steps_per_second", "steps/s", "step/s")  # fmt: skip
"""Steps per second."""
GENERAL_CLOCKS = (
    "elapsed", "elapsed_time", "elapsed_s", "elapsed_sec", "elapsed_seconds", "time_elapsed", "seconds_elapsed",
    "wall_time",
    "walltime", "wall_clock", "wall_clock_time", "wallclock", "total_time", "total_seconds", "cumulative_time",
    "cum_time",
    "time_total", "time_total_s", "train_time", "training_time", "_runtime", "runtime", "relative time (process)",
    "relative time (wall)", "wall_seconds", "time_s", "time", "seconds", "_timestamp", "timestamp", "ts",
    "datetime", "date",
    "created_at", "wall time", "time/total", "unix_time", "@line_time",
)  # fmt: skip
"""Seconds since some start, or dates, best first."""
CLOCK_WITH_UNIT = re.compile(
    r"(?:.*_)?(?:elapsed|wall|wall_?clock|time|(?:wall|run)time|time_elapsed|timestamp)_"
    r"(?:(?P<ms>ms)|(?P<s>s|secs?|seconds)|(?P<min>m|mins?|minutes)|(?P<h>h|hrs?|hours)|(?P<d>d|days?))"
    r"|(?:.*_)?(?P<only_min>minutes)|(?:.*_)?(?P<only_h>hours)"
)
"""Name of a clock that ends in its unit, as `table.key` writes it without brackets: elapsed_hours, wall_clock_min."""
UNIT_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
GENERAL_TOKENS = ("num_tokens", "total_tokens", "tokens", "tokens_seen", "num_input_tokens_seen", "cumulative_tokens",
                  "total_num_tokens", "train/num_tokens", "tokens_total", "n_tokens", "num_tokens_seen",
                  "consumed_tokens",
                  "tokens_processed")  # fmt: skip
"""Tokens, so far or per step; the log shows which."""
GENERAL_STEP_TOKENS = ("step_tokens", "tokens_per_step", "num_step_tokens", "batch_tokens", "perf/total_num_tokens",
                       "tokens_in_batch")  # fmt: skip

GENERAL_TABLE = Dialect(
    name="table", title="", source="", marks=(), metrics=(), steps=GENERAL_STEPS, about="the columns of the log"
)
WANDB = replace(GENERAL_TABLE, name="wandb", about="the run's clock: it includes evaluation and checkpoints",
                clocks=("_runtime", "_timestamp"))  # fmt: skip

IMPORTERS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        TRL, VERL, PRIME_RL, OPEN_INSTRUCT, SKYRL, UNSLOTH, MS_SWIFT, NEMO_RL, SLIME, OPENRLHF, TINKER, AREAL, ROLL,
        LLAMA_FACTORY, TRL_PPO, SUPERVISED, WANDB, replace(WANDB, name="tensorboard"), GENERAL_TABLE,
    )
}  # fmt: skip
"""The dialects, by the name that `source` and `--from` take."""


def verl_devices(table: Table) -> int | None:
    """Return the number of GPUs: tokens / (seconds x throughput), because perf/throughput is per second and GPU."""
    columns = [table.find(f"perf/{name}") for name in ("total_num_tokens", "time_per_step", "throughput")]
    tokens, seconds, rate = (None if name is None else table.column(name) for name in columns)
    if tokens is None or seconds is None or rate is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = tokens / (seconds * rate)
    counts = counts[np.isfinite(counts)]
    if not len(counts):
        return None
    count = float(np.median(counts))
    # console logs of old versions have only three decimals
    return round(count) if count > 0.5 and abs(count - round(count)) < 0.02 * count else None
