"""What to run: the ScaleRL recipe and its parts as frozen values. It loads no torch.

A recipe reads like a row of the paper's tables (arXiv 2510.13786); an ablation is `replace(SCALERL, loss=Gspo())`.
Names of choices are looked up in plain dicts where they are carried out (learn/, rollouts/), never in ladders of ifs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.config.base import Part, nearest, replace, short
from scalerl.config.numbers import Count, Few, Fraction, Natural, Positive

# ------------------------------------------------------------------------------------------------------- your functions


class Custom(Part):
    """A function of your own by import path (docs/extending.md), checked on a made-up batch when a run starts."""

    kind: Literal["custom"] = "custom"
    function: str
    """`package.module:function`; the module must be importable where the run starts, the current directory included."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Given to the function by name, after its tensors."""


def or_custom(*names: str) -> Any:
    """Return a check of a field that holds one of some names or a Custom."""

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
    """Absolute cap on the ratio trainer / generator, upper side only (not 1 + epsilon). Paper: 4, 5 and 8 alike."""


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
    """Distance below 1 at which the length-normalised sequence ratio is clipped."""
    clip_high: Positive = 4e-3
    """Distance above 1 at which the length-normalised sequence ratio is clipped."""


class Reinforce(Part):
    """Plain policy gradient A * log pi, without any correction for the policy that sampled."""

    kind: Literal["reinforce"] = "reinforce"


Loss = Annotated[Cispo | Dapo | Grpo | Gspo | Reinforce | Custom, Field(discriminator="kind")]

# ---------------------------------------------------------------------------------------------------------- off-policy


class PipelineRL(Part):
    """Generators stream without pause; every update is swapped in mid-sequence, the old KV cache is kept."""

    kind: Literal["pipeline"] = "pipeline"
    max_lag: Natural = 8
    """k: no trained token was sampled by weights more than this many updates old. 0 is on-policy."""
    stale: Literal["wait", "mask", "drop"] = "wait"
    """What keeps that bound where lengths are long-tailed. wait: start fewer groups, and let an update wait for a long
    one; mask: train a group when complete, its tokens older than k without loss; drop: drop groups older than k."""

    @property
    def streams(self) -> bool:
        """Whether new weights are used while sequences are in flight."""
        return True

    @property
    def waits(self) -> bool:
        """Whether an update waits for a sequence that it would otherwise overshoot."""
        return self.stale == "wait"

    def samples_with(self, version: int) -> bool:
        """Return whether any sequence is sampled with the weights of a version."""
        return True


class PpoOffPolicy(Part):
    """Generate `batches` batches with one frozen policy, then take as many updates, one batch each."""

    kind: Literal["ppo-off-policy"] = "ppo-off-policy"
    batches: Few = 8
    """k: batches a round. 1 is on-policy."""

    @property
    def max_lag(self) -> int:
        """Largest number of updates between the weights that sampled a token and the update that trains it."""
        return self.batches - 1

    @property
    def streams(self) -> bool:
        """Whether new weights are used while sequences are in flight."""
        return False

    @property
    def waits(self) -> bool:
        """Whether an update waits for a sequence that it would otherwise overshoot."""
        return True

    def samples_with(self, version: int) -> bool:
        """Return whether any sequence is sampled with the weights of a version: those that open a round."""
        return version % self.batches == 0


OffPolicy = Annotated[PipelineRL | PpoOffPolicy, Field(discriminator="kind")]


# ------------------------------------------------------------------------------------------------------ length control


