"""prime-rl: the TOML of `rl`."""

from __future__ import annotations

from typing import Any

from scalerl.trainers.base import (
    COUNTED,
    DROPPED,
    NO_RESAMPLING,
    Setting,
    Theirs,
    Trainer,
    Values,
    fixed,
    group,
    number,
    optimizer,
    tokens,
)

LOSS, OPTIM, ORCHESTRATOR = "trainer.loss", "trainer.optim", "orchestrator"

SETTINGS = (
    Setting(f"{ORCHESTRATOR}.batch_size", 768, "completions per update: 48 prompts x 16"),
    Setting(f"{ORCHESTRATOR}.group_size", 16, "G: completions per prompt"),
    Setting(f"{ORCHESTRATOR}.max_off_policy_steps", 8, "k of PipelineRL: weights change while sequences are sampled"),
    Setting(f"{ORCHESTRATOR}.seq_len", 16384, "2,048 tokens of prompt and 14,336 of completion"),
    Setting(f"{ORCHESTRATOR}.algo.type", "grpo", "reward minus the mean of the group; it is not divided"),
    Setting(f"{ORCHESTRATOR}.train.filter_zero_advantages", True, "drops prompts with equal rewards, without refill"),
    Setting(f"{ORCHESTRATOR}.train.sampling.temperature", 1.0, "the paper does not state it"),
    Setting(f"{ORCHESTRATOR}.train.sampling.max_completion_tokens", 14336, "12,288 of thinking, 2,048 of the answer"),
    Setting("trainer.model.seq_len", 16384, "as the orchestrator's"),
    Setting(f"{LOSS}.type", "default", "a mask on the change of the probability; CISPO would be a custom loss"),
    Setting(f"{LOSS}.kl_tau", 0.0, "no KL penalty"),
    Setting(f"{OPTIM}.type", "adamw", "AdamW; its eps, 1e-8, has no setting"),
    Setting(f"{OPTIM}.lr", 5e-7, "constant after the warm-up"),
    Setting(f"{OPTIM}.weight_decay", 0.01, "decoupled"),
    Setting(f"{OPTIM}.max_norm", 1.0, "the paper does not state it"),
    Setting("trainer.scheduler.type", "linear", "for the warm-up"),
    Setting("trainer.scheduler.warmup_steps", 100, "updates"),
    Setting("trainer.scheduler.decay_steps", 0, "constant until the end"),
    Setting("inference.enable_fp32_lm_head", True, "FP32 head in the generator"),
)


