"""The sizes of a run in one record, from which its memory, its disk, its duration and its schedule follow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scalerl.training.config.base import replace
from scalerl.training.config.data import CustomTask, TextTask, is_suite, shares
from scalerl.training.config.length import Interruption
from scalerl.training.config.model import HuggingFaceModel, Lora, TinyModel
from scalerl.training.config.placement import Hardware, Placement
from scalerl.training.config.recipe import Recipe
from scalerl.training.config.run import Checkpointing, Evaluation, RunConfig
from scalerl.training.models.sizes import ModelSizes, SizedModel, sizes_of
from scalerl.training.placement.choices import channel_name, schedule_name, trains_in_loop

CPU_MICRO_BATCH, MICRO_BATCH = 1280, 16_384
"""Default tokens of a micro-batch, on CPU and elsewhere."""
FULL_SLOTS = 256
"""Number of sequences above which the cost of a decode step grows (a tiny model on one CPU core)."""
EXPECTED_LENGTH = 0.4
"""Default ratio of the mean length of completions to the length limit (0.4 in the lab)."""
LAB_PROMPT = 64
"""Maximum tokens of a generated task's prompt, rounded up."""
MEAN_PROMPT = 256
"""Assumed mean tokens of prompts from files, capped at their limit."""
PHRASE = 32
"""Assumed tokens of the phrase that ends the thinking, before there is a tokenizer."""

CHOSEN = frozenset({"slots", "micro_batch_tokens", "recomputed"})
"""Sizes that follow the machine."""
UNREAD = SizedModel(ModelSizes(0.0, ()), "not read")
"""A model whose sizes are not needed, as for a schedule."""


