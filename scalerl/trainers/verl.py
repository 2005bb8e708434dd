"""verl's PPO trainer: its YAML, or Hydra's overrides of a script."""

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
    fixed,
    group,
    number,
    optimizer,
    tokens,
)

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

SETTINGS = (
    Setting("algorithm.adv_estimator", "reinforce_plus_plus_baseline", "group mean, then the batch's deviation"),
    Setting("algorithm.use_kl_in_reward", False, "no KL penalty"),
    Setting("algorithm.filter_groups.enable", False, "dynamic sampling would replace prompts; ScaleRL only drops them"),
    Setting("algorithm.rollout_correction.rollout_is", "token", "ScaleRL's ratio is to the engine's probability"),
    Setting("algorithm.rollout_correction.rollout_is_threshold", 5.0, "the same cap"),
    Setting("algorithm.rollout_correction.bypass_mode", False, "it would replace CISPO by the clipped surrogate"),
    Setting("data.train_batch_size", 48, "P: prompts per update"),
    Setting("data.max_prompt_length", 2048, "as in the paper"),
    Setting("data.max_response_length", 14336, "12,288 tokens of thinking and 2,048 of the answer"),
    Setting(f"{ACTOR}.policy_loss.loss_mode", "cispo", "eq. 4"),
    Setting(f"{ACTOR}.clip_ratio_low", 1.0, "CISPO's lower limit of the ratio is 1 - this: none"),
    Setting(f"{ACTOR}.clip_ratio_high", 4.0, "the ratio is capped at 1 + this: 5; 4, 5 and 8 perform alike"),
    Setting(f"{ACTOR}.loss_agg_mode", "token-mean", "over the tokens of the batch; there is no average per prompt"),
    Setting(f"{ACTOR}.ppo_mini_batch_size", 48, "prompts per update, as many as are generated: one update"),
    Setting(f"{ACTOR}.ppo_epochs", 1, "each completion is trained once"),
    Setting(f"{ACTOR}.use_kl_loss", False, "no KL penalty"),
    Setting(f"{ACTOR}.entropy_coeff", 0, "no entropy bonus"),
    Setting(f"{ACTOR}.grad_clip", 1.0, "the paper does not state it"),
    Setting(f"{ACTOR}.optim.lr", 5e-7, "constant after the warm-up"),
    Setting(f"{ACTOR}.optim.lr_warmup_steps", 100, "updates"),
    Setting(f"{ACTOR}.optim.weight_decay", 0.01, "decoupled"),
    Setting(f"{ACTOR}.optim.override_optimizer_config.eps", 1e-15, "1e-8 is too large for the small gradients of RL"),
    Setting(f"{ROLLOUT}.n", 16, "G: completions per prompt"),
    Setting(f"{ROLLOUT}.calculate_log_probs", True, "the engine returns them with its tokens"),
    Setting(f"{ROLLOUT}.temperature", 1.0, "the paper does not state it"),
    Setting(f"{ROLLOUT}.top_p", 1.0, "the paper does not state it"),
)

DEFAULTS = {
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.filter_groups.enable": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.loss_type": "ppo_clip",
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "data.train_batch_size": 1024,
    "data.max_response_length": 512,
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.override_optimizer_config.eps": 1e-8,
    f"{ROLLOUT}.n": 1,
    "async_training.staleness_threshold": None,
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.partial_rollout": True,
}


def _loss(values: Values) -> Theirs:
    mode = values.word(f"{ACTOR}.policy_loss.loss_mode")
    if values.flag("algorithm.rollout_correction.bypass_mode"):  # it replaces the loss, whatever loss_mode says
        reinforce = values.word("algorithm.rollout_correction.loss_type") == "reinforce"
        mode = "REINFORCE (bypass mode)" if reinforce else "vanilla"
    both = values.number(f"{ACTOR}.clip_ratio")
    low, high = values.number(f"{ACTOR}.clip_ratio_low"), values.number(f"{ACTOR}.clip_ratio_high")
    low, high = both if low is None else low, both if high is None else high
    if mode == "vanilla":
        return clipped(low, high)
    if mode == "cispo" and low is not None and high is not None:
        return cispo(1 + high, 1 - low)
    return Theirs(f"GSPO, {number(low)} and {number(high)}", "gspo") if mode == "gspo" else Theirs(mode, "other")


