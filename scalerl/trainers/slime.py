"""slime: the arguments of a script."""

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

SETTINGS = (
    Setting("--advantage-estimator", "cispo", "eq. 4; reward minus the mean of the group"),
    Setting("--eps-clip", 1.0, "CISPO's lower limit of the ratio is 1 - this: none"),
    Setting("--eps-clip-high", 4.0, "the ratio is capped at 1 + this: 5; 4, 5 and 8 perform alike"),
    Setting("--use-rollout-logprobs", True, "the ratio is to the engine's probability"),
    Setting("--disable-grpo-std-normalization", True, "not divided by the group's deviation"),
    Setting("--normalize-advantages", True, "divided by the deviation over the batch's tokens"),
    Setting("--calculate-per-token-loss", True, "equal weight per token; there is no average per prompt"),
    Setting("--entropy-coef", 0.0, "no entropy bonus"),
    Setting("--kl-coef", 0.0, "no KL penalty; leave out --use-kl-loss too"),
    Setting("--rollout-batch-size", 48, "P: prompts per update"),
    Setting("--n-samples-per-prompt", 16, "G: completions per prompt"),
    Setting("--global-batch-size", 768, "48 x 16: one update per batch"),
    Setting("--update-weights-interval", 1, "new weights after every update"),
    Setting("--rollout-max-prompt-len", 2048, "as in the paper"),
    Setting("--rollout-max-response-len", 14336, "12,288 tokens of thinking and 2,048 of the answer"),
    Setting("--rollout-temperature", 1.0, "the paper does not state it"),
    Setting("--rollout-top-p", 1.0, "the paper does not state it"),
    Setting("--optimizer", "adam", "Megatron's Adam, with decoupled weight decay"),
    Setting("--lr", 5e-7, "constant after the warm-up"),
    Setting("--lr-decay-style", "constant", "no decay"),
    Setting("--lr-warmup-iters", 100, "updates"),
    Setting("--weight-decay", 0.01, "decoupled"),
    Setting("--adam-beta1", 0.9, "the paper does not state it"),
    Setting("--adam-beta2", 0.95, "the paper does not state it"),
    Setting("--adam-eps", 1e-15, "1e-8 is too large for the small gradients of RL"),
    Setting("--clip-grad", 1.0, "the paper does not state it"),
)


def _loss(values: Values) -> Theirs:
    kind, low, high = (
        values.word("--advantage-estimator"),
        values.number("--eps-clip"),
        values.number("--eps-clip-high"),
    )
    high = low if high is None else high
    if values.word("--loss-type") == "custom_loss":
        return Theirs("your own", same=None)
    if kind == "cispo":
        return cispo(1 + (high or 0.0), 1 - (low or 0.0))
    return Theirs(f"GSPO, {number(low)} and {number(high)}", "gspo") if kind == "gspo" else clipped(low, high)


def _aggregation(values: Values) -> Theirs:
    by_token = values.flag("--calculate-per-token-loss")
    return Theirs("equal weight per token", "token") if by_token else Theirs("equal weight per completion", "sample")


def _advantage(values: Values) -> Theirs:
    kind = values.word("--advantage-estimator")
    if kind not in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"):
        return Theirs(kind, "other")
    of_batch = values.flag("--normalize-advantages")
    of_group = kind != "reinforce_plus_plus_baseline" and not values.flag("--disable-grpo-std-normalization")
    if of_group:
        both = Theirs("divided by the group's and the batch's", "other")
        return both if of_batch else Theirs("divided by the group's deviation", "group")
    return Theirs("divided by the batch's deviation", same=True) if of_batch else Theirs("not divided", "none")


def _zero_variance(values: Values) -> Theirs:
    if values.get("--dynamic-sampling-filter-path"):
        return REPLACED
    return COUNTED


def _off_policy(values: Values) -> Theirs:
    prompts, generations = values.number("--rollout-batch-size"), values.number("--n-samples-per-prompt")
    rounds = int(values.number("--num-steps-per-rollout") or 0)
    update = values.number("--global-batch-size")
    if not rounds and prompts and generations and update:
        rounds = int(prompts * generations // update)
    return (
        Theirs(f"{rounds} updates per generation", "ppo")
        if rounds > 1
        else Theirs("one batch ahead with train_async.py, else on-policy", "sync")
    )


def _kl(values: Values) -> Theirs:
    loss = values.number("--kl-loss-coef") if values.flag("--use-kl-loss") else 0.0
    coefficient = max(loss or 0.0, values.number("--kl-coef") or 0.0)
    return Theirs(f"coefficient {number(coefficient)}", "kl") if coefficient else Theirs("none", same=True)


def _batch(values: Values) -> Theirs:
    size, prompts = values.number("--global-batch-size"), values.number("--rollout-batch-size")
    if size is None:
        steps = values.number("--num-steps-per-rollout") or 1
        size = None if prompts is None else prompts * (values.number("--n-samples-per-prompt") or 1) / steps
    return completions(size, 1)


TRAINER = Trainer(
    name="slime",
    title="slime",
    package="slime",
    checked="0.3.1 (2026-08-21)",
    form="shell",
    start='source scalerl.sh, then add "${SCALERL_ARGS[@]}" to the arguments of train.py or train_async.py',
    settings=SETTINGS,
    lacks={
        "aggregation": "averages over tokens or completions, not per prompt",
        "zero_variance": "they carry no gradient, but count in the average; dynamic sampling replaces them",
        "resampling": "drawn again",
        "length": "only the hard limit",
        "truncated": "trained like the others",
        "off_policy": "train_async.py generates one batch ahead, without new weights during a sequence",
        "fp32_head": "the head has the precision of the model",
    },
    defaults={
        "--advantage-estimator": "grpo",
        "--loss-type": "policy_loss",
        "--eps-clip": 0.2,
        "--eps-clip-high": None,
        "--calculate-per-token-loss": False,
        "--normalize-advantages": False,
        "--disable-grpo-std-normalization": False,
        "--dynamic-sampling-filter-path": None,
        "--rollout-batch-size": None,
        "--n-samples-per-prompt": 1,
        "--global-batch-size": None,
        "--num-steps-per-rollout": None,
        "--use-kl-loss": False,
        "--kl-loss-coef": 0.0,
        "--kl-coef": 0.0,
        "--rollout-max-response-len": None,
        "--lr": None,
        "--adam-eps": 1e-8,
        "--lr-warmup-iters": 0,
    },
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
        "generations": lambda values: group(values.number("--n-samples-per-prompt")),
        "batch": _batch,
        "tokens": lambda values: tokens(values.number("--rollout-max-response-len")),
        "optimizer": lambda values: optimizer(values, "--lr", "--adam-eps", "--lr-warmup-iters"),
    },
    required=("--advantage-estimator", "--rollout-batch-size", "--n-samples-per-prompt", "--eps-clip"),
)