@dataclass(frozen=True, slots=True)
class RunSizes:
    """The sizes of a run, and the parts of its configuration that leave no choice open.

    `of` gives an open size the value that the schedule wants. machines/sizing.py lowers it until the run fits, and
    machines/plan.py searches for the fastest.

    Example (the lab): RunSizes(model=SizedModel(...), recipe=Recipe(...), ..., slots=256, micro_batch_tokens=1280,
                                recomputed=False, open=frozenset({"slots", "micro_batch_tokens", "recomputed"}))
    """

    model: SizedModel
    lora: Lora | None
    """Adapters that are trained instead of the model."""
    adaptable: bool
    """Whether the model can have adapters, unlike the lab's."""
    warm_rows: int
    """Worked examples of the lab's warm start, with repetitions."""
    recipe: Recipe
    placement: Placement
    hardware: Hardware
    evaluation: Evaluation
    checkpoint: Checkpointing
    steps: int
    price: float | None
    """Price of a device-hour."""
    seed: int
    channel: str
    """Name of the weight channel."""
    schedule: Literal["deterministic", "eager"]
    """Whether new weights become active at a tick that the data determine, or as soon as they arrive."""
    ahead: int
    """Complete batches that may wait for the trainer while an eager schedule goes on."""
    tasks: int
    """Number of tasks."""
    workers: int
    """Processes that score completions."""
    scorer_cores: int
    """Cores of a scorer on Ray."""
    longest_prompt: int
    """Longest prompt, tokens; 0: not read."""
    row_tokens: int
    """Most tokens of a prompt and its completion."""
    prompt_tokens: float
    """Mean tokens of a prompt."""
    expected_tokens: int
    """Expected mean length of a completion, tokens."""
    evaluated: int
    """Sequences of an evaluation, as far as its prompts are known."""
    most_evaluated: int
    """Most sequences of an evaluation by the configuration."""
    slots: int
    """Sequences decoded together by all generators."""
    micro_batch_tokens: int
    """Tokens per forward and backward pass."""
    recomputed: bool
    """Whether activations are recomputed in the backward pass."""
    open: frozenset[str]
    """Sizes of this record that the configuration leaves open; `expected_tokens` is one of them."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        model: SizedModel | None = None,
        *,
        longest_prompt: int = 0,
        completion: int = 0,
        prompts: PromptCounts | None = None,
    ) -> RunSizes:
        """Return the sizes of a configuration, with what the schedule wants where it leaves one open.

        A decode step of a few sequences costs nearly as much as one of many, so several small batches are decoded
        together. The longest sequence should span at most k + 1 updates: with more slots, `wait` leaves slots empty,
        and `mask` and `drop` lose the tokens that are too old.

        Args:
            config: Configuration whose device is known.
            model: The model; None: its sizes are looked up.
            longest_prompt: Longest prompt, tokens; 0: the limit of the tasks.
            completion: Most tokens of a completion; 0: by the configuration, before there is a tokenizer.
            prompts: Prompts of the tasks, as far as they are known; None: their mean length is assumed.

        Raises:
            ConfigError: The model's sizes are unknown.
        """
        recipe, place, rollouts, learner = config.recipe, config.placement, config.rollouts, config.learner
        limit, mean = recipe.length.max_tokens, rollouts.expected_tokens
        expected = max(1, round(EXPECTED_LENGTH * limit)) if mean == "auto" else mean
        batch, tokens = recipe.completions_per_step, learner.micro_batch_tokens
        wanted = max(batch, place.engines, min(FULL_SLOTS, int(kept_busy(recipe, expected / limit))))
        texts = [task.max_prompt_tokens for task in config.data if isinstance(task, TextTask)]
        most_prompt, mean_prompt = (max(texts), min(MEAN_PROMPT, max(texts))) if texts else (LAB_PROMPT, LAB_PROMPT / 4)
        most_completion = completion or limit + PHRASE * isinstance(recipe.length, Interruption)
        prompts = prompts or PromptCounts({}, {})
        default_tokens = CPU_MICRO_BATCH if config.hardware.device == "cpu" else MICRO_BATCH
        warm = config.model.warm_start if isinstance(config.model, TinyModel) else None
        settings = {
            "slots": rollouts.slots,
            "expected_tokens": mean,
            "micro_batch_tokens": tokens,
            "recomputed": learner.gradient_checkpointing,
        }
        return cls(
            model=model or sizes_of(config.model),
            lora=config.lora,
            adaptable=isinstance(config.model, HuggingFaceModel),
            warm_rows=warm.steps * warm.batch if warm else 0,
            recipe=recipe,
            placement=place,
            hardware=config.hardware,
            evaluation=config.evaluation,
            checkpoint=config.checkpoint,
            steps=config.steps,
            price=config.price,
            seed=config.seed,
            channel=channel_name(config),
            schedule=schedule_name(config),
            ahead=rollouts.ahead,
            tasks=len(config.data),
            workers=config.scoring.processes(max(1, (os.cpu_count() or 1) - 1) if texts else 0),
            scorer_cores=config.scoring.processes(1),
            longest_prompt=longest_prompt,
            row_tokens=(longest_prompt or most_prompt) + most_completion,
            prompt_tokens=prompts.tokens or mean_prompt,
            expected_tokens=expected,
            evaluated=config.evaluated_sequences(prompts.held_out),
            most_evaluated=config.evaluated_sequences(),
            slots=wanted if rollouts.slots == "auto" else rollouts.slots,
            micro_batch_tokens=default_tokens if tokens == "auto" else tokens,
            recomputed=learner.gradient_checkpointing is True,
            open=frozenset(name for name, value in settings.items() if value == "auto"),
        )

    def written_to(self, config: RunConfig) -> RunConfig:
        """Return a configuration with these sizes, as a run saves it."""
        rollouts = replace(config.rollouts, slots=self.slots)
        learner = replace(
            config.learner, micro_batch_tokens=self.micro_batch_tokens, gradient_checkpointing=self.recomputed
        )
        own = {"hardware": self.hardware, "placement": self.placement, "checkpoint": self.checkpoint}
        return replace(config, rollouts=rollouts, learner=learner, **own)

    @property
    def on_cpu(self) -> bool:
        """Whether the run computes on CPU."""
        return self.hardware.device == "cpu"

    @property
    def in_loop(self) -> bool:
        """Whether the process of the loop is the trainer."""
        return trains_in_loop(self.placement, self.hardware.device, self.channel)

    @property
    def width(self) -> int:
        """Bytes of a weight in the forward pass."""
        return 4 if self.hardware.dtype == "float32" else 2

    @property
    def widest(self) -> int:
        """Padded tokens of the largest micro-batch; a rollout longer than the limit forms a separate one."""
        return max(self.micro_batch_tokens, self.row_tokens)

    @property
    def lag_ticks(self) -> int:
        """Decode steps from a batch to the use of its weights, with a deterministic schedule; else 0.

        New weights become active 1.5 times the steps of a batch after it: if both sides are balanced, an update takes
        as long as a batch, and the factor 1.5 absorbs the variation of both.
        """
        steps = self.recipe.completions_per_step * self.expected_tokens / self.slots
        return math.ceil(1.5 * steps) if self.recipe.off_policy.streams and self.schedule == "deterministic" else 0

    @property
    def lag_follows(self) -> bool:
        """Whether `lag_ticks` is only the first value, and follows the steps of recent batches."""
        return self.lag_ticks > 0 and "expected_tokens" in self.open  # lengths are not known before the run

    @property
    def occupancy(self) -> float:
        """Approximate share of the slots that the schedule can keep busy (docs/recipe.md)."""
        if not self.recipe.off_policy.waits:
            return 1.0
        return min(1.0, kept_busy(self.recipe, self.expected_tokens / self.recipe.length.max_tokens) / self.slots)

    def sources(self, saved: bool = False) -> str:
        """Return the sizes with where they are from: measured, given, chosen, assumed, or saved by the run."""

        def source(name: str) -> str:
            return "saved" if saved else "chosen" if name in self.open else "given"

        longest = f"prompts of at most {self.longest_prompt:,} tokens" if self.longest_prompt else "the longest prompt"
        expected = "assumed" if "expected_tokens" in self.open else "given"
        sizes = [
            (f"{self.slots:,} slots", source("slots")),
            (f"micro-batches of {self.micro_batch_tokens:,} tokens", source("micro_batch_tokens")),
            (f"a mean length of {self.expected_tokens:,} tokens", expected),
            (longest, "measured" if self.longest_prompt else "assumed"),
        ]
        of = {source: [name for name, own in sizes if own == source] for _, source in sizes}
        return "; ".join(f"{source}: {', '.join(names)}" for source, names in of.items())


def kept_busy(recipe: Recipe, mean_share: float) -> float:
    """Return the slots that the schedule keeps busy while the longest sequence is generated: of k + 1 batches.

    `mean_share`: mean length of completions divided by the longest one.
    """
    return (recipe.off_policy.max_lag + 1) * mean_share * recipe.completions_per_step


class PromptCounts(NamedTuple):
    """Prompts of a run by task, as far as they are known.

    Example: PromptCounts(training={"gsm8k": 7273}, held_out={"gsm8k": 200}, tokens=112.5)
    """

    training: Mapping[str, int]
    held_out: Mapping[str, int]
    tokens: float = 0.0
    """Mean tokens of a prompt; 0: unknown."""


def derived_sizes(config: RunConfig, pool: PromptCounts | None = None) -> list[str]:
    """Return the derived sizes as lines of text, for the start of a run; `pool` has its prompts, if they are known."""
    pool = pool or PromptCounts({}, {})
    recipe, checks = config.recipe, config.evaluation
    total = recipe.completions_per_step
    longest = recipe.length.max_tokens
    most = "at most " if checks.prompts == "auto" else ""
    sets = " and ".join(
        (
            f"{pool.held_out[task.curve]} held-out prompts"
            if task.curve in pool.held_out
            else "all prompts"
            if is_suite(task)
            else f"{most}{checks.held_out_of(task)} held-out prompts"
        )
        + (f" of {task.curve}" if len(config.data) > 1 else "")
        + (f" ({task.samples} samples each)" if task.samples != "auto" else "")
        for task in config.data
    )
    run = RunSizes.of(config, UNREAD)
    lag = f"{run.lag_ticks} decode steps" + (" (initially)" if run.lag_follows else "")
    used = f"; weights are used {lag} after their batch is complete" if run.lag_ticks else ""
    generators = f", on {config.placement.engines} generators" if config.placement.engines > 1 else ""
    beside = ", beside training" if checks.overlap else ""
    return [
        f"{recipe.name}: {config.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
        f"generations = {total} completions of up to {longest} tokens (<= {total * longest:,} tokens per step)",
        f"{recipe.off_policy.kind}: tokens at most {recipe.off_policy.max_lag} updates old; {run.slots} "
        f"sequences decoded together{generators}, expected occupancy {run.occupancy:.0%} at a mean "
        f"length of {run.expected_tokens} tokens{used}",
        f"evaluation every {checks.every} steps{beside}: {sets} x {checks.samples} samples",
        config.checkpoint.policy(checks.every),
        *_draws_lines(config, pool.training),
    ]


MANY_DRAWS = 20.0
"""Draws of each prompt above which a run is cautioned about them (docs/recipe.md#zero-variance-filter and below it)."""


def _draws_lines(config: RunConfig, training: Mapping[str, int]) -> list[str]:
    """Return how often each training prompt is drawn, a line for each task whose prompts are known."""
    drawn = config.steps * config.recipe.prompts_per_step
    lines = []
    for task in config.data:
        name, share = task.curve, shares(config.data)[task.curve]
        if isinstance(task, CustomTask) and name not in training:
            count = task.prompts + config.evaluation.held_out_of(task)
            lines.append(
                f"prompts: {task.function} must make {count:,} distinct ones (data.prompts and evaluation.prompts "
                "together); a dry run checks that with --trust and a model that is here"
            )
        if not share or not training.get(name):
            continue
        times = share * drawn / training[name]
        of_task = f" of {name}" if len(config.data) > 1 else ""
        caution = (
            f". Caution: more than {MANY_DRAWS:g} times, a policy learns a small set by heart, and wrong references "
            "ruin it: add prompts, lower steps, or check the references"
        )
        lines.append(
            f"prompts: each of {training[name]:,} training prompts{of_task} is drawn {times:.1f} times"
            f"{caution if times > MANY_DRAWS else ''}"
        )
    return lines
