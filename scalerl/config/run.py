"""One run, whole: recipe, model, data, evaluation, machine. Read from TOML and dotted overrides; it loads no torch.

The resolved configuration is saved as config.toml in the run directory and re-runs as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.config.base import Part, short
from scalerl.config.data import (
    AnyTask,
    ArithmeticTask,
    PromptFile,
    TaskData,
    TextTask,
    as_list,
    check_tasks,
    is_suite,
    suite_tables,
)
from scalerl.config.hardware import Hardware
from scalerl.config.model import HuggingFaceModel, Lora, TinyModel
from scalerl.config.named import NAMED
from scalerl.config.numbers import Count, Few, Held, Natural, NoneOrFew, Seconds, Seed, Share
from scalerl.config.placement import Placement
from scalerl.config.recipe import SCALERL, Recipe
from scalerl.config.sandbox import Sandbox
from scalerl.config.stop import StopWhen


class Evaluation(Part):
    """Held-out mean@k on a schedule, step 0 included; its time is kept apart from training compute."""

    every: Count = 100
    """Training steps between evaluations."""
    prompts: Held = 1000
    """Held-out prompts of each task, chosen by a hash of their content and never trained on."""
    samples: Few = 16
    """k: samples of each prompt."""
    replayed: Natural = 8
    """Samples of each evaluation whose log-probabilities the trainer computes again; 0: none. A run stops where they
    differ by more than rounding: the generator's weights are then not what was sent."""
    saved: Natural = 16
    """Samples of each evaluation and task that are written to rollouts.jsonl as text; 0: none."""


MOST_SEQUENCES = 10**8
"""Sequences of one evaluation that are accepted."""

FULL_SLOTS = 256
"""Sequences from which on a decode step's cost grows with their number (a tiny model on one CPU core)."""

EXPECTED_LENGTH = 0.4
"""Mean length of a completion over the length limit, where nothing else is known (the lab's is 0.4)."""


def _check_lag(value: Any) -> Any:
    if value == -1 and not isinstance(value, bool):  # how earlier versions wrote it
        return "measure"
    known = value in ("auto", "follow", "measure")
    if known or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9):
        return value
    raise ValueError(f"got {short(value)}; allowed: auto, follow, measure, or a number of decode steps of at least 0")


class Rollouts(Part):
    """How the generators run."""

    slots: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Sequences decoded together, by all generators; 0: as many as a batch has rollouts, or, for small batches, up to
    256 if the expected lengths keep them busy."""
    expected_tokens: Natural = 0
    """Expected mean length of a completion, tokens; 0: 0.4 of the limit. Default slots and lag follow from it."""
    refill: Natural = 0
    """Free slots that are waited for before new sequences are prefilled; 0: a sixteenth of the slots, 1: at once."""
    schedule: Literal["auto", "deterministic", "eager"] = "auto"
    """deterministic: new weights become active at a tick fixed by the data; eager: as soon as they arrive. auto:
    deterministic with torch engines on one machine, eager with Ray or vLLM, where engines do not step together."""
    ahead: Natural = 1
    """Eager schedule of PipelineRL: complete batches that may wait for the trainer while generation goes on. More keep
    the trainer busy where generation is uneven, and make every token one update older; `max_lag` bounds both."""
    lag_ticks: Annotated[Literal["auto", "follow", "measure"] | int, BeforeValidator(_check_lag)] = "auto"
    """Deterministic schedule: decode steps from a batch's completion to the use of the weights it trained. follow: 1.5
    times those that the latest 8 batches took, by count, so that equal runs are equal; auto: that, or 1.5 times the
    expected steps of a batch where `expected_tokens` is given; measure: by the clock at the first step, so that two
    equal runs differ."""
    weights: Literal["auto", "shared-memory", "directory", "object-store", "nccl"] = "auto"
    """How weights reach the generators. shared-memory: torch engines of one machine. object-store: torch engines on
    Ray. nccl: vLLM servers given by address, on GPUs. directory: safetensors files in the run directory, slower,
    wherever both sides see it.
    auto: the first of these that fits the placement."""


class Scoring(Part):
    """How completions are judged, beside training."""

    workers: NoneOrFew = 0
    """Completions judged at a time; 0: for verifiers in processes one less than the cores, for code the cores, else 1.
    Raise it for a verifier or reward function that waits (a judge model)."""
    timeout_s: Seconds = 10.0
    """Seconds a verifier may take for one completion before it is stopped and the completion has failed; programs have
    limits of their own (`sandbox`)."""
    reward_timeout_s: Seconds = 600.0
    """Seconds your reward function may take for the completions of one prompt before they count as failed."""
    failing_references: Share = 0.05
    """Share of a task's references that may fail their own verifier before the run is refused; 1: any."""
    sandbox: Sandbox = Sandbox()
    """Where programs run that the policy wrote."""