class Interruption(Part):
    """Stop the thinking at a random point, write a phrase that ends it, and let the model answer (ScaleRL sec. 4)."""

    kind: Literal["interruption"] = "interruption"
    thinking_tokens: tuple[Count, Count] = (10_000, 12_000)
    """Tokens; each rollout draws its own limit uniformly from [low, high]."""
    answer_tokens: Count = 2_048
    """Tokens a rollout may use after its thinking ended; a rollout that overruns is truncated."""
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    """Text written into the rollout at the limit; its tokens are context and never enter the loss."""
    end_tag: str = "</think>"
    """Text that ends the thinking; the phrase must end with it."""

    @model_validator(mode="after")
    def _check(self) -> Interruption:
        low, high = self.thinking_tokens
        if low > high:
            raise ValueError(f"thinking_tokens: got ({low}, {high}); the low end must not exceed the high end")
        if not self.end_tag or not self.phrase.endswith(self.end_tag):
            raise ValueError(f"phrase: got {short(self.phrase)}; it must end with the end_tag {self.end_tag!r}")
        return self

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest rollout, without the phrase."""
        return self.thinking_tokens[1] + self.answer_tokens


class LengthPenalty(Part):
    """Lower the reward of correct rollouts that come near the limit (ScaleRL eq. 9, after DAPO)."""

    kind: Literal["penalty"] = "penalty"
    max_tokens: Count = 14_000
    """Tokens; a longer rollout is truncated. At this length the penalty is -1."""
    cache_tokens: Count = 2_000
    """Tokens before the limit over which the penalty grows linearly from 0 to -1."""

    @model_validator(mode="after")
    def _check(self) -> LengthPenalty:
        if self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens: got {self.cache_tokens}; allowed: at most max_tokens ({self.max_tokens})")
        return self


class NoLengthControl(Part):
    """Only a hard limit on the length; a rollout that reaches it is truncated."""

    kind: Literal["none"] = "none"
    max_tokens: Count = 14_000
    """Tokens of the longest rollout."""


LengthControl = Annotated[Interruption | LengthPenalty | NoLengthControl, Field(discriminator="kind")]

# ----------------------------------------------------------------------------------------------------------- optimiser


class LaterRate(Part):
    """A learning rate that a resume has set.

    Example: LaterRate(after_step=40, learning_rate=2.5e-7)
    """

    after_step: Annotated[int, Field(ge=0)]
    """Updates that the run had done; the rate holds from the next one on."""
    learning_rate: Positive
    """Step size after the warm-up."""


class AdamW(Part):
    """AdamW with linear warm-up, then a constant rate (ScaleRL appendix A.3)."""

    learning_rate: Positive = 5e-7
    """Step size after the warm-up."""
    warmup_steps: Natural = 100
    """Updates over which the rate grows linearly to `learning_rate`."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moment; the paper states none, these are the field's usual ones."""
    eps: Positive = 1e-15
    """Added to the root of the second moment; tiny because RL gradients are (1e-8 would drown them)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled decay of matrices; norms and biases are not decayed."""
    max_grad_norm: Positive = 1.0
    """The gradient's global L2 norm is scaled down to this."""
    later_rates: tuple[LaterRate, ...] = ()
    """Rates that `scalerl resume RUN --recipe.optimizer.learning_rate X` has set, in order; it writes them itself."""

    def rate(self, updates: int) -> float:
        """Return the learning rate of the update that follows so many updates."""
        latest = next((r.learning_rate for r in reversed(self.later_rates) if r.after_step <= updates), None)
        rate = self.learning_rate if latest is None else latest
        return rate * min(1.0, (updates + 1) / max(1, self.warmup_steps))


# -------------------------------------------------------------------------------------------------------------- recipe


MOST_COMPLETIONS = 10**7
"""Completions of one update's batch that are accepted: it is held in memory as a whole."""

AGGREGATION_OF_LOSS = {"gspo": "sample"}
"""Aggregation of a recipe that names none, by the kind of its loss; of all others it is `prompt`."""


