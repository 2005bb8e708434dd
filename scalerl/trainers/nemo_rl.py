"""NeMo-RL: the YAML of its GRPO examples."""

from __future__ import annotations

from scalerl.trainers.base import (
    COUNTED,
    NO_HEAD,
    NO_INTERRUPTION,
    NO_RESAMPLING,
    REPLACED,
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
    penalty,
    tokens,
)

SETTINGS = (
    Setting("grpo.num_prompts_per_step", 48, "P: prompts per update"),
    Setting("grpo.num_generations_per_prompt", 16, "G: completions per prompt"),
    Setting("grpo.overlong_filtering", True, "truncated completions carry no loss"),
    Setting("grpo.use_dynamic_sampling", False, "it would replace prompts; ScaleRL only drops them"),
    Setting("grpo.adv_estimator.name", "reinforce_plus_plus", "divided by the deviation over the batch's tokens"),
    Setting("grpo.adv_estimator.minus_baseline", True, "reward minus the mean of the group"),
    Setting("grpo.async_grpo.enabled", True, "generation does not wait for training"),
    Setting("grpo.async_grpo.max_trajectory_age_steps", 8, "k of PipelineRL"),
    Setting("grpo.async_grpo.in_flight_weight_updates", True, "weights change while sequences are sampled"),
    Setting("grpo.async_grpo.recompute_kv_cache_after_weight_updates", False, "the cache of older weights is kept"),
    Setting("loss_fn.use_cispo", True, "eq. 4"),
    Setting("loss_fn.ratio_clip_min", 1.0, "CISPO's lower limit of the ratio is 1 - this: none"),
    Setting("loss_fn.ratio_clip_max", 4.0, "the ratio is capped at 1 + this: 5; 4, 5 and 8 perform alike"),
    Setting("loss_fn.token_level_loss", True, "CISPO needs it; there is no average per prompt"),
    Setting("loss_fn.reference_policy_kl_penalty", 0.0, "no KL penalty"),
    Setting("loss_fn.use_importance_sampling_correction", True, "ScaleRL's ratio is to the engine's probability"),
    Setting("loss_fn.truncated_importance_sampling_type", "tis", "the ratio is capped, no token is left out"),
    Setting("loss_fn.truncated_importance_sampling_ratio", 5.0, "the same cap"),
    Setting("policy.train_global_batch_size", 768, "48 x 16: one update per batch"),
    Setting("policy.max_total_sequence_length", 16384, "2,048 tokens of prompt and 14,336 of completion"),
    Setting("policy.max_grad_norm", 1.0, "the paper does not state it"),
    Setting("policy.optimizer.name", "torch.optim.AdamW", "AdamW"),
    Setting("policy.optimizer.kwargs.lr", 5e-7, "constant after the warm-up"),
    Setting("policy.optimizer.kwargs.weight_decay", 0.01, "decoupled"),
    Setting("policy.optimizer.kwargs.betas", [0.9, 0.95], "the paper does not state them"),
    Setting("policy.optimizer.kwargs.eps", 1e-15, "1e-8 is too large for the small gradients of RL"),
    Setting("policy.generation.max_new_tokens", 14336, "12,288 of thinking and 2,048 of the answer"),
    Setting("policy.generation.temperature", 1.0, "the paper does not state it"),
    Setting("policy.generation.top_p", 1.0, "the paper does not state it"),
    Setting("policy.generation.vllm_cfg.async_engine", True, "asynchronous training needs it"),
    Setting("policy.generation.colocated.enabled", False, "generation has its own GPUs"),
)


def _loss(values: Values) -> Theirs:
    low, high = values.number("loss_fn.ratio_clip_min"), values.number("loss_fn.ratio_clip_max")
    if values.flag("loss_fn.use_cispo"):
        return cispo(1 + (high or 0.0), 1 - (low or 0.0))
    if values.flag("loss_fn.disable_ppo_ratio"):
        return Theirs("REINFORCE", "other")
    if values.flag("loss_fn.sequence_level_importance_ratios"):
        return Theirs(f"GSPO, {number(low)} and {number(high)}", "gspo")
    return clipped(low, high)


def _aggregation(values: Values) -> Theirs:
    by_token = values.flag("loss_fn.token_level_loss")
    return Theirs("equal weight per token", "token") if by_token else Theirs("equal weight per completion", "sample")


def _advantage(values: Values) -> Theirs:
    name = values.word("grpo.adv_estimator.name")
    if name == "grpo":
        divided = values.flag("grpo.adv_estimator.normalize_rewards") and values.flag("grpo.normalize_rewards")
        return Theirs("divided by the group's deviation", "group") if divided else Theirs("not divided", "none")
    if name == "reinforce_plus_plus" and values.flag("grpo.adv_estimator.minus_baseline"):
        return Theirs("divided by the batch's deviation", same=True)
    return Theirs(name, "other")


