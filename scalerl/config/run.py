"""The configuration of a run: recipe, model, data, evaluation, machine. Does not import torch.

The resolved configuration is saved as config.toml in the run directory; training from that file repeats the run.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.config.base import (
    Count,
    Few,
    Fraction,
    Held,
    Natural,
    NoneOrFew,
    Part,
    Positive,
    Seconds,
    Seed,
    Share,
    StopWhen,
    as_list,
)
from scalerl.config.data import (
    AnyTask,
    ArithmeticTask,
    PromptFile,
    TaskData,
    TextTask,
    check_tasks,
    is_suite,
    suite_tables,
)
from scalerl.config.loggers import Loggers
from scalerl.config.model import HuggingFaceModel, Lora, TinyModel
from scalerl.config.named import NAMED
from scalerl.config.placement import Hardware, Placement, Sandbox
from scalerl.config.recipe import AGGREGATION_OF_LOSS, SCALERL, Recipe


class Evaluation(Part):
    """Held-out mean@k at regular steps, including step 0; its time does not count as training compute."""

    every: Count = 100
    """Training steps between evaluations."""
    prompts: Held | Literal["auto"] = 1000
    """Held-out prompts of each task, chosen by a hash of their content and never trained on. auto: a fifth of the
    task's prompts, at most 200."""
    samples: Few = 16
    """k: samples per prompt."""
    replayed: Natural = 8
    """Samples of each evaluation whose log-probabilities the trainer recomputes; 0: none. If they differ by more than
    rounding, the generator does not have the weights that were sent, and the run stops."""
    saved: Natural = 16
    """Samples per evaluation and task that are written to rollouts.jsonl as text; 0: none."""


AUTO_PROMPTS = 200
"""Largest number of held-out prompts with `evaluation.prompts = "auto"`."""
MOST_SEQUENCES = 10**8
"""Largest number of sequences per evaluation."""

CPU_MICRO_BATCH = 1280
"""Default tokens of a micro-batch on CPU."""
FULL_SLOTS = 256
"""Number of sequences above which the cost of a decode step grows (a tiny model on one CPU core)."""
EXPECTED_LENGTH = 0.4
"""Default ratio of the mean length of completions to the length limit (0.4 in the lab)."""


class Rollouts(Part):
    """Settings of the generators."""

    slots: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Sequences decoded together by all generators; 0: the rollouts of a batch, or up to 256 for small batches if the
    expected lengths keep that many slots busy, and at most as many as fit in the memory of this machine at the length
    limit (torch engines on this machine). The number is saved in config.toml."""
    expected_tokens: Natural = 0
    """Expected mean length of a completion, tokens; 0: 0.4 of the limit. Determines the default slots and lag."""
    schedule: Literal["auto", "deterministic", "eager"] = "auto"
    """deterministic: new weights become active at a tick that depends on the data only. eager: as soon as they arrive.
    auto: deterministic with torch engines on one machine, else eager: engines on Ray or vLLM do not step together."""
    ahead: Natural = 1
    """Eager schedule of PipelineRL: number of complete batches that may wait for the trainer while generation
    continues. Each keeps the trainer busier and makes every token one update older; `max_lag` bounds the number."""
    lag_ticks: Literal["auto", "follow"] | Natural = "auto"
    """Deterministic schedule: decode steps from the completion of a batch to the use of the weights trained on it.
    follow: 1.5 times the steps of the latest 8 batches. auto: follow, or 1.5 times the expected steps of a batch if
    `expected_tokens` is given."""
    weights: Literal["auto", "shared-memory", "directory", "nccl"] = "auto"
    """Channel by which weights reach the generators. shared-memory: torch engines on one machine. directory:
    safetensors files in the run directory, which both sides must see. nccl: vLLM servers with their own GPUs, if the
    trainer's environment has vLLM too; not run on GPUs yet. auto: nccl for servers that the run starts on GPUs, if it
    is possible, else the first that fits the placement."""


class Judge(Part):
    """A model that scores completions over HTTP, for the task `judge`: an OpenAI-compatible endpoint."""

    url: str = "http://localhost:8000/v1"
    """Address of the endpoint, without /chat/completions."""
    model: str = "judge"
    """Name of the model at the endpoint."""
    template: str = (
        "Question:\n{question}\n\nReference answer:\n{answer}\n\nAnswer to judge:\n{completion}\n\n"
        "Is the answer right? Reply with one line: Score: 1 if it is right, Score: 0 if it is wrong."
    )
    """Text for the judge, with {question}, {answer} (the reference) and {completion} (the text after the thinking)."""
    pattern: str = r"(?i)score:\s*\**\s*(-?\d+(?:\.\d+)?)"
    """Regular expression of the score; its first group, or all of it, is the number. The last match counts."""
    words: dict[str, float] = Field(default={})
    """Numbers of words that the pattern finds, in lower case, such as {yes = 1, no = 0}."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """Scores that mean 0 and 1; a score outside of them is no score."""
    pass_score: Fraction = 1.0
    """Smallest score, from 0 to 1, that counts as passed."""
    temperature: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    """Temperature of the judge."""
    max_tokens: Count = 1024
    """Longest reply of the judge, tokens."""
    concurrency: Few = 16
    """Requests at the same time."""
    per_minute: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    """Most requests per minute; 0: no limit."""
    retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Further requests after a failure, a late reply, or a reply without a score."""
    wait_s: Annotated[float, Field(ge=0, le=1e7)] = 1.0
    """Wait before the first repetition, seconds; it doubles each time."""
    timeout_s: Seconds = 60.0
    """Time limit of a request, seconds."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key; empty or unset: none is sent. The key is never stored."""

    @model_validator(mode="after")
    def _check(self) -> Judge:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: got {self.pattern!r} ({error}); allowed: a regular expression") from None
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"bounds: got {list(self.bounds)}; allowed: the lower one first")
        if "{completion}" not in self.template:
            raise ValueError("template: got a text without {completion}; allowed: a text with it")
        return self


