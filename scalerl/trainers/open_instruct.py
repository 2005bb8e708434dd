"""open-instruct's GRPO: the arguments of a script, or its YAML."""

from __future__ import annotations

from scalerl.trainers.base import (
    COUNTED,
    DROPPED,
    NO_HEAD,
    NO_INTERRUPTION,
    Setting,
    Theirs,
    Trainer,
    Values,
    cispo,
    clipped,
    completions,
    group,
    number,
    optimizer,
    tokens,
)

SETTINGS = (
    Setting("loss_fn", "cispo", "eq. 4"),
    Setting("clip_higher", 4.0, "the ratio is capped at 1 + this: 5; 4, 5 and 8 perform alike"),
    Setting("use_vllm_logprobs", True, "the ratio is to the engine's probability"),
    Setting("use_rho_correction", False, "the ratio already has it"),
    Setting("loss_denominator", "token", "equal weight per token; there is no average per prompt"),
    Setting("advantage_normalization_type", "centered", "reward minus the mean of the group; it is not divided"),
    Setting("filter_zero_std_samples", True, "drops prompts with equal rewards"),
    Setting("active_sampling", False, "without refill"),
    Setting("no_resampling_pass_rate", 0.9, "solved prompts are not drawn again"),
    Setting("mask_truncated_completions", True, "truncated completions carry no loss"),
    Setting("async_steps", 8, "k of PipelineRL"),
    Setting("inflight_updates", True, "weights change while sequences are sampled"),
    Setting("num_unique_prompts_rollout", 48, "P: prompts per update"),
    Setting("num_samples_per_prompt_rollout", 16, "G: completions per prompt"),
    Setting("num_mini_batches", 1, "one update per batch"),
    Setting("num_epochs", 1, "each completion is trained once"),
    Setting("max_prompt_token_length", 2048, "as in the paper"),
    Setting("response_length", 14336, "12,288 tokens of thinking and 2,048 of the answer"),
    Setting("pack_length", 16384, "at least prompt and completion"),
    Setting("beta", 0.0, "no KL penalty"),
    Setting("load_ref_policy", False, "not needed without it"),
    Setting("temperature", 1.0, "the paper does not state it"),
    Setting("vllm_top_p", 1.0, "the paper does not state it"),
    Setting("learning_rate", 5e-7, "AdamW's eps, 1e-8, has no setting"),
    Setting("lr_scheduler_type", "constant_with_warmup", "linear warm-up, then constant"),
    Setting("warmup_ratio", 0.01, "a share of all updates: 100 of 10,000"),
    Setting("weight_decay", 0.01, "decoupled"),
    Setting("max_grad_norm", 1.0, "the paper does not state it"),
)


def _loss(values: Values) -> Theirs:
    low, high = values.number("clip_lower"), values.number("clip_higher")
    return cispo(1 + (high or 0.0)) if values.word("loss_fn") == "cispo" else clipped(low, high)


def _aggregation(values: Values) -> Theirs:
    constant = values.word("loss_denominator") != "token"
    return Theirs("sum over a constant", "constant") if constant else Theirs("equal weight per token", "token")


def _advantage(values: Values) -> Theirs:
    grouped = values.word("advantage_normalization_type") == "standard"
    return Theirs("divided by the group's deviation", "group") if grouped else Theirs("not divided", "none")


def _zero_variance(values: Values) -> Theirs:
    if not values.flag("filter_zero_std_samples"):
        return COUNTED
    refilled = values.flag("active_sampling")
    return Theirs("replaced: active sampling", "refill") if refilled else DROPPED


def _resampling(values: Values) -> Theirs:
    rate = values.number("no_resampling_pass_rate")
    if rate is None:
        return Theirs("drawn again", "off")
    return Theirs(f"not drawn again from {number(rate)}", "rate", same=rate == 0.9)


def _off_policy(values: Values) -> Theirs:
    lag = values.number("async_steps")
    rounds = int(values.number("num_mini_batches") or 1) * int(values.number("num_epochs") or 1)
    words = f"asynchronous, {number(lag)} batches ahead" + (f", {rounds} updates each" if rounds > 1 else "")
    if not values.flag("inflight_updates"):
        return Theirs(f"{words}, weights change between sequences", "other")
    return Theirs(words, f"lag-{number(lag)}" if rounds == 1 else "other", same=lag == 8 and rounds == 1)


def _kl(values: Values) -> Theirs:
    beta = values.number("beta")
    return Theirs(f"coefficient {number(beta)}", "kl") if beta else Theirs("none", same=True)


def _truncated(values: Values) -> Theirs:
    left_out = values.flag("mask_truncated_completions")
    return Theirs("left out of the loss", same=True) if left_out else Theirs("trained", "keep")


def _batch(values: Values) -> Theirs:
    prompts, parts = values.number("num_unique_prompts_rollout"), values.number("num_mini_batches")
    return completions((prompts or 0) / (parts or 1), values.number("num_samples_per_prompt_rollout"))


TRAINER = Trainer(
    name="open-instruct",
    title="open-instruct",
    package="open-instruct",
    checked="main of 2026-08-20 (after 0.3.0)",
    form="yaml",
    start="python open_instruct/grpo_fast.py scalerl.yaml, with your model and data in it",
    settings=SETTINGS,
    lacks={
        "aggregation": "average over the tokens of the batch",
        "advantage": "reward minus the mean of the group, not divided (or by the group's deviation)",
        "length": "only the hard limit",
        "fp32_head": "the head has the precision of the model",
        "optimizer": "eps of AdamW is 1e-8",
    },
    defaults={
        "loss_fn": "dapo",
        "clip_lower": 0.2,
        "clip_higher": 0.272,
        "loss_denominator": "token",
        "advantage_normalization_type": "centered",
        "filter_zero_std_samples": True,
        "active_sampling": False,
        "no_resampling_pass_rate": None,
        "mask_truncated_completions": False,
        "async_steps": 8,
        "inflight_updates": True,
        "num_unique_prompts_rollout": 16,
        "num_samples_per_prompt_rollout": 4,
        "num_mini_batches": 1,
        "num_epochs": 1,
        "response_length": 256,
        "beta": 0.05,
        "learning_rate": 2e-5,
        "warmup_ratio": 0.1,
    },
    parts={
        "loss": _loss,
        "aggregation": _aggregation,
        "advantage": _advantage,
        "zero_variance": _zero_variance,
        "resampling": _resampling,
        "length": NO_INTERRUPTION,
        "truncated": _truncated,
        "off_policy": _off_policy,
        "fp32_head": NO_HEAD,
        "kl": _kl,
        "generations": lambda values: group(values.number("num_samples_per_prompt_rollout")),
        "batch": _batch,
        "tokens": lambda values: tokens(values.number("response_length")),
        "optimizer": lambda values: optimizer(values, "learning_rate", None, None),
    },
    required=(
        "num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "async_steps", "response_length",
        "advantage_normalization_type", "no_resampling_pass_rate", "loss_denominator",
    ),
)  # fmt: skip