class Learner(Part):
    """How the trainer runs."""

    micro_batch_tokens: Natural = 0
    """Tokens of one forward and backward pass, padding included where rows are padded; 0: 16,384, and 1,280 on CPU,
    where larger ones leave the processor's cache, and helpers (`hardware.trainer_helpers`) have fewer to share."""
    packing: Literal["auto", "padded", "packed", "shared"] = "auto"
    """packed: the sequences of a micro-batch lie in one row without padding, and attention runs within each; padded:
    one row a sequence; shared: packed, and each prompt is computed once for its rollouts (one trainer process; else
    packed). auto: shared where that saves over 10% of the tokens, else packed where padding would be more than 10% of
    them, and padded for models whose attention cannot be packed."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    accumulate: Literal["local", "sharded"] = "local"
    """Several trainer ranks: where the gradients of micro-batches add up. local: a rank holds the whole FP32 gradient
    (4 bytes a weight) and the ranks exchange it once an update; sharded: a rank holds its share, exchanged after every
    micro-batch."""


class Checkpointing(Part):
    """When the whole state of a run is written to disk."""

    every: Count = 50
    """Training steps between checkpoints."""
    keep: Count = 2
    """Checkpoints kept."""


class RunConfig(Part):
    """Everything a run is."""

    seed: Seed = 0
    """Seed of sampling, prompt order and interruption points."""
    steps: Count = 1000
    """Updates to train for."""
    stop_when: StopWhen = ()
    """Conditions to stop before, as in 'gain at 2x below 0.01 with probability 0.9' (docs/scaling.md)."""
    recipe: Recipe = SCALERL
    """What to run."""
    model: Annotated[TinyModel | HuggingFaceModel, Field(discriminator="kind")] = TinyModel()
    """Which policy: tiny or hf."""
    data: Annotated[tuple[AnyTask, ...], BeforeValidator(as_list)] = (ArithmeticTask(),)
    """Which prompts: arithmetic, programs, file, reasoning-gym or verifiers; a [data] table, or one [[data]] table
    for each of several tasks."""
    evaluation: Evaluation = Evaluation()
    """The held-out curve."""
    rollouts: Rollouts = Rollouts()
    """The generators."""
    scoring: Scoring = Scoring()
    """The verifiers."""
    learner: Learner = Learner()
    """The trainer."""
    hardware: Hardware = Hardware()
    """The machine."""
    placement: Placement = Placement()
    """Which processes, and where."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, values: Any) -> Any:
        """Read `rollouts.generators`, as earlier versions wrote it, as `placement.generators`."""
        rollouts = values.get("rollouts") if isinstance(values, dict) else None
        placement = values.get("placement", {}) if isinstance(values, dict) else None
        if not isinstance(rollouts, dict) or "generators" not in rollouts or not isinstance(placement, Mapping | Part):
            return values
        rest = {name: value for name, value in rollouts.items() if name != "generators"}
        return {**values, "rollouts": rest, "placement": {**dict(placement), "generators": rollouts["generators"]}}

    @model_validator(mode="before")
    @classmethod
    def _with_suites(cls, values: Any) -> Any:
        """Read `suites` as the tasks it stands for; the saved configuration has them as [[data]] tables."""
        if not isinstance(values, dict) or "suites" not in values:
            return values
        rest = {name: value for name, value in values.items() if name != "suites"}
        tasks = as_list(rest["data"]) if "data" in rest else [ArithmeticTask()]
        return {**rest, "data": [*tasks, *suite_tables(values["suites"])]}

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        check_tasks(self.data)
        if self.evaluated_sequences > MOST_SEQUENCES:
            raise ValueError(
                f"evaluation: got {self.evaluated_sequences:,} sequences (held-out prompts x samples of all tasks); "
                f"allowed: at most {MOST_SEQUENCES:,}"
            )
        kinds = [task.kind for task in self.data if isinstance(task, TextTask)]
        if isinstance(self.model, TinyModel) and kinds:
            raise ValueError(
                f"data.kind: got {kinds[0]!r} with model.kind 'tiny', which has the lab's vocabulary; give --model"
            )
        engines = self.placement.engines
        if self.rollouts.slots and self.rollouts.slots < engines:
            raise ValueError(
                f"rollouts.slots: got {self.rollouts.slots} for {engines} generators; allowed: at least one slot for "
                "each generator"
            )
        allowed = ("auto", *self.placement.channels)
        if self.rollouts.weights not in allowed:
            raise ValueError(
                f"rollouts.weights: got {self.rollouts.weights!r} with placement.backend {self.placement.backend!r} "
                f"and placement.engine {self.placement.engine_name!r}; allowed: {', '.join(allowed)}"
            )
        if self.recipe.routing_replay == "on" and self.placement.engine != "torch":
            raise ValueError(
                f"recipe.routing_replay: got 'on' with placement.engine {self.placement.engine_name!r}, which does not "
                "say which experts it used; allowed: off, or placement.engine = 'torch'"
            )
        ranks = self.placement.trainer_ranks
        if self.lora and ranks > 1:
            raise ValueError(
                f"model.lora: got adapters with placement.trainer_ranks = {ranks}, and several ranks train all weights "
                "only; allowed: one trainer rank, or no [model.lora]"
            )
        if self.rollouts.schedule == "deterministic" and not self.placement.deterministic:
            raise ValueError(
                "rollouts.schedule: got 'deterministic' with engines on Ray or of vLLM, which do not step together; "
                "allowed: auto, eager"
            )
        return self

    @property
    def lora(self) -> Lora | None:
        """Adapters that are trained in place of the model's own weights; None: all weights are trained."""
        return self.model.lora if isinstance(self.model, HuggingFaceModel) else None

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, each with a held-out set and a curve of its own."""
        return [task.curve for task in self.data]

    @property
    def main_tasks(self) -> list[str]:
        """Names of the tasks with a forecast: all but evaluation suites."""
        return [task.curve for task in self.data if not is_suite(task)]

    def held_out(self, task: TaskData) -> int:
        """Return the number of a task's held-out prompts; where all are, as many as its set is known to have."""
        if isinstance(task.held_out, int):
            return task.held_out
        known = NAMED[task.set].size if isinstance(task, PromptFile) and task.set and is_suite(task) else 0
        return known or self.evaluation.prompts

    def samples(self, task: TaskData) -> int:
        """Return k, the samples of each of a task's held-out prompts."""
        return task.samples or self.evaluation.samples

    @property
    def evaluated_sequences(self) -> int:
        """Sequences of one evaluation, of all tasks."""
        return sum(self.held_out(task) * self.samples(task) for task in self.data)

    @property
    def expected_tokens(self) -> int:
        """Expected mean length of a completion."""
        return self.rollouts.expected_tokens or max(1, round(EXPECTED_LENGTH * self.recipe.length.max_tokens))

    @property
    def schedule(self) -> Literal["deterministic", "eager"]:
        """When new weights become active."""
        chosen = self.rollouts.schedule
        return chosen if chosen != "auto" else "deterministic" if self.placement.deterministic else "eager"

    @property
    def weights(self) -> str:
        """Which weight channel: key of CHANNELS."""
        if self.rollouts.weights != "auto":
            return self.rollouts.weights
        channels = [name for name in self.placement.channels if name != "nccl" or self.hardware.device == "cuda"]
        return channels[0]

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one forward and backward pass."""
        return self.learner.micro_batch_tokens or (1280 if self.hardware.device == "cpu" else 16_384)

    @property
    def slots(self) -> int:
        """Sequences decoded together, by all generators.

        A decode step of a few sequences costs nearly what one of many does, so small batches share it, as long as the
        longest sequence spans at most k + 1 updates: with more slots `wait` leaves them empty, and `mask` and `drop`
        lose what is too old.
        """
        if self.rollouts.slots:
            return self.rollouts.slots
        recipe = self.recipe
        batch, mean_share = recipe.completions_per_step, self.expected_tokens / recipe.length.max_tokens
        busy = int(batch * (recipe.off_policy.max_lag + 1) * mean_share)
        return max(batch, self.placement.engines, min(FULL_SLOTS, busy))

    @property
    def expected_occupancy(self) -> float:
        """Share of the slots that the schedule can keep busy, by rule of thumb (docs/recipe.md).

        Where updates wait for the longest sequence, k + 1 batches are under way for as long as that one takes.
        """
        off_policy, batch = self.recipe.off_policy, self.recipe.completions_per_step
        if not off_policy.waits:
            return 1.0
        mean_share = self.expected_tokens / self.recipe.length.max_tokens
        return min(1.0, (off_policy.max_lag + 1) * mean_share * batch / self.slots)

    @property
    def lag_is_used(self) -> bool:
        """Whether weights become active a number of ticks after their batch."""
        return self.recipe.off_policy.streams and self.schedule == "deterministic"

    @property
    def lag_follows(self) -> bool:
        """Whether the lag follows the steps that batches took, because lengths are not known before the run."""
        asked = self.rollouts.lag_ticks
        return self.lag_is_used and (asked == "follow" or (asked == "auto" and not self.rollouts.expected_tokens))

    @property
    def lag_ticks(self) -> int:
        """Decode steps from a batch's completion to the use of its weights: 1.5 times those that a batch takes.

        Where both sides are balanced an update takes as long as a batch; half as much again absorbs the variation of
        both. A function of the configuration alone, so that equal commands give equal bits.
        """
        if isinstance(self.rollouts.lag_ticks, int):
            return self.rollouts.lag_ticks
        if not self.lag_is_used:
            return 0
        return math.ceil(1.5 * self.recipe.completions_per_step * self.expected_tokens / self.slots)

    def derived_sizes(self) -> list[str]:
        """Return what follows from the sizes given, in words, for the start of a run."""
        recipe, checks = self.recipe, self.evaluation
        total = recipe.completions_per_step
        longest = recipe.length.max_tokens
        sets = " and ".join(
            ("all prompts" if is_suite(task) else f"{self.held_out(task)} held-out prompts")
            + (f" of {task.curve}" if len(self.data) > 1 else "")
            + (f" ({task.samples} samples each)" if task.samples else "")
            for task in self.data
        )
        lag = "measured at the first step" if self.rollouts.lag_ticks == "measure" else f"{self.lag_ticks} decode steps"
        lag += ", at first," if self.lag_follows else ""
        used = f"; weights are used {lag} after their batch is complete" if self.lag_is_used else ""
        generators = f", on {self.placement.engines} generators" if self.placement.engines > 1 else ""
        ranks = f", on {self.placement.trainer_ranks} ranks" if self.placement.trainer_ranks > 1 else ""
        return [
            f"{recipe.name}: {self.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
            f"generations = {total} completions of up to {longest} tokens (at most {total * longest:,} tokens a step)",
            f"{recipe.off_policy.kind}: tokens at most {recipe.off_policy.max_lag} updates old; {self.slots} "
            f"sequences decoded together{generators}, expected occupancy {self.expected_occupancy:.0%} at a mean "
            f"length of {self.expected_tokens} tokens{used}",
            f"training: at most {self.micro_batch_tokens:,} tokens a micro-batch{ranks}",
            f"evaluation every {checks.every} steps: {sets} x {checks.samples} samples",
        ]