class Scoring(Part):
    """Settings of the verifiers and reward functions, which run in parallel with training."""

    workers: NoneOrFew = 0
    """Completions scored in parallel; 0: the cores minus one for verifiers in processes, the cores for code, else 1.
    Increase it if the verifier or reward function waits, for example for a judge model."""
    timeout_s: Seconds = 10.0
    """Time limit of a verifier per completion, seconds; the completion then counts as failed. Programs have separate
    limits (`sandbox`)."""
    reward_timeout_s: Seconds = 600.0
    """Time limit of your reward function per prompt, seconds; the prompt's completions then count as failed."""
    closed_forms: bool = False
    """The verifier math accepts an expression, such as 2^10, for a reference that is a number, unless it stands in the
    prompt. Without this option, no number of the expression may stand in the prompt."""
    failing_references: Share = 0.05
    """Largest share of a task's reference answers that may fail the verifier; above it the run does not start."""
    sandbox: Sandbox = Sandbox()
    """Isolation of the programs that the policy writes."""
    judge: Judge = Judge()
    """The model that scores completions of the task `judge`."""


class Learner(Part):
    """Settings of the trainer."""

    micro_batch_tokens: Natural = 0
    """Tokens per forward and backward pass, including padding; 0: 16,384, or 1,280 on CPU, where larger micro-batches
    exceed the cache of the processor and give helpers (`hardware.trainer_helpers`) fewer to share; fewer if these need
    too much memory."""
    packing: Literal["auto", "padded", "packed", "shared"] = "auto"
    """packed: the sequences of a micro-batch are one row without padding, each with separate attention. padded: one row
    per sequence. shared: packed, and each prompt is computed once for its rollouts (with one trainer rank; several
    ranks use packed). auto: shared if it saves over 10% of the tokens, else packed if over 10% would be padding, else
    padded. Models whose attention cannot be packed use padded."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Recompute activations in the backward pass: needs less memory and about a third more time. auto: only if the
    sequences of the torch engine would not fit otherwise."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the decoder layers with torch.compile, which takes up to a minute at the start. auto: on GPUs, if the
    rows are packed and the model is not a mixture, unless torch cannot."""