def _sources(values: Values) -> list[dict[str, Any]]:
    """Return the tables [[orchestrator.train.source]], which may have their own settings."""
    sources = values.get(f"{ORCHESTRATOR}.train.source")
    return [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []


def _group(values: Values) -> Theirs:
    sizes = {source["group_size"] for source in _sources(values) if isinstance(source.get("group_size"), int)}
    if len(sizes) > 1:
        return Theirs(" and ".join(map(str, sorted(sizes))), "other")
    return group(sizes.pop() if sizes else values.number(f"{ORCHESTRATOR}.group_size"))


def _loss(values: Values) -> Theirs:
    kind = values.word(f"{LOSS}.type")
    if kind == "custom":
        return Theirs(f"your own, {values.get(f'{LOSS}.import_path')}", same=None)
    if kind == "ipo":
        return Theirs(f"IPO, mask at {number(values.number(f'{LOSS}.ipo_threshold'))}", "other")
    low, high = values.number(f"{LOSS}.dppo_mask_low"), values.number(f"{LOSS}.dppo_mask_high")
    return Theirs(f"DPPO, mask at {number(low)} and {number(high)}", "other")


def _advantage(values: Values) -> Theirs:
    kind = values.word(f"{ORCHESTRATOR}.algo.type")
    return Theirs("not divided", "none") if kind in ("grpo", "echo") else Theirs(kind, "other")


def _zero_variance(values: Values) -> Theirs:
    dropped = values.flag(f"{ORCHESTRATOR}.train.filter_zero_advantages")
    return DROPPED if dropped else COUNTED


def _resampling(values: Values) -> Theirs:
    if any("difficulty_pool" in str(source) for source in _sources(values)):
        return Theirs("drawn with another weight (difficulty pools)", "pools")
    return NO_RESAMPLING(values)


def _length(values: Values) -> Theirs:
    weight = values.number(f"{ORCHESTRATOR}.algo.length_penalty.num_output_tokens_weight")
    if values.get(f"{ORCHESTRATOR}.algo.length_penalty.type") or weight is not None:
        return Theirs("linear penalty, relative to the group", "other")
    return Theirs("no setting: only the hard limit", "none")


def _off_policy(values: Values) -> Theirs:
    lag = values.number(f"{ORCHESTRATOR}.max_off_policy_steps")
    words = f"asynchronous, at most {number(lag)} updates old"
    return Theirs(words, f"lag-{number(lag)}", same=lag == 8)


def _head(values: Values) -> Theirs:
    return Theirs("generator only", "one") if values.flag("inference.enable_fp32_lm_head") else Theirs("off", "off")


def _kl(values: Values) -> Theirs:
    weight = values.number(f"{LOSS}.kl_tau")
    custom = values.word(f"{LOSS}.type") == "custom"
    if custom:
        return Theirs("that of your loss", same=None)
    return Theirs(f"to the sampling policy, {number(weight)}", "kl") if weight else Theirs("none", same=True)


def _batch(values: Values) -> Theirs:
    size = values.number(f"{ORCHESTRATOR}.batch_size")
    if size is None:
        return Theirs("not in the file, or counted in tokens", same=None)
    return Theirs(f"{int(size):,}", f"{int(size)}", same=size == 768)


def _tokens(values: Values) -> Theirs:
    limit = values.number(f"{ORCHESTRATOR}.train.sampling.max_completion_tokens")
    return tokens(limit) if limit is not None else Theirs("until the context is full", same=None)


TRAINER = Trainer(
    name="prime-rl",
    title="prime-rl",
    package="prime-rl",
    checked="0.8.1.dev67 (2026-08-21)",
    form="toml",
    start="uv run rl @ scalerl.toml, with your [model], [deployment] and [[orchestrator.train.source]]",
    settings=SETTINGS,
    lacks={
        "loss": "a mask (DPPO) instead of CISPO; a custom loss can have it (trainer.loss.import_path)",
        "aggregation": "average over the tokens of the batch",
        "advantage": "reward minus the mean of the group, not divided",
        "resampling": "drawn again; difficulty pools can lower their weight",
        "length": "a penalty or the hard limit",
        "truncated": "trained like the others",
        "fp32_head": "in the generator only",
        "optimizer": "eps of AdamW is 1e-8",
    },
    defaults={
        f"{LOSS}.type": "default",
        f"{LOSS}.import_path": None,
        f"{LOSS}.dppo_mask_low": 0.2,
        f"{LOSS}.dppo_mask_high": 0.2,
        f"{LOSS}.ipo_threshold": 0.1,
        f"{LOSS}.kl_tau": 1e-3,
        f"{OPTIM}.lr": 1e-6,
        "trainer.scheduler.warmup_steps": None,
        f"{ORCHESTRATOR}.algo.type": "grpo",
        f"{ORCHESTRATOR}.algo.length_penalty.type": None,
        f"{ORCHESTRATOR}.algo.length_penalty.num_output_tokens_weight": None,
        f"{ORCHESTRATOR}.batch_size": None,
        f"{ORCHESTRATOR}.group_size": 1,
        f"{ORCHESTRATOR}.max_off_policy_steps": 8,
        f"{ORCHESTRATOR}.train.filter_zero_advantages": True,
        f"{ORCHESTRATOR}.train.sampling.max_completion_tokens": None,
        "inference.enable_fp32_lm_head": True,
    },
    parts={
        "loss": _loss,
        "aggregation": fixed("equal weight per token", "token"),
        "advantage": _advantage,
        "zero_variance": _zero_variance,
        "resampling": _resampling,
        "length": _length,
        "truncated": fixed("no setting: trained", "keep"),
        "off_policy": _off_policy,
        "fp32_head": _head,
        "kl": _kl,
        "generations": _group,
        "batch": _batch,
        "tokens": _tokens,
        "optimizer": lambda values: optimizer(values, f"{OPTIM}.lr", None, "trainer.scheduler.warmup_steps"),
    },
    required=("orchestrator.",),
)
