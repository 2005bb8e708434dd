"""The policy of a run: the lab's tiny model or a transformers model, trained fully or with adapters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scalerl.training.config.base import Count, Few, NoneOrFew, Part, Positive, Seed, Share


class WarmStart(Part):
    """Supervised training of the tiny model on noisy reasoning traces, before RL."""

    steps: Count = 1000
    """Number of updates."""
    batch: Annotated[int, Field(ge=1, le=10**6)] = 64
    """Traces per update."""
    learning_rate: Positive = 3e-3
    """Peak rate: linear warm-up over 50 updates, then linear decay to a tenth."""
    step_noise: Share = 0.45
    """Probability that the result of a step is replaced by a uniform digit (0.15 times this in the first 60% of the
    updates)."""
    ramble: Share = 0.08
    """Probability of a ramble of `~` after each step."""
    endless: Share = 0.1
    """Share of the rambles that never end; they teach the model to exceed its limit, so that length control matters."""
    seed: Seed = 0
    """Seed of weights and traces; runs with different seeds may share one warm start."""


class TinyModel(Part):
    """A tiny Qwen3 made from scratch and warm-started on traces of the run's tasks; cached after the first time."""

    kind: Literal["tiny"] = "tiny"
    width: Few = 64
    """Hidden size; a multiple of 2 x heads."""
    layers: Few = 2
    """Decoder layers."""
    heads: Few = 2
    """Attention heads."""
    experts: NoneOrFew = 0
    """Experts in every layer's MLP (a Qwen3-MoE); 0: a dense MLP."""
    active_experts: Few = 2
    """Experts per token, at most `experts`; they share the dense MLP's width, so the cost per token is the same."""
    warm_start: WarmStart = WarmStart()
    """Supervised training before RL."""

    @model_validator(mode="after")
    def _check(self) -> TinyModel:
        if self.experts and self.active_experts > self.experts:
            raise ValueError(f"active_experts: got {self.active_experts}; allowed: 1 to experts = {self.experts}")
        if self.experts and 4 * self.width % self.active_experts:
            raise ValueError(
                f"active_experts: got {self.active_experts}; allowed: a divisor of 4 x width = {4 * self.width}, the "
                "width of the MLP that they share"
            )
        return self


Name = Annotated[str, Field(min_length=1)]


class Lora(Part):
    """Low-rank adapters by peft: a matrix becomes W + alpha / rank x B A. W is frozen; A and B are trained.

    Source: Hu et al. 2021, arXiv 2106.09685. There is no dropout, because the trainer's log-probabilities must match
    those of the engine, which samples without dropout.
    """

    rank: Few = 16
    """Rows of A and columns of B; larger adapters can learn more and need more memory."""
    alpha: Positive = 32.0
    """The product B A is scaled by alpha / rank."""
    targets: Literal["all-linear"] | Annotated[tuple[Name, ...], Field(min_length=1)] = "all-linear"
    """Linear modules with an adapter, by the ends of their names, such as ["q_proj", "v_proj"]. all-linear: all of the
    decoder layers. The head and the embedding cannot have one."""


class HuggingFaceModel(Part):
    """A causal language model that transformers can load, with its tokenizer."""

    kind: Literal["hf"] = "hf"
    path: str
    """A directory with config, tokenizer and weights, or a name on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a name on the hub."""
    lora: Lora | None = None
    """Adapters that are trained in place of the model's weights; none: all weights are trained."""