class Checkpointing(Part):
    """Settings of the checkpoints, which contain the whole state of a run.

    A run keeps its newest checkpoints, the one with the best held-out pass rate, and every N-th for good. It can go
    back to each of them.
    """

    every: Count = 50
    """Training steps between checkpoints."""
    every_minutes: Annotated[float, Field(ge=0)] = 0.0
    """Minutes after the last checkpoint at which another one is written, before `every` steps are done; 0: never. When
    a checkpoint is written does not change what a run computes. Evaluations count steps only: their points would depend
    on the speed of the machine."""
    keep: Count = 2
    """Newest checkpoints kept. The one with the best held-out pass rate is kept too."""
    keep_every: Natural = 0
    """Training steps between checkpoints that are kept for good, a multiple of `every`; 0: none are."""

    @model_validator(mode="after")
    def _check(self) -> Checkpointing:
        if self.keep_every % self.every:
            near = max(1, round(self.keep_every / self.every)) * self.every
            raise ValueError(
                f"keep_every: got {self.keep_every}; allowed: 0 or a multiple of checkpoint.every = {self.every}, such "
                f"as {near}"
            )
        return self

    def policy(self, evaluated: int) -> str:
        """Return which checkpoints a run writes and keeps, as text.

        Args:
            evaluated: Training steps between evaluations.
        """
        both = math.lcm(self.every, evaluated)
        best = "the one with the best held-out pass rate"
        best += f" (of every {both:,} steps, where both fall together)" if both > self.every else ""
        last = "the last" if self.keep == 1 else f"the last {self.keep:,}"
        kept = [last, best, *([f"those of every {self.keep_every:,} steps"] if self.keep_every else [])]
        listed = f"{', '.join(kept[:-1])} and {kept[-1]}"
        often = f"{self.every:,} steps" + (f" or {self.every_minutes:g} minutes" if self.every_minutes else "")
        return f"checkpoint every {often}; kept are {listed}; resume --from-step goes back to any of them"


