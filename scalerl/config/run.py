"""One run, whole: recipe, model, data, evaluation, machine. Read from TOML and dotted overrides; it loads no torch.

The resolved configuration is saved as config.toml in the run directory and re-runs as it is.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scalerl.config.base import Part
from scalerl.config.data import ArithmeticTask, GeneratedData, PromptFile, task_shares
from scalerl.config.recipe import SCALERL, Count, Natural, Recipe, Share, max_lag


class WarmStart(Part):
    """Supervised training of the tiny model on noisy reasoning traces, before RL."""

    steps: Count = 1000
    """Updates."""
    batch: Count = 64
    """Traces an update."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """Peak rate: linear warm-up over 50 updates, then linear decay to a tenth."""
    step_noise: Share = 0.45
    """Probability that a step of a trace has its result replaced by a uniform digit (0.15 of it in the first 60 %)."""
    ramble: Share = 0.08
    """Probability, after each step, of a ramble of `~`."""
    endless: Share = 0.1
    """Share of the rambles that never end (they teach the model to overrun, so that length control has work)."""
    seed: Natural = 0
    """Seed of weights and traces; runs with different seeds of their own may share one warm start."""


class TinyModel(Part):
    """A tiny Qwen3 made from scratch and warm-started on traces of the run's tasks; cached after the first time."""

    kind: Literal["tiny"] = "tiny"
    width: Count = 64
    """Hidden size; a multiple of 2 x heads."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 2
    """Attention heads."""
    experts: Natural = 0
    """Experts in every layer's MLP (a Qwen3-MoE); 0: a dense MLP."""
    active_experts: Count = 2
    """Experts a token uses, at most `experts`; they share the dense MLP's width, so that a token costs the same."""
    warm_start: WarmStart = WarmStart()
    """How it learns to write traces before RL."""

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


class HuggingFaceModel(Part):
    """Any causal language model that transformers can load, with its tokenizer."""

    kind: Literal["hf"] = "hf"
    path: str
    """A directory with config, tokenizer and weights, or a name on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a name on the hub."""


class Evaluation(Part):
    """Held-out mean@k on a schedule, step 0 included; its time is kept apart from training compute."""

    every: Count = 100
    """Training steps between evaluations."""
    prompts: Count = 1000
    """Held-out prompts of each task, chosen by a hash of their content and never trained on."""
    samples: Count = 16
    """k: samples of each prompt."""


FULL_SLOTS = 256
"""Sequences from which on a decode step's cost grows with their number (a tiny model on one CPU core)."""


class Rollouts(Part):
    """How the generator runs."""

    slots: Natural = 0
    """Sequences decoded together; 0: as many as a batch has rollouts, small batches up to 256 if staleness allows."""
    refill: Natural = 0
    """Free slots that are waited for before new sequences are prefilled; 0: a sixteenth of the slots, 1: at once."""
    schedule: Literal["deterministic", "eager"] = "deterministic"
    """deterministic: new weights become active at a tick fixed by the data; eager: as soon as they arrive."""
    lag_ticks: int = Field(default=-1, ge=-1)
    """Deterministic schedule: decode steps from a batch's completion to the use of its weights; -1: measure."""


class Learner(Part):
    """How the trainer runs."""

    micro_batch_tokens: Count = 16_384
    """Padded tokens of one forward and backward pass."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""


class Hardware(Part):
    """The machine."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where torch sees one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimiser keeps float32 masters)."""
    generator_threads: Natural = 0
    """CPU threads of the generator process; 0: half of the cores."""
    trainer_threads: Natural = 0
    """CPU threads of the trainer process; 0: half of the cores."""


class Checkpointing(Part):
    """When the whole truth is written to disk."""

    every: Count = 50
    """Training steps between checkpoints."""
    keep: Count = 2
    """Checkpoints kept."""


class RunConfig(Part):
    """Everything a run is."""

    seed: Natural = 0
    """Seed of sampling, prompt order and interruption points."""
    steps: Count = 1000
    """Updates to train for."""
    recipe: Recipe = SCALERL
    """What to run."""
    model: Annotated[TinyModel | HuggingFaceModel, Field(discriminator="kind")] = TinyModel()
    """Which policy: tiny or hf."""
    data: Annotated[GeneratedData | PromptFile, Field(discriminator="kind")] = ArithmeticTask()
    """Which prompts: arithmetic, programs, mixed (both of them) or file."""
    evaluation: Evaluation = Evaluation()
    """The held-out curve."""
    rollouts: Rollouts = Rollouts()
    """The generator."""
    learner: Learner = Learner()
    """The trainer."""
    hardware: Hardware = Hardware()
    """The machine."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if isinstance(self.model, TinyModel) and isinstance(self.data, PromptFile):
            raise ValueError(
                "data.kind: got 'file' with model.kind 'tiny', which knows only the tasks that "
                "are generated; give --model"
            )
        return self

    @property
    def tasks(self) -> list[str]:
        """Names of the generated tasks, each with a held-out set of its own; of a file there is one, by its name."""
        if isinstance(self.data, PromptFile):
            return [self.data.reward or self.data.task]
        return [task.kind for task, _ in task_shares(self.data)]

    @property
    def slots(self) -> int:
        """Sequences the generator decodes together.

        A decode step of a few sequences costs nearly what one of many does, so small batches share it; half of the
        allowed staleness is left to the schedule.
        """
        batch = self.recipe.completions_per_step
        most = batch * max(1, max_lag(self.recipe.off_policy) // 2)
        return self.rollouts.slots or max(batch, min(FULL_SLOTS, most))

    def derived_sizes(self) -> list[str]:
        """Return what follows from the sizes given, in words, for the start of a run."""
        recipe, checks = self.recipe, self.evaluation
        total = recipe.completions_per_step
        longest = recipe.length.max_tokens
        each = f" of each of {' and '.join(self.tasks)}" if len(self.tasks) > 1 else ""
        return [
            f"{recipe.name}: {self.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
            f"generations = {total} completions of up to {longest} tokens (at most {total * longest:,} tokens a step)",
            f"{recipe.off_policy.kind}: tokens at most {max_lag(recipe.off_policy)} updates old; {self.slots} "
            f"sequences decoded together; {self.learner.micro_batch_tokens:,} padded tokens a micro-batch",
            f"evaluation every {checks.every} steps: {checks.prompts} held-out prompts{each} x {checks.samples} "
            "samples",
        ]
