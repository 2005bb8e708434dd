"""TRL's GRPOTrainer: `GRPOConfig`, as YAML for `trl grpo --config` or as the JSON of its arguments."""

from __future__ import annotations

from scalerl.trainers.base import (
    NO_INTERRUPTION,
    NO_RESAMPLING,
    Setting,
    Theirs,
    Trainer,
    Values,
    cispo,
    clipped,
    completions,
    fixed,
    group,
    optimizer,
    penalty,
    tokens,
)

SETTINGS = (
    Setting("loss_type", "cispo", "eq. 4; its average is over the tokens of the batch, not per prompt"),
    Setting("epsilon_high", 5.0, "CISPO's cap on the ratio; in the paper 4, 5 and 8 perform alike"),
    Setting("importance_sampling_level", "token", "the ratio of each token, not of a sequence"),
    Setting("scale_rewards", "batch", "advantages divided by the standard deviation of the batch's rewards"),
    Setting("beta", 0.0, "no KL penalty"),
    Setting("num_generations", 16, "G: completions per prompt"),
    Setting("per_device_train_batch_size", 16, "with 48 accumulation steps 768 completions per update on one GPU"),
    Setting("gradient_accumulation_steps", 48, "divide it by the number of GPUs"),
    Setting("num_iterations", 1, "each completion is trained once"),
    Setting("max_completion_length", 14336, "12,288 tokens of thinking and 2,048 of the answer"),
    Setting("mask_truncated_completions", True, "truncated completions carry no loss"),
    Setting("cast_lm_head_to_fp32", True, "FP32 head in the trainer; the model must not tie its embeddings"),
    Setting("use_vllm", True, "the engine that generates"),
    Setting("vllm_importance_sampling_correction", True, "ScaleRL's ratio is to the engine's probability"),
    Setting("vllm_importance_sampling_mode", "token_truncate", "the ratio is capped, no token is left out"),
    Setting("vllm_importance_sampling_clip_max", 5.0, "the same cap"),
    Setting("temperature", 1.0, "the paper does not state it"),
    Setting("top_p", 1.0, "the paper does not state it"),
    Setting("learning_rate", 5e-7, "constant after the warm-up"),
    Setting("lr_scheduler_type", "constant_with_warmup", "linear warm-up, then constant"),
    Setting("warmup_steps", 100, "updates"),
    Setting("optim", "adamw_torch", "AdamW"),
    Setting("adam_epsilon", 1e-15, "1e-8 is too large for the small gradients of RL"),
    Setting("weight_decay", 0.01, "decoupled"),
    Setting("max_grad_norm", 1.0, "the paper does not state it"),
    Setting("bf16", True, "weights of the forward pass"),
)


def _loss(values: Values) -> Theirs:
    kind = values.word("loss_type")
    low = values.number("epsilon")
    high = values.number("epsilon_high")
    high = low if high is None else high
    if kind == "cispo":
        return cispo(high)
    if kind in ("sapo", "vespo", "luspo"):
        return Theirs(kind.upper(), "other")
    if values.word("importance_sampling_level") == "sequence":
        return Theirs(f"GSPO, {values.get('epsilon')} and {high}", "gspo")
    return clipped(low, high)


def _aggregation(values: Values) -> Theirs:
    kind = values.word("loss_type")
    if kind in ("grpo", "sapo"):
        return Theirs("equal weight per completion", "sample")
    if kind in ("dr_grpo", "luspo"):
        return Theirs("sum of the tokens", "constant")
    return Theirs("equal weight per token", "token")


def _advantage(values: Values) -> Theirs:
    kind = {"true": "group", "false": "none"}.get(values.word("scale_rewards"), values.word("scale_rewards"))
    if values.word("multi_objective_aggregation") == "normalize_then_sum":
        return Theirs("each reward by its group, the sum by the batch", "other")
    words = {"group": "divided by the group's deviation", "none": "not divided", "batch": "divided by the batch's"}
    return Theirs(words.get(kind, kind), kind, same=kind == "batch")


def _off_policy(values: Values) -> Theirs:
    generation, accumulation = values.number("steps_per_generation"), values.number("gradient_accumulation_steps")
    rounds = int((generation or accumulation or 1) // (accumulation or 1)) * int(values.number("num_iterations") or 1)
    batch = values.number("generation_batch_size")
    if batch:
        rounds = max(1, int(batch // ((values.number("per_device_train_batch_size") or 1) * (accumulation or 1))))
    if rounds <= 1:
        return Theirs("generates, then trains: on-policy", "sync")
    return Theirs(f"{rounds} updates per generation", "ppo")


def _head(values: Values) -> Theirs:
    on = values.flag("cast_lm_head_to_fp32")
    return Theirs("trainer only", "one") if on else Theirs("off", "off")


def _batch(values: Values) -> Theirs:
    size, steps = values.number("per_device_train_batch_size"), values.number("gradient_accumulation_steps")
    part = completions(size, steps)
    return part._replace(words=f"{part.words} per GPU, times the number of GPUs", same=None, kind="")


def _truncated(values: Values) -> Theirs:
    left_out = values.flag("mask_truncated_completions")
    return Theirs("left out of the loss", same=True) if left_out else Theirs("trained", "keep")


TRAINER = Trainer(
    name="trl",
    title="TRL",
    package="trl",
    checked="1.16.0",
    form="yaml",
    start="trl grpo --config scalerl.yaml --model_name_or_path MODEL --dataset_name DATA --output_dir OUT",
    notes=("The values are also the arguments of GRPOConfig (`--json` prints them for it).",),
    settings=SETTINGS,
    lacks={
        "aggregation": "CISPO averages over the tokens of the batch",
        "zero_variance": "they carry no gradient, but count in the average",
        "resampling": "drawn again",
        "length": "only the hard limit",
        "off_policy": "GRPOTrainer generates, then trains; the experimental AsyncGRPOTrainer has no CISPO",
        "fp32_head": "in the trainer only, and only for models that do not tie their embeddings",
    },
    defaults={
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": None,
        "importance_sampling_level": "token",
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "mask_truncated_completions": False,
        "steps_per_generation": None,
        "generation_batch_size": None,
        "num_iterations": 1,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 8,
        "cast_lm_head_to_fp32": False,
        "beta": 0.0,
        "num_generations": 8,
        "max_completion_length": 512,
        "learning_rate": 1e-6,
        "adam_epsilon": 1e-8,
        "warmup_steps": 0,
    },
    parts={
        "loss": _loss,
        "aggregation": _aggregation,
        "advantage": _advantage,
        "zero_variance": fixed("counted in the average", "keep"),
        "resampling": NO_RESAMPLING,
        "length": NO_INTERRUPTION,
        "truncated": _truncated,
        "off_policy": _off_policy,
        "fp32_head": _head,
        "kl": lambda values: penalty(values, ("beta",)),
        "generations": lambda values: group(values.number("num_generations")),
        "batch": _batch,
        "tokens": lambda values: tokens(values.number("max_completion_length")),
        "optimizer": lambda values: optimizer(values, "learning_rate", "adam_epsilon", "warmup_steps"),
    },
    required=(
        "num_generations", "max_completion_length", "loss_type", "epsilon", "scale_rewards", "num_iterations",
        "mask_truncated_completions", "vllm_importance_sampling",
    ),
)  # fmt: skip