class RunConfig(Part):
    """The configuration of a run."""

    seed: Seed = 0
    """Seed of sampling, prompt order and interruption points."""
    steps: Count = 1000
    """Number of updates."""
    stop_when: StopWhen = ()
    """Conditions that end the run early, such as 'advice is stop' or 'falling' (docs/scaling.md)."""
    min_gain: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Smallest gain of the held-out pass rate that is worth twice the compute; the advice is to stop below it."""
    price: Positive | None = None
    """Price of a device-hour, with which the advice states costs; without it, it states device-hours."""
    recipe: Recipe = SCALERL
    """The RL recipe."""
    model: Annotated[TinyModel | HuggingFaceModel, Field(discriminator="kind")] = TinyModel()
    """The policy: tiny or hf."""
    data: Annotated[tuple[AnyTask, ...], BeforeValidator(as_list)] = (ArithmeticTask(),)
    """The prompts: arithmetic, programs, file, reasoning-gym, verifiers or custom; a [data] table, or one [[data]]
    table for each of several tasks."""
    evaluation: Evaluation = Evaluation()
    """Evaluation on held-out prompts."""
    rollouts: Rollouts = Rollouts()
    """The generators."""
    scoring: Scoring = Scoring()
    """The verifiers and reward functions."""
    learner: Learner = Learner()
    """The trainer."""
    hardware: Hardware = Hardware()
    """Device, data types, threads and libraries."""
    placement: Placement = Placement()
    """Processes and their placement."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints."""
    loggers: Loggers = ()
    """Trackers that also receive the metrics: tensorboard, wandb, mlflow or custom, by name or as tables
    (docs/monitoring.md)."""

    @model_validator(mode="before")
    @classmethod
    def _with_suites(cls, values: Any) -> Any:
        """Convert `suites` to tasks; the saved configuration has them as [[data]] tables."""
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
        ranks = self.placement.trainer_ranks
        if self.lora and ranks > 1:
            raise ValueError(
                f"model.lora: got adapters with placement.trainer_ranks = {ranks}, which can only train all weights; "
                "allowed: one trainer rank, or no [model.lora]"
            )
        if self.rollouts.schedule == "deterministic" and not self.placement.deterministic:
            raise ValueError(
                "rollouts.schedule: got 'deterministic' with engines on Ray or of vLLM, which do not step together; "
                "allowed: auto, eager"
            )
        place = self.placement
        if place.engine == "vllm" and not place.servers and self.hardware.device == "cpu":
            for field, value, usual, reports in (
                ("top_p", self.recipe.top_p, 1.0, "from which ids it sampled a token"),
                ("routing_replay", self.recipe.routing_replay, "off", "its experts"),
            ):
                if value != usual:
                    raise ValueError(
                        f"recipe.{field}: got {value!r} with a vLLM server on CPU, which cannot report {reports}; "
                        f"allowed: {usual!r}, a GPU, or placement.engine = 'torch'"
                    )
        rounds = self.recipe.off_policy
        if self.weights == "nccl" and not rounds.streams and rounds.max_lag:
            raise ValueError(  # servers hold one version, and an evaluation within a round would replace it
                f"rollouts.weights: got 'nccl' with {rounds.kind} of {rounds.max_lag + 1} batches; allowed: directory, "
                "or recipe.off_policy.kind = 'pipeline'"
            )
        return self

    @property
    def lora(self) -> Lora | None:
        """Adapters that are trained in place of the model's weights; None: all weights are trained."""
        return self.model.lora if isinstance(self.model, HuggingFaceModel) else None

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks; each has a held-out set and a curve."""
        return [task.curve for task in self.data]

    @property
    def main_tasks(self) -> list[str]:
        """Names of the tasks with a forecast: all except evaluation suites."""
        return [task.curve for task in self.data if not is_suite(task)]

    def held_out(self, task: TaskData, prompts: int = MOST_SEQUENCES) -> int:
        """Return the held-out prompts of a task with `prompts` in all; for "all", the set's documented size."""
        if isinstance(task.held_out, int):
            return task.held_out
        known = NAMED[task.set].size if isinstance(task, PromptFile) and task.set and is_suite(task) else 0
        wanted = self.evaluation.prompts
        return known or (wanted if wanted != "auto" else max(1, min(AUTO_PROMPTS, prompts // 5)))

    def samples(self, task: TaskData) -> int:
        """Return k, the samples per held-out prompt of a task."""
        return task.samples or self.evaluation.samples

    @property
    def evaluated_sequences(self) -> int:
        """Sequences per evaluation, all tasks together."""
        return sum(self.held_out(task) * self.samples(task) for task in self.data)

    @property
    def expected_tokens(self) -> int:
        """Expected mean length of a completion."""
        return self.rollouts.expected_tokens or max(1, round(EXPECTED_LENGTH * self.recipe.length.max_tokens))

    @property
    def schedule(self) -> Literal["deterministic", "eager"]:
        """The schedule by which new weights become active."""
        chosen = self.rollouts.schedule
        return chosen if chosen != "auto" else "deterministic" if self.placement.deterministic else "eager"

    @property
    def weights(self) -> str:
        """The weight channel; for `auto` before `resolve`, that of machines with vLLM everywhere."""
        shared = self.placement.gpus == 1 and self.placement.backend == "local"
        return self.rollouts.weights if self.rollouts.weights != "auto" else self.channel(shared, vllm=True)[0]

    def channel(self, shared: bool, vllm: bool) -> tuple[str, str]:
        """Return the weight channel for `auto`, and the reason if vLLM servers on GPUs get files instead of NCCL.

        `shared`: engines use the trainer's GPUs. `vllm`: the trainer's environment has vLLM.
        """
        rounds, reason = self.recipe.off_policy, ""
        if self.placement.engine != "vllm" or self.hardware.device == "cpu":
            return self.placement.channels[0], ""
        if self.placement.servers:
            reason = "servers given by address take weights as their command line says"
        elif shared:
            reason = "an engine shares the trainer's GPU, and NCCL needs one for each process"
        elif not vllm:
            reason = "NCCL needs vLLM in the trainer's environment too"
        elif rounds.max_lag and not rounds.streams:
            reason = f"servers hold one version, and {rounds.kind} needs older ones"
        return "directory" if reason else "nccl", reason

    @property
    def trains_in_loop(self) -> bool:
        """Whether the process of the loop is the trainer; otherwise trainer ranks are processes or actors."""
        # on a cluster, the loop's process has no GPU; a transfer over NCCL that hangs ends only with its process
        far = self.placement.backend == "ray" and self.hardware.device == "cuda"
        return self.placement.trainer_ranks == 1 and not far and self.weights != "nccl"

    @property
    def loop_device(self) -> str:
        """The device on which the process of the loop loads the model."""
        return self.hardware.device if self.trains_in_loop else "cpu"

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens per forward and backward pass."""
        return self.learner.micro_batch_tokens or (CPU_MICRO_BATCH if self.hardware.device == "cpu" else 16_384)

    @property
    def checkpointing(self) -> bool:
        """Whether activations are recomputed; false for `auto` before its resolution (cluster/sizing.py)."""
        return self.learner.gradient_checkpointing is True

    @property
    def slots(self) -> int:
        """Sequences decoded together by all generators; for 0 before its resolution, as many as the schedule wants.

        A decode step of a few sequences costs nearly as much as one of many, so several small batches are decoded
        together. The longest sequence should span at most k + 1 updates: with more slots, `wait` leaves slots empty,
        and `mask` and `drop` lose the tokens that are too old.
        """
        if self.rollouts.slots:
            return self.rollouts.slots
        recipe = self.recipe
        batch, mean_share = recipe.completions_per_step, self.expected_tokens / recipe.length.max_tokens
        busy = int(batch * (recipe.off_policy.max_lag + 1) * mean_share)
        return max(batch, self.placement.engines, min(FULL_SLOTS, busy))

    @property
    def expected_occupancy(self) -> float:
        """Approximate share of the slots that the schedule can keep busy (docs/recipe.md).

        If updates wait for the longest sequence, k + 1 batches are in flight while it is generated.
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
        """Whether the lag follows the steps of recent batches, because lengths are not known before the run."""
        asked = self.rollouts.lag_ticks
        return self.lag_is_used and (asked == "follow" or (asked == "auto" and not self.rollouts.expected_tokens))

    @property
    def lag_ticks(self) -> int:
        """Decode steps from the completion of a batch to the use of its weights: 1.5 times the steps of a batch.

        If both sides are balanced, an update takes as long as a batch; the factor 1.5 absorbs the variation of both.
        It depends on the configuration only. With `lag_follows`, it is the initial value.
        """
        if isinstance(self.rollouts.lag_ticks, int):
            return self.rollouts.lag_ticks
        if not self.lag_is_used:
            return 0
        return math.ceil(1.5 * self.recipe.completions_per_step * self.expected_tokens / self.slots)

    def derived_sizes(self) -> list[str]:
        """Return the derived sizes as lines of text, for the start of a run."""
        recipe, checks = self.recipe, self.evaluation
        total = recipe.completions_per_step
        longest = recipe.length.max_tokens
        most = "at most " if checks.prompts == "auto" else ""
        sets = " and ".join(
            ("all prompts" if is_suite(task) else f"{most}{self.held_out(task)} held-out prompts")
            + (f" of {task.curve}" if len(self.data) > 1 else "")
            + (f" ({task.samples} samples each)" if task.samples else "")
            for task in self.data
        )
        lag = f"{self.lag_ticks} decode steps" + (" (initially)" if self.lag_follows else "")
        used = f"; weights are used {lag} after their batch is complete" if self.lag_is_used else ""
        generators = f", on {self.placement.engines} generators" if self.placement.engines > 1 else ""
        known = self.learner.micro_batch_tokens or self.hardware.device != "auto"
        on_cpu = "" if known else f" (on CPU {CPU_MICRO_BATCH:,})"
        ranks = f", on {self.placement.trainer_ranks} ranks" if self.placement.trainer_ranks > 1 else ""
        return [
            f"{recipe.name}: {self.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
            f"generations = {total} completions of up to {longest} tokens (<= {total * longest:,} tokens per step)",
            f"{recipe.off_policy.kind}: tokens at most {recipe.off_policy.max_lag} updates old; {self.slots} "
            f"sequences decoded together{generators}, expected occupancy {self.expected_occupancy:.0%} at a mean "
            f"length of {self.expected_tokens} tokens{used}",
            f"training: at most {self.micro_batch_tokens:,} tokens per micro-batch{on_cpu}{ranks}",
            f"evaluation every {checks.every} steps: {sets} x {checks.samples} samples",
            self.checkpoint.policy(checks.every),
            *self._aggregation_line(),
        ]

    def _aggregation_line(self) -> list[str]:
        """Return a line if the aggregation is the loss's own default, which a change of the loss brings with it."""
        loss, chosen = self.recipe.loss.kind, self.recipe.aggregation
        if chosen != AGGREGATION_OF_LOSS.get(loss):
            return []
        return [
            f"recipe.loss {loss!r} has its own default recipe.aggregation, {chosen!r}: its ratio belongs to a whole "
            f"rollout. The default of other losses is {Recipe().aggregation!r}; recipe.aggregation sets any"
        ]
