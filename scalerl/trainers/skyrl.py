"""SkyRL: overrides of `SkyRLTrainConfig` in a script, or its settings as YAML."""

from __future__ import annotations

from scalerl.trainers.base import (
    COUNTED,
    DROPPED,
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
    tokens,
)

ALGORITHM, POLICY, SAMPLING = "trainer.algorithm", "trainer.policy.optimizer_config", "generator.sampling_params"

SETTINGS = (
    Setting(f"{ALGORITHM}.policy_loss_type", "cispo", "eq. 4"),
    Setting(f"{ALGORITHM}.cispo.cispo_eps_clip_low", 1.0, "the ratio's lower limit is 1 - this: none"),
    Setting(f"{ALGORITHM}.cispo.cispo_eps_clip_high", 4.0, "the ratio is capped at 1 + this: 5; 4, 5 and 8 are alike"),
    Setting(f"{ALGORITHM}.off_policy_correction.tis_ratio_type", "token", "the ratio is to the engine's probability"),
    Setting(f"{ALGORITHM}.off_policy_correction.token_tis_ratio_clip_high", 5.0, "the same cap"),
    Setting(f"{ALGORITHM}.loss_reduction", "prompt_mean", "equal weight per prompt"),
    Setting(f"{ALGORITHM}.advantage_estimator", "grpo", "reward minus the mean of the group"),
    Setting(f"{ALGORITHM}.grpo_norm_by_std", False, "not divided by the group's deviation"),
    Setting(f"{ALGORITHM}.advantage_batch_normalize", True, "divided by the batch's deviation"),
    Setting(f"{ALGORITHM}.zero_variance_filter", True, "prompts with equal rewards are left out, without refill"),
    Setting(f"{ALGORITHM}.use_kl_loss", False, "no KL penalty"),
    Setting(f"{ALGORITHM}.use_kl_in_reward", False, "no KL penalty"),
    Setting(f"{ALGORITHM}.use_entropy_loss", False, "no entropy bonus"),
    Setting("trainer.fully_async.enabled", True, "weights change while sequences are sampled: PipelineRL"),
    Setting("trainer.fully_async.max_staleness_steps", 8, "k of PipelineRL"),
    Setting("trainer.fully_async.clear_kv_cache_on_weight_sync", False, "the cache of older weights is kept"),
    Setting("trainer.train_batch_size", 48, "P: prompts per update"),
    Setting("trainer.policy_mini_batch_size", 48, "one update per batch"),
    Setting("trainer.update_epochs_per_batch", 1, "each completion is trained once"),
    Setting(f"{POLICY}.lr", 5e-7, "constant after the warm-up; AdamW's eps, 1e-8, has no setting"),
    Setting(f"{POLICY}.num_warmup_steps", 100, "updates"),
    Setting(f"{POLICY}.scheduler", "constant_with_warmup", "linear warm-up, then constant"),
    Setting(f"{POLICY}.weight_decay", 0.01, "decoupled"),
    Setting(f"{POLICY}.max_grad_norm", 1.0, "the paper does not state it"),
    Setting("generator.n_samples_per_prompt", 16, "G: completions per prompt"),
    Setting("generator.apply_overlong_filtering", True, "truncated completions carry no loss"),
    Setting(f"{SAMPLING}.max_generate_length", 14336, "12,288 tokens of thinking and 2,048 of the answer"),
    Setting(f"{SAMPLING}.temperature", 1.0, "the paper does not state it"),
    Setting(f"{SAMPLING}.top_p", 1.0, "the paper does not state it"),
)


def _loss(values: Values) -> Theirs:
    kind = values.word(f"{ALGORITHM}.policy_loss_type")
    if kind == "cispo":
        offsets = [values.number(f"{ALGORITHM}.cispo.cispo_eps_clip_{side}") or 0.0 for side in ("low", "high")]
        return cispo(1 + offsets[1], 1 - offsets[0])
    low, high = values.number(f"{ALGORITHM}.eps_clip_low"), values.number(f"{ALGORITHM}.eps_clip_high")
    if kind in ("regular", "dual_clip"):
        return clipped(low, high)
    return Theirs(f"GSPO, {number(low)} and {number(high)}", "gspo") if kind == "gspo" else Theirs(kind, "other")


def _aggregation(values: Values) -> Theirs:
    kind = values.word(f"{ALGORITHM}.loss_reduction")
    if kind == "prompt_mean":
        return Theirs("equal weight per prompt", same=True)
    kinds = {"token_mean": "token", "token_mean_legacy": "token", "sequence_mean": "sample"}
    words = {"token": "equal weight per token", "sample": "equal weight per completion"}
    measured = kinds.get(kind, "constant")
    return Theirs(words.get(measured, kind), measured)


def _advantage(values: Values) -> Theirs:
    if values.word(f"{ALGORITHM}.advantage_estimator") != "grpo":
        return Theirs(values.word(f"{ALGORITHM}.advantage_estimator"), "other")
    of_group, of_batch = (
        values.flag(f"{ALGORITHM}.grpo_norm_by_std"),
        values.flag(f"{ALGORITHM}.advantage_batch_normalize"),
    )
    if of_group:
        return (
            Theirs("divided by the group's and the batch's", "other")
            if of_batch
            else Theirs("divided by the group's deviation", "group")
        )
    return Theirs("divided by the batch's deviation", same=True) if of_batch else Theirs("not divided", "none")