class Recipe(Part):
    """A complete RL recipe. The defaults are ScaleRL's (paper section 4, figure 3 and appendix A.3)."""

    name: str = "scalerl"
    """Free text, printed in tables and figures."""
    prompts_per_step: Annotated[int, Field(ge=1, le=10**6)] = 48
    """P: prompts in one update's batch."""
    generations_per_prompt: Annotated[int, Field(ge=2, le=10**4)] = 16
    """G: rollouts of each prompt; a batch holds P x G of them."""
    loss: Loss = Cispo()
    """The surrogate: cispo, dapo, grpo, gspo or reinforce, each with its own parameters; or custom, your own."""
    aggregation: Annotated[Literal["prompt", "sample", "token"] | Custom, or_custom("prompt", "sample", "token")] = (
        "prompt"
    )
    """What gets equal weight in the batch: each prompt, each rollout, or each token; or a function of your own. With
    the loss gspo the default is sample: GSPO's ratio belongs to a rollout, and prompt and token weigh it by length."""
    advantage: Annotated[Literal["batch", "group", "none"] | Custom, or_custom("batch", "group", "none")] = "batch"
    """The standard deviation that group-centred rewards are divided by: over the batch, the group, or none; or a
    function of your own."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Prompts whose rollouts all got the same reward, truncated ones not asked where they carry no loss: out of the
    loss and its denominator, or kept in it."""
    retire_pass_rate: Fraction | None = 0.9
    """No-Positive-Resampling: a prompt whose latest pass rate reaches this is never drawn again. None: off."""
    length: LengthControl = Interruption()
    """How long rollouts are kept in check: interruption, penalty or none."""
    truncated: Literal["exclude", "keep"] = "exclude"
    """Truncated rollouts count as wrong (with a reward function: `data.truncated_reward`); they are kept out of the
    loss, or in it."""
    off_policy: OffPolicy = PipelineRL()
    """How generation and training overlap: pipeline or ppo-off-policy."""
    fp32_head: bool = True
    """Compute the LM head as an FP32 product in generator and trainer (matters when the weights are bf16)."""
    routing_replay: Literal["off", "on"] = "off"
    """Mixtures of experts: the trainer uses the experts that the engine used for each token (R3, arXiv 2510.11370), or
    its own. Torch engines only; the paper does not use it."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature of training rollouts; log-probabilities are those of the tempered distribution."""
    top_p: Fraction = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose probability reaches this. Below 1 the training is
    biased: log-probabilities on both sides are those before the nucleus (docs/recipe.md). Torch engines only."""
    optimizer: AdamW = AdamW()
    """The optimiser's settings."""

    @model_validator(mode="before")
    @classmethod
    def _aggregation_of_the_loss(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "aggregation" in values:
            return values
        chosen = AGGREGATION_OF_LOSS.get(kind_of(values.get("loss")))
        return values if chosen is None else {**values, "aggregation": chosen}

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.completions_per_step > MOST_COMPLETIONS:
            raise ValueError(
                f"prompts_per_step: got {self.prompts_per_step:,} with {self.generations_per_prompt:,} generations_per_"
                f"prompt; allowed: at most {MOST_COMPLETIONS:,} completions a step"
            )
        return self

    @property
    def completions_per_step(self) -> int:
        """Rollouts in one update's batch."""
        return self.prompts_per_step * self.generations_per_prompt


def kind_of(part: Any) -> str:
    """Return the kind of a part of a recipe: of a record, a table or a bare name; empty for anything else."""
    found = part.get("kind") if isinstance(part, dict) else getattr(part, "kind", part)
    return found if isinstance(found, str) else ""


# -------------------------------------------------------------------------------------------------- the paper's recipes

SCALERL = Recipe()
"""The paper's: CISPO, prompt aggregation, batch advantages, FP32 head, PipelineRL-8, both filters, interruption."""

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
"""Where the paper's forward ablations start (section 3): eq. 3 with the asymmetric clip, sample average, group
normalisation, interruption, no filter. Here on PipelineRL-8, to which the paper moves after its first comparison."""

GRPO = replace(BASELINE, name="grpo", loss=Grpo(), off_policy=PpoOffPolicy(batches=8))
"""DeepSeek's, as the paper runs it: symmetric clip, sample average, PPO-off-policy-8."""

DAPO = replace(
    BASELINE,
    name="dapo",
    aggregation="prompt",
    zero_variance="drop",
    off_policy=PpoOffPolicy(batches=8),
    prompts_per_step=80,
)
"""Qwen-2.5's, as the paper runs it: 80 prompts a step, of which those without variance are dropped, not replaced."""

MAGISTRAL = replace(DAPO, name="magistral", off_policy=PipelineRL(max_lag=8))
"""DAPO on PipelineRL."""

MINIMAX = replace(DAPO, name="minimax", loss=Cispo(), fp32_head=True)
"""MiniMax-M1's: CISPO and the FP32 head, on PPO-off-policy-8."""

RECIPES = {recipe.name: recipe for recipe in (SCALERL, MINIMAX, MAGISTRAL, DAPO, GRPO, BASELINE)}
"""Recipes by name; what the paper leaves open in them is settled in docs/recipe.md."""


def as_penalty(length: LengthControl) -> LengthPenalty:
    """Return the penalty that ends where an interruption does, and grows over the tokens that its answer gets.

    The paper's own pair: thinking to 12k and 2k for the answer, against a penalty from 12k to 14k.
    """
    answer = length.answer_tokens if isinstance(length, Interruption) else max(1, length.max_tokens // 7)
    return LengthPenalty(max_tokens=length.max_tokens, cache_tokens=answer)


def leave_one_out(recipe: Recipe = SCALERL) -> dict[str, Recipe]:
    """Return the recipe with one component at a time put back, by the paper's names (ICLR version, figure 12).

    plan: group instead of batch normalisation; lp: length penalty instead of interruption; batch: zero-variance prompts
    kept; 8op: PPO-off-policy-8; fp32: no FP32 head; savg: sample average; dapo: its loss; uniform-sampling: no
    No-Positive-Resampling.
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
    }
    return {name: replace(recipe, name=f"{recipe.name}-{name}", **change) for name, change in changes.items()}


SIZES = ("prompts_per_step", "generations_per_prompt", "length", "temperature", "top_p", "optimizer")
"""Fields of a recipe that belong to the model and the data; the rest are its components."""


def adopt(recipe: Recipe, base: Recipe) -> Recipe:
    """Return a recipe at the sizes of another, so that recipes can be compared on any model.

    Prompts a step keep their ratio to ScaleRL's (80 of 48 for DAPO), and the kind of length control is the recipe's.
    """
    prompts = max(1, round(base.prompts_per_step * recipe.prompts_per_step / SCALERL.prompts_per_step))
    sizes = {name: getattr(base, name) for name in SIZES} | {"prompts_per_step": prompts}
    if isinstance(recipe.length, LengthPenalty) and not isinstance(base.length, LengthPenalty):
        sizes["length"] = as_penalty(base.length)
    return replace(recipe, **sizes)


__all__ = [
    "BASELINE", "DAPO", "GRPO", "MAGISTRAL", "MINIMAX", "RECIPES", "SCALERL", "AdamW", "Cispo", "Dapo", "Grpo",
    "Gspo", "Interruption", "LengthControl", "LengthPenalty", "Loss", "NoLengthControl", "OffPolicy", "PipelineRL",
    "PpoOffPolicy", "Recipe", "Reinforce", "adopt", "as_penalty", "leave_one_out", "replace",
]  # fmt: skip