def _zero_variance(values: Values) -> Theirs:
    if values.flag("grpo.use_dynamic_sampling"):
        return REPLACED
    return COUNTED


def _off_policy(values: Values) -> Theirs:
    if values.flag("grpo.async_grpo.enabled"):
        lag = values.number("grpo.async_grpo.max_trajectory_age_steps")
        words = f"asynchronous, at most {number(lag)} updates old"
        if not values.flag("grpo.async_grpo.in_flight_weight_updates"):
            return Theirs(f"{words}, weights change between sequences", "other")
        return Theirs(words, f"lag-{number(lag)}", same=lag == 8)
    prompts, generations = values.number("grpo.num_prompts_per_step"), values.number("grpo.num_generations_per_prompt")
    rounds = int((prompts or 1) * (generations or 1) // (values.number("policy.train_global_batch_size") or 1))
    return Theirs(f"{rounds} updates per generation", "ppo") if rounds > 1 else Theirs("on-policy", "sync")


def _truncated(values: Values) -> Theirs:
    left_out = values.flag("grpo.overlong_filtering")
    return Theirs("left out of the loss", same=True) if left_out else Theirs("trained", "keep")


def _length(values: Values) -> Theirs:
    shaped = values.flag("grpo.reward_shaping.enabled")
    return Theirs("length penalty", "penalty") if shaped else NO_INTERRUPTION(values)


def _batch(values: Values) -> Theirs:
    prompts, generations = values.number("grpo.num_prompts_per_step"), values.number("grpo.num_generations_per_prompt")
    generated, update = (prompts or 0) * (generations or 0), values.number("policy.train_global_batch_size") or 0
    return completions(min(generated, update), 1)


def _tokens(values: Values) -> Theirs:
    limit = values.number("policy.generation.max_new_tokens")
    return tokens(limit) if limit is not None else Theirs("until the context is full", same=None)


RATE, EPS = "policy.optimizer.kwargs.lr", "policy.optimizer.kwargs.eps"

TRAINER = Trainer(
    name="nemo-rl",
    title="NeMo-RL",
    package="nemo-rl",
    checked="0.6.0 (2026-08-22)",
    form="yaml",
    start="uv run examples/run_grpo.py --config examples/configs/scalerl.yaml",
    notes=("The warm-up is in policy.scheduler: LinearLR with total_iters 100, then ConstantLR.",),
    preamble=("defaults: grpo_math_1B.yaml",),
    settings=SETTINGS,
    lacks={
        "aggregation": "CISPO averages over the tokens of the batch",
        "zero_variance": "they carry no gradient, but count in the average; dynamic sampling replaces them",
        "resampling": "drawn again",
        "length": "a penalty (grpo.reward_shaping) or the hard limit",
        "fp32_head": "the head has the precision of the model",
    },
    defaults={
        "grpo.num_prompts_per_step": 32,
        "grpo.num_generations_per_prompt": 16,
        "grpo.normalize_rewards": True,
        "grpo.overlong_filtering": False,
        "grpo.use_dynamic_sampling": False,
        "grpo.reward_shaping.enabled": False,
        "grpo.adv_estimator.name": "grpo",
        "grpo.adv_estimator.normalize_rewards": True,
        "grpo.adv_estimator.minus_baseline": True,
        "grpo.async_grpo.enabled": False,
        "grpo.async_grpo.max_trajectory_age_steps": 1,
        "grpo.async_grpo.in_flight_weight_updates": False,
        "loss_fn.use_cispo": False,
        "loss_fn.disable_ppo_ratio": False,
        "loss_fn.sequence_level_importance_ratios": False,
        "loss_fn.token_level_loss": True,
        "loss_fn.ratio_clip_min": 0.2,
        "loss_fn.ratio_clip_max": 0.2,
        "loss_fn.reference_policy_kl_penalty": 0.01,
        "policy.train_global_batch_size": 512,
        "policy.generation.max_new_tokens": None,
        RATE: 5e-6,
        EPS: 1e-8,
    },
    parts={
        "loss": _loss,
        "aggregation": _aggregation,
        "advantage": _advantage,
        "zero_variance": _zero_variance,
        "resampling": NO_RESAMPLING,
        "length": _length,
        "truncated": _truncated,
        "off_policy": _off_policy,
        "fp32_head": NO_HEAD,
        "kl": lambda values: penalty(values, ("loss_fn.reference_policy_kl_penalty",)),
        "generations": lambda values: group(values.number("grpo.num_generations_per_prompt")),
        "batch": _batch,
        "tokens": _tokens,
        "optimizer": lambda values: optimizer(values, RATE, EPS, None),
    },
    required=("grpo.", "loss_fn."),
)