def _aggregation(values: Values) -> Theirs:
    mode = values.word(f"{ACTOR}.loss_agg_mode")
    if mode == "token-mean":
        return Theirs("equal weight per token", "token")
    return Theirs(mode, "sample" if mode == "seq-mean-token-mean" else "constant")


def _advantage(values: Values) -> Theirs:
    estimator = values.word("algorithm.adv_estimator")
    if estimator in ("grpo", "grpo_vectorized"):
        divided = values.flag("algorithm.norm_adv_by_std_in_grpo")
        return Theirs("divided by the group's deviation", "group") if divided else Theirs("not divided", "none")
    if estimator == "reinforce_plus_plus_baseline":
        return Theirs("divided by the batch's deviation", same=True)
    return Theirs(estimator, "other")


def _zero_variance(values: Values) -> Theirs:
    if values.flag("algorithm.filter_groups.enable"):
        return REPLACED
    return COUNTED


def _off_policy(values: Values) -> Theirs:
    threshold = values.number("async_training.staleness_threshold")
    if threshold is not None:
        updates = values.number("async_training.trigger_parameter_sync_step")
        return Theirs(f"fully async: {number(threshold)} stale, new weights after {number(updates)} updates", "async")
    prompts, mini = values.number("data.train_batch_size"), values.number(f"{ACTOR}.ppo_mini_batch_size")
    rounds = int((prompts or 1) // (mini or 1)) * int(values.number(f"{ACTOR}.ppo_epochs") or 1)
    return Theirs(f"{rounds} updates per generation", "ppo") if rounds > 1 else Theirs("on-policy", "sync")


def _kl(values: Values) -> Theirs:
    used = [name for flag, name in KL_TERMS.items() if values.flag(flag) and values.number(name)]
    return Theirs(f"coefficient {number(values.number(used[0]))}", "kl") if used else Theirs("none", same=True)


KL_TERMS = {f"{ACTOR}.use_kl_loss": f"{ACTOR}.kl_loss_coef", "algorithm.use_kl_in_reward": "algorithm.kl_ctrl.kl_coef"}


def _batch(values: Values) -> Theirs:
    prompts, mini = values.number("data.train_batch_size"), values.number(f"{ACTOR}.ppo_mini_batch_size")
    return completions(min(prompts or 0, mini or 0), values.number(f"{ROLLOUT}.n"))


RATE, EPS, WARMUP = (f"{ACTOR}.optim.{key}" for key in ("lr", "override_optimizer_config.eps", "lr_warmup_steps"))

TRAINER = Trainer(
    name="verl",
    title="verl",
    package="verl",
    checked="0.9.1",
    form="yaml",
    start="python -m verl.trainer.main_ppo --config-path=$PWD --config-name=scalerl, with your model, data and GPUs",
    preamble=("hydra: {searchpath: ['pkg://verl.trainer.config']}", "defaults: [ppo_trainer, _self_]"),
    settings=SETTINGS,
    lacks={
        "aggregation": "averages over tokens or completions, not per prompt",
        "zero_variance": "they carry no gradient, but count in the average; dynamic sampling replaces them",
        "resampling": "drawn again",
        "length": "only the hard limit",
        "truncated": "trained like the others",
        "off_policy": "the fully async trainer comes nearest (verl.experimental.fully_async_policy), with a threshold "
        "of staleness instead of a number of updates",
        "fp32_head": "the head has the precision of the model",
    },
    defaults=DEFAULTS,
    parts={
        "loss": _loss,
        "aggregation": _aggregation,
        "advantage": _advantage,
        "zero_variance": _zero_variance,
        "resampling": NO_RESAMPLING,
        "length": NO_INTERRUPTION,
        "truncated": fixed("no setting: trained", "keep"),
        "off_policy": _off_policy,
        "fp32_head": NO_HEAD,
        "kl": _kl,
        "generations": lambda values: group(values.number(f"{ROLLOUT}.n")),
        "batch": _batch,
        "tokens": lambda values: tokens(values.number("data.max_response_length")),
        "optimizer": lambda values: optimizer(values, RATE, EPS, WARMUP),
    },
    required=("actor_rollout_ref.", "async_training."),
)
