"""The ScaleRL recipe and its parts as frozen values. Does not import torch.

A recipe is a row of the paper's tables (arXiv 2510.13786); an ablation is `replace(SCALERL, loss=Gspo())`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.core.errors import nearest, short
from scalerl.training.config.base import Few, Fraction, Natural, Part, Positive, replace
from scalerl.training.config.length import Interruption, LengthControl, LengthPenalty, NoLengthControl
from scalerl.training.config.mismatch import Mismatch, NoCorrection, SequenceTruncate, TokenTruncate

# ------------------------------------------------------------------------------------------------------- user functions


class Custom(Part):
    """Your function by import path (docs/extending.md); it is checked on a synthetic batch when a run starts."""

    kind: Literal["custom"] = "custom"
    function: str
    """`package.module:function`; the module must be importable where the run starts, or be in the current directory."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function, after its tensors."""


def or_custom(*names: str) -> Any:
    """Return a validator of a field that is one of some names or a Custom."""

    def check(value: Any) -> Any:
        if isinstance(value, Custom | dict) or value in names:
            return value
        close = nearest(str(value), names)
        raise ValueError(f"got {short(value)}{close}; allowed: {', '.join(names)}, or a table with kind = 'custom'")

    return BeforeValidator(check)


# ---------------------------------------------------------------------------------------------------------------- loss


class Cispo(Part):
    """Truncated importance-sampling REINFORCE (MiniMax-M1; ScaleRL eq. 4): sg(min(ratio, max_ratio)) * A * log pi."""

    kind: Literal["cispo"] = "cispo"
    max_ratio: Positive = 5.0
    """Absolute upper cap on the ratio trainer / generator (not 1 + epsilon). In the paper, 4, 5 and 8 perform alike."""


class Dapo(Part):
    """Clipped surrogate with a wider upper side (DAPO; ScaleRL eq. 8). Clip range is [1 - clip_low, 1 + clip_high]."""

    kind: Literal["dapo"] = "dapo"
    clip_low: Fraction = 0.2
    """Distance below 1 at which the ratio is clipped."""
    clip_high: Positive = 0.26
    """Distance above 1 at which the ratio is clipped; 0.26 is the paper's best (DAPO's own is 0.28)."""


class Grpo(Part):
    """Symmetric clipped surrogate (GRPO; ScaleRL eq. 7). Clip range is [1 - clip_low, 1 + clip_high]."""

    kind: Literal["grpo"] = "grpo"
    clip_low: Fraction = 0.2
    """Distance below 1 at which the ratio is clipped."""
    clip_high: Positive = 0.2
    """Distance above 1 at which the ratio is clipped."""


class Gspo(Part):
    """Clipped surrogate on the sequence ratio exp(mean_t log ratio) (GSPO, arXiv 2507.18071)."""

    kind: Literal["gspo"] = "gspo"
    clip_low: Fraction = 3e-3
    """Distance below 1 at which the length-normalized sequence ratio is clipped."""
    clip_high: Positive = 4e-3
    """Distance above 1 at which the length-normalized sequence ratio is clipped."""


class Reinforce(Part):
    """Plain policy gradient A * log pi, without a correction for the sampling policy."""

    kind: Literal["reinforce"] = "reinforce"


class CustomLoss(Custom):
    """Your loss by import path (docs/extending.md); it is checked on a synthetic batch when a run starts."""

    any_direction: bool = False
    """Whether a step may lower the probability of tokens with a positive advantage; else such a loss does not start."""


Loss = Annotated[Cispo | Dapo | Grpo | Gspo | Reinforce | CustomLoss, Field(discriminator="kind")]

# ---------------------------------------------------------------------------------------------------------- off-policy


class PipelineRL(Part):
    """Generators sample without pause; new weights are swapped in mid-sequence, and the old KV cache is kept."""

    kind: Literal["pipeline"] = "pipeline"
    max_lag: Natural = 8
    """k: largest staleness of a trained token, in updates. 0 is on-policy."""
    stale: Literal["wait", "mask", "drop"] = "wait"
    """Rule that enforces max_lag for long groups. wait: start fewer groups, and let an update wait for a long one.
    mask: train a group when it is complete, without loss on tokens older than k. drop: drop groups older than k."""

    streams: ClassVar[bool] = True
    """Whether new weights are used while sequences are in flight."""

    @property
    def waits(self) -> bool:
        """Whether an update waits for sequences that would otherwise become too old."""
        return self.stale == "wait"

    @property
    def masks(self) -> bool:
        """Whether a batch may have tokens that are older than `max_lag`, which then carry no loss."""
        return self.stale == "mask"

    def samples_with(self, version: int) -> bool:
        """Return whether sequences are sampled with a version of the weights."""
        return True