def _zero_variance(values: Values) -> Theirs:
    if values.word(f"{ALGORITHM}.dynamic_sampling.type") in ("filter", "replace"):
        return REPLACED
    if not values.flag(f"{ALGORITHM}.zero_variance_filter"):
        return COUNTED
    if values.flag("trainer.fully_async.enabled") and values.flag("trainer.fully_async.sample_full_batch"):
        return Theirs("replaced: the batch is filled", "refill")
    return DROPPED


def _off_policy(values: Values) -> Theirs:
    if values.flag("trainer.fully_async.enabled"):
        lag = values.number("trainer.fully_async.max_staleness_steps")
        return Theirs(f"asynchronous, at most {number(lag)} updates old", f"lag-{number(lag)}", same=lag == 8)
    prompts, mini = values.number("trainer.train_batch_size"), values.number("trainer.policy_mini_batch_size")
    rounds = int((prompts or 1) // (mini or 1)) * int(values.number("trainer.update_epochs_per_batch") or 1)
    return Theirs(f"{rounds} updates per generation", "ppo") if rounds > 1 else Theirs("on-policy", "sync")


def _kl(values: Values) -> Theirs:
    if values.flag(f"{ALGORITHM}.use_kl_loss") or values.flag(f"{ALGORITHM}.use_kl_in_reward"):
        return Theirs(f"coefficient {number(values.number(f'{ALGORITHM}.kl_loss_coef'))}", "kl")
    return Theirs("none", same=True)


def _truncated(values: Values) -> Theirs:
    left_out = values.flag("generator.apply_overlong_filtering")
    return Theirs("left out of the loss", same=True) if left_out else Theirs("trained", "keep")


def _batch(values: Values) -> Theirs:
    prompts, mini = values.number("trainer.train_batch_size"), values.number("trainer.policy_mini_batch_size")
    return completions(min(prompts or 0, mini or 0), values.number("generator.n_samples_per_prompt"))


TRAINER = Trainer(
    name="skyrl",
    title="SkyRL",
    package="skyrl",
    checked="0.3.0",
    form="shell",
    start='source scalerl.sh, then add "${SCALERL_ARGS[@]}" to the arguments of your script of fully async training',
    settings=SETTINGS,
    lacks={
        "resampling": "drawn again",
        "length": "only the hard limit",
        "fp32_head": "the head has the precision of the model",
        "optimizer": "eps of AdamW is 1e-8",
    },
    defaults={
        f"{ALGORITHM}.policy_loss_type": "regular",
        f"{ALGORITHM}.cispo.cispo_eps_clip_low": 0.0,
        f"{ALGORITHM}.cispo.cispo_eps_clip_high": 5.0,
        f"{ALGORITHM}.eps_clip_low": 0.2,
        f"{ALGORITHM}.eps_clip_high": 0.2,
        f"{ALGORITHM}.loss_reduction": "token_mean",
        f"{ALGORITHM}.advantage_estimator": "grpo",
        f"{ALGORITHM}.grpo_norm_by_std": True,
        f"{ALGORITHM}.advantage_batch_normalize": False,
        f"{ALGORITHM}.dynamic_sampling.type": None,
        f"{ALGORITHM}.zero_variance_filter": False,
        f"{ALGORITHM}.use_kl_loss": True,
        f"{ALGORITHM}.use_kl_in_reward": False,
        f"{ALGORITHM}.kl_loss_coef": 0.001,
        "trainer.fully_async.enabled": False,
        "trainer.fully_async.sample_full_batch": False,
        "trainer.fully_async.max_staleness_steps": 4,
        "trainer.train_batch_size": 1024,
        "trainer.policy_mini_batch_size": 256,
        "trainer.update_epochs_per_batch": 1,
        f"{POLICY}.lr": 1e-6,
        f"{POLICY}.num_warmup_steps": 0,
        "generator.n_samples_per_prompt": 5,
        "generator.apply_overlong_filtering": False,
        f"{SAMPLING}.max_generate_length": 1024,
    },
    parts={
        "loss": _loss,
        "aggregation": _aggregation,
        "advantage": _advantage,
        "zero_variance": _zero_variance,
        "resampling": NO_RESAMPLING,
        "length": NO_INTERRUPTION,
        "truncated": _truncated,
        "off_policy": _off_policy,
        "fp32_head": NO_HEAD,
        "kl": _kl,
        "generations": lambda values: group(values.number("generator.n_samples_per_prompt")),
        "batch": _batch,
        "tokens": lambda values: tokens(values.number(f"{SAMPLING}.max_generate_length")),
        "optimizer": lambda values: optimizer(values, f"{POLICY}.lr", None, f"{POLICY}.num_warmup_steps"),
    },
    required=("trainer.algorithm.", "trainer.policy.", "generator."),
)