class PpoOffPolicy(Part):
    """Generate `batches` batches with a fixed policy, then make one update per batch."""

    kind: Literal["ppo-off-policy"] = "ppo-off-policy"
    batches: Few = 8
    """k: batches per round. 1 is on-policy."""
    streams: ClassVar[bool] = False
    """Whether new weights are used while sequences are in flight."""
    waits: ClassVar[bool] = True
    """Whether an update waits for sequences that would otherwise become too old."""
    masks: ClassVar[bool] = False
    """Whether a batch may have tokens that are older than `max_lag`, which then carry no loss."""

    @property
    def max_lag(self) -> int:
        """Largest number of updates between the weights that sampled a token and the update that trains it."""
        return self.batches - 1

    def samples_with(self, version: int) -> bool:
        """Return whether sequences are sampled with a version of the weights: true for the first of a round."""
        return version % self.batches == 0


OffPolicy = Annotated[PipelineRL | PpoOffPolicy, Field(discriminator="kind")]


# -------------------------------------------------------------------------------------------------------------- credit


class OutcomeCredit(Part):
    """Every turn of a rollout has the reward of the whole rollout."""

    kind: Literal["outcome"] = "outcome"


class SumCredit(Part):
    """A turn has the sum of its own reward and those of the later turns."""

    kind: Literal["sum"] = "sum"
    discount: ClassVar[float] = 1.0
    """Factor per turn."""


class DiscountedCredit(Part):
    """As sum, with the reward of the n-th later turn multiplied by discount^n."""

    kind: Literal["discounted"] = "discounted"
    discount: Fraction = 0.95
    """Factor per turn; 0.95 is that of GiGPO (arXiv 2505.10978). 1 is the kind sum."""


TurnCredit = Annotated[OutcomeCredit | SumCredit | DiscountedCredit, Field(discriminator="kind")]


# ----------------------------------------------------------------------------------------------------------- optimizer


class LaterRate(Part):
    """A learning rate that was set on resume.

    Example: LaterRate(after_step=40, learning_rate=2.5e-7)
    """

    after_step: Annotated[int, Field(ge=0)]
    """Number of updates before the change; the rate applies from the next update on."""
    learning_rate: Positive
    """Step size after the warm-up."""


class AdamW(Part):
    """AdamW with linear warm-up, then a constant rate (ScaleRL appendix A.3)."""

    learning_rate: Positive = 5e-7
    """Step size after the warm-up."""
    warmup_steps: Natural = 100
    """Updates over which the rate grows linearly to `learning_rate`."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moment; common values, because the paper gives none."""
    eps: Positive = 1e-15
    """Added to the root of the second moment; 1e-8 would be too large for the small gradients of RL."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay of matrices; norms and biases are not decayed."""
    max_grad_norm: Positive = 1.0
    """Largest global L2 norm of the gradient; larger gradients are scaled down."""
    later_rates: tuple[LaterRate, ...] = ()
    """Rates that `scalerl resume RUN --recipe.optimizer.learning_rate X` has set, in order; do not set them by hand."""

    def rate(self, updates: int) -> float:
        """Return the learning rate of the next update after a number of updates."""
        latest = next((r.learning_rate for r in reversed(self.later_rates) if r.after_step <= updates), None)
        rate = self.learning_rate if latest is None else latest
        return rate * min(1.0, (updates + 1) / max(1, self.warmup_steps))


# -------------------------------------------------------------------------------------------------------------- recipe


Coefficient = Annotated[float, Field(ge=0, le=1e3)]
"""Weight of a term of the loss."""

MOST_COMPLETIONS = 10**7
"""Largest number of completions per batch; a batch is in memory as a whole."""

AGGREGATION_OF_LOSS = {"gspo": "sample"}
"""Default aggregation by the kind of the loss; `prompt` for all others."""


RATIOLESS = ("reinforce", "custom")
"""Losses that may be multiplied by a truncated ratio; the others have one. (CISPO is REINFORCE with token-truncate.)"""


class Recipe(Part):
    """A complete RL recipe. The defaults are ScaleRL's (paper section 4, figure 3 and appendix A.3)."""

    name: str = "scalerl"
    """Free text, printed in tables and figures."""
    prompts_per_step: Annotated[int, Field(ge=1, le=10**6)] = 48
    """P: prompts per batch."""
    generations_per_prompt: Annotated[int, Field(ge=2, le=10**4)] = 16
    """G: rollouts per prompt; a batch has P x G rollouts."""
    loss: Loss = Cispo()
    """The loss: cispo, dapo, grpo, gspo or reinforce, each with its parameters; or custom, your function."""
    aggregation: Annotated[Literal["prompt", "sample", "token"] | Custom, or_custom("prompt", "sample", "token")] = (
        "prompt"
    )
    """Unit of equal weight in the batch: prompt, sample (a rollout) or token; or your function. With the loss gspo the
    default is sample: GSPO has one ratio per rollout, which prompt and token would weigh by length."""
    advantage: Annotated[Literal["batch", "group", "none"] | Custom, or_custom("batch", "group", "none")] = "batch"
    """Standard deviation by which group-centered rewards are divided: over the batch, over the group, or none; or your
    function."""
    turn_credit: TurnCredit = OutcomeCredit()
    """Environments: reward from which the advantage of a turn is computed. outcome: that of the whole rollout; sum or
    discounted: the rewards from this turn on (docs/recipe.md). The same without an environment."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Prompts whose rollouts all got the same reward: drop them from the loss and its denominator, or keep them.
    Rollouts that carry no loss are not considered: truncated ones, and those whose tokens are all too old."""
    retire_pass_rate: Fraction | None = 0.9
    """No-Positive-Resampling: a prompt whose latest pass rate reaches this is not drawn again. none: off."""
    length: LengthControl = Interruption()
    """Control of the length of rollouts: interruption, penalty or none."""
    truncated: Literal["exclude", "keep"] = "exclude"
    """Truncated rollouts: exclude them from the loss, or train them. They count as wrong (with a reward function:
    `data.truncated_reward`)."""
    off_policy: OffPolicy = PipelineRL()
    """Overlap of generation and training: pipeline or ppo-off-policy."""
    fp32_head: bool = True
    """Compute the LM head as an FP32 product in generator and trainer; has an effect if the weights are bf16."""
    routing_replay: Literal["off", "on"] = "off"
    """Mixtures of experts: the trainer uses the experts that the engine chose for each token (R3, arXiv 2510.11370), or
    chooses them itself. With torch engines, or vLLM servers on GPUs; the paper does not use it."""
    mismatch: Mismatch = NoCorrection()
    """Correction for engines whose probabilities differ from the trainer's: none, token-mask, sequence-mask,
    geometric-mask, reject, token-truncate or sequence-truncate (docs/mismatch.md). The paper has none."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature of training rollouts; log-probabilities are those of the tempered distribution."""
    top_p: Fraction = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose probability reaches this. Below 1 the trainer
    normalizes over the same tokens (docs/recipe.md). With torch engines, or vLLM servers on GPUs."""
    kl_coefficient: Coefficient = 0.0
    """beta: the loss of a token gets beta times an estimate of the KL divergence from the model that the run started
    with, whose weights the trainer then keeps (docs/recipe.md). 0: off, as in the paper."""
    entropy_coefficient: Coefficient = 0.0
    """The loss of a token loses this times the policy's entropy there, in nats (docs/recipe.md). 0: off, as in the
    paper."""
    optimizer: AdamW = AdamW()
    """The optimizer's settings."""

    @model_validator(mode="before")
    @classmethod
    def _aggregation_of_the_loss(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "aggregation" in values:
            return values
        aggregation = AGGREGATION_OF_LOSS.get(kind_of(values.get("loss")))
        return values if aggregation is None else {**values, "aggregation": aggregation}

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.completions_per_step > MOST_COMPLETIONS:
            raise ValueError(
                f"prompts_per_step: got {self.prompts_per_step:,} with {self.generations_per_prompt:,} generations_per_"
                f"prompt; allowed: at most {MOST_COMPLETIONS:,} completions per step"
            )
        if isinstance(self.mismatch, TokenTruncate | SequenceTruncate) and self.loss.kind not in RATIOLESS:
            raise ValueError(
                f"mismatch: got {self.mismatch.kind!r} with the loss {self.loss.kind!r}, which would count the ratio "
                f"twice; allowed: the loss {' or '.join(RATIOLESS)}, or a mask"
            )
        return self

    @property
    def completions_per_step(self) -> int:
        """Rollouts per batch."""
        return self.prompts_per_step * self.generations_per_prompt


def kind_of(part: Any) -> str:
    """Return the kind of a part of a recipe, given as a record, a table or a name; empty for other values."""
    kind = part.get("kind") if isinstance(part, dict) else getattr(part, "kind", part)
    return kind if isinstance(kind, str) else ""


# -------------------------------------------------------------------------------------------------- the paper's recipes

SCALERL = Recipe()
"""ScaleRL: CISPO, prompt aggregation, batch advantages, FP32 head, PipelineRL-8, both filters, interruption."""

BASELINE = replace(
    SCALERL,
    name="baseline",
    loss=Dapo(),
    aggregation="sample",
    advantage="group",
    zero_variance="keep",
    retire_pass_rate=None,
    fp32_head=False,
)
"""The start of the paper's forward ablations (section 3): eq. 3 with the asymmetric clip, sample average, group
normalization, interruption and no filter, on PipelineRL-8, which the paper uses after its first comparison."""

GRPO = replace(BASELINE, name="grpo", loss=Grpo(), off_policy=PpoOffPolicy(batches=8))
"""DeepSeek's recipe as in the paper: symmetric clip, sample average, PPO-off-policy-8."""

DEEPSEEKMATH = replace(
    GRPO,
    name="deepseekmath",
    kl_coefficient=0.04,
    off_policy=PpoOffPolicy(batches=1),
    prompts_per_step=16,
    generations_per_prompt=64,
    length=NoLengthControl(max_tokens=1024),
    optimizer=AdamW(learning_rate=1e-6),
)
"""DeepSeekMath's own GRPO (arXiv 2402.03300, section 4.2): KL term with 0.04, one update for each batch of 16 x 64."""

DAPO = replace(
    BASELINE,
    name="dapo",
    aggregation="prompt",
    zero_variance="drop",
    off_policy=PpoOffPolicy(batches=8),
    prompts_per_step=80,
)
"""Qwen-2.5's recipe as in the paper: 80 prompts per step; zero-variance prompts are dropped and not replaced."""

MAGISTRAL = replace(DAPO, name="magistral", off_policy=PipelineRL(max_lag=8))
"""DAPO on PipelineRL."""

MINIMAX = replace(DAPO, name="minimax", loss=Cispo(), fp32_head=True)
"""MiniMax-M1's recipe: CISPO and the FP32 head, on PPO-off-policy-8."""

RECIPES = {recipe.name: recipe for recipe in (SCALERL, MINIMAX, MAGISTRAL, DAPO, GRPO, DEEPSEEKMATH, BASELINE)}
"""Recipes by name; docs/recipe.md has the choices that the paper leaves open."""


def as_penalty(length: LengthControl) -> LengthPenalty:
    """Return the penalty that corresponds to an interruption: the same limit, and growth over the tokens of the answer.

    In the paper, 12k tokens of thinking and 2k for the answer correspond to a penalty from 12k to 14k.
    """
    answer = length.answer_tokens if isinstance(length, Interruption) else max(1, length.max_tokens // 7)
    return LengthPenalty(max_tokens=length.max_tokens, cache_tokens=answer)


def leave_one_out(recipe: Recipe = SCALERL) -> dict[str, Recipe]:
    """Return the recipe with one component replaced at a time, by the paper's names (ICLR version, figure 12).

    plan: group instead of batch normalization; lp: length penalty instead of interruption; batch: zero-variance prompts
    kept; 8op: PPO-off-policy-8; fp32: no FP32 head; savg: sample average; dapo: its loss; uniform-sampling: no
    No-Positive-Resampling. Two that the paper does not have: kl and entropy, a term added to the loss.
    """
    changes: dict[str, dict[str, Any]] = {
        "plan": {"advantage": "group"},
        "lp": {"length": as_penalty(recipe.length)},
        "batch": {"zero_variance": "keep"},
        "8op": {"off_policy": PpoOffPolicy(batches=8)},
        "fp32": {"fp32_head": False},
        "savg": {"aggregation": "sample"},
        "dapo": {"loss": Dapo()},
        "uniform-sampling": {"retire_pass_rate": None},
        "kl": {"kl_coefficient": 1e-3},
        "entropy": {"entropy_coefficient": 1e-3},
    }
    return {name: replace(recipe, name=f"{recipe.name}-{name}", **change) for name, change in changes.items()}


def named_recipes() -> dict[str, Recipe]:
    """Return all recipes by name: whole ones, and ScaleRL with one change by its own and by the paper's name."""
    variants = leave_one_out()
    return {**variants, **{recipe.name: recipe for recipe in variants.values()}, **RECIPES}


RECIPE_SIZES = ("prompts_per_step", "generations_per_prompt", "length", "temperature", "top_p", "optimizer")
"""Fields of a recipe that depend on the model and the data; the others are its components."""


def adopt(recipe: Recipe, base: Recipe) -> Recipe:
    """Return a recipe with the sizes of another, so that recipes can be compared on any model.

    The prompts per step keep their ratio to ScaleRL's (80 to 48 for DAPO), and the kind of length control stays.
    """
    prompts = max(1, round(base.prompts_per_step * recipe.prompts_per_step / SCALERL.prompts_per_step))
    sizes = {name: getattr(base, name) for name in RECIPE_SIZES} | {"prompts_per_step": prompts}
    if isinstance(recipe.length, LengthPenalty) and not isinstance(base.length, LengthPenalty):
        sizes["length"] = as_penalty(base.length)
    return replace(recipe, **sizes)
