"""The configuration of a run: recipe, model, data, evaluation, machine. Does not import torch.

The resolved configuration is saved as config.toml in the run directory; training from that file repeats the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.training.config.base import (
    Auto,
    Count,
    Few,
    Fraction,
    Natural,
    ObjectCount,
    Part,
    Positive,
    Seconds,
    Seed,
    Share,
    StopWhen,
    as_list,
)
from scalerl.training.config.data import (
    AgentTask,
    AnyTask,
    ArithmeticTask,
    PromptFile,
    TaskData,
    TextTask,
    check_tasks,
    is_suite,
    prompts_of_step,
    suite_tables,
)
from scalerl.training.config.loggers import Loggers
from scalerl.training.config.model import HuggingFaceModel, Lora, TinyModel
from scalerl.training.config.named import NAMED_SETS
from scalerl.training.config.placement import Hardware, Placement, Sandbox
from scalerl.training.config.recipe import SCALERL, Recipe

AUTO_PROMPTS = 200
"""Largest number of held-out prompts with `evaluation.prompts = "auto"`."""
MOST_SEQUENCES = 10**8
"""Largest number of sequences per evaluation."""


class Evaluation(Part):
    """Held-out mean@k at regular steps, including step 0; its time does not count as training compute."""

    every: Count = 100
    """Training steps between evaluations."""
    prompts: Auto | ObjectCount = 1000
    """Held-out prompts of each task, chosen by a hash of their content and never trained on. auto: a fifth of the
    task's prompts, at most 200."""
    samples: Few = 16
    """k: samples per prompt."""
    replayed: Natural = 8
    """Samples of each evaluation whose log-probabilities the trainer recomputes; 0: none. If they differ by more than
    rounding, the generator does not have the weights that were sent, and the run stops."""
    saved: Natural = 16
    """Samples per evaluation and task that are written to rollouts.jsonl as text; 0: none."""
    overlap: bool = False
    """Evaluate in a process with an engine of its own while training goes on, instead of pausing it. A point then
    appears when it is ready, and `stop_when` judges it at the next evaluation. For engines that the run starts; custom
    ones must decode a step at each poll. The process has GPUs of its own if generators have
    (`placement.gpus_per_generator`; vLLM: `placement.tensor_parallel`), else it shares the trainer's; on CPU it takes
    the cores that others leave."""

    def held_out_of(self, task: TaskData, prompts: int = MOST_SEQUENCES) -> int:
        """Return the held-out prompts of a task with `prompts` in all; for "all", the set's documented size."""
        if isinstance(task.held_out, int):
            return task.held_out
        documented_size = (
            NAMED_SETS[task.set].size if isinstance(task, PromptFile) and task.set and is_suite(task) else 0
        )
        return documented_size or (self.prompts if self.prompts != "auto" else max(1, min(AUTO_PROMPTS, prompts // 5)))

    def samples_of(self, task: TaskData) -> int:
        """Return k, the samples per held-out prompt of a task."""
        return self.samples if task.samples == "auto" else task.samples


MOST_RANK = 512
"""Largest --max-lora-rank of vLLM."""


class Rollouts(Part):
    """Settings of the generators."""

    slots: Auto | Annotated[int, Field(ge=1, le=10**6)] = "auto"
    """Sequences decoded together by all generators. auto: the rollouts of a batch, or up to 256 for small batches if
    the expected lengths keep that many slots busy, and at most as many as fit in the memory of this machine at the
    length limit (torch engines on this machine). The number is saved in config.toml."""
    expected_tokens: Auto | Count = "auto"
    """Expected mean length of a completion, tokens; auto: 0.4 of the limit. It determines the slots, and the lag of a
    schedule that is not eager: the decode steps from the completion of a batch to the use of the weights trained on it.
    It is 1.5 times the expected steps of a batch; with auto it follows the steps of the latest 8 batches."""
    schedule: Auto | Literal["eager"] = "auto"
    """eager: new weights become active as soon as they arrive. auto: at a tick that depends on the data only, so that
    equal commands give equal bits, with torch engines on one machine; else eager, because engines on Ray or vLLM do not
    step together, and the programs of agents take time of their own."""
    ahead: Natural = 1
    """Eager schedule of PipelineRL: number of complete batches that may wait for the trainer while generation
    continues. Each keeps the trainer busier and makes every token one update older; `max_lag` bounds the number."""
    weights: Auto | Literal["shared-memory", "directory", "nccl", "adapters"] = "auto"
    """Channel by which weights reach the generators. shared-memory: torch engines on one machine. directory:
    safetensors files in the run directory, which both sides must see. nccl: vLLM servers with their own GPUs, if the
    trainer's environment has vLLM too; not run on GPUs yet. adapters: with `model.lora`, files with only the adapters,
    for vLLM servers that the run starts. auto: adapters if they are trained and vLLM can load them; nccl for servers
    that the run starts on GPUs, if it is possible; else the first that fits the placement."""


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
    pattern: str = (
        r"(?i)(?:\bscore\b(?:\s*\([^()\n]{0,40}\))?[\s*_\"'`]*"
        r"(?::|=|→|\b(?:is|of|(?:would|should) be)\b)?[\s*_\"'`:=($<\[]*|(?=\[\[|\\boxed))"
        r"(?:\[\[|\\boxed\s*\{)?\s*(-?(?:\d+(?:[.,]\d+)?|\.\d+))"
    )
    """Regular expression of the score; its first group, or all of it, is the number. The last match counts. The default
    reads `Score: 6`, `score = 6`, `The score is 6`, `[[6]]` and `\\boxed{6}`."""
    words: dict[str, float] = Field(default={})
    """Numbers of words that the pattern finds, in lower case, such as {yes = 1, no = 0}."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """Scores that mean 0 and 1. A score outside of them is no score. Neither is one on another scale, such as 4/5 for
    the bounds 0 and 10, or one of several, such as `6 or 7`."""
    pass_score: Fraction = 1.0
    """Smallest score, from 0 to 1, that counts as passed."""
    temperature: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    """Temperature of the judge."""
    max_tokens: Count = 1024
    """Longest reply of the judge, tokens."""
    concurrency: Few = 16
    """Requests at the same time."""
    per_minute: Positive | None = None
    """Most requests per minute; none: no limit."""
    retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Further requests after a failure, a late reply, or a reply without a score, after 1, 2, 4, ... seconds."""
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

    workers: Auto | Few = "auto"
    """Completions scored in parallel; auto: the cores minus one for verifiers in processes, the cores for code, else 1.
    Increase it if the verifier or reward function waits, for example for a judge model."""
    timeout_s: Seconds = 10.0
    """Time limit of a verifier per completion, seconds; the completion then counts as failed. Programs have separate
    limits (`sandbox`)."""
    closed_forms: bool = False
    """The verifier math accepts an expression, such as 2^10, for a reference that is a number, unless it stands in the
    prompt. Without this option, no number of the expression may stand in the prompt."""
    failing_references: Share = 0.05
    """Largest share of a task's reference answers that may fail the verifier; above it the run does not start."""
    sandbox: Sandbox = Sandbox()
    """Isolation of the programs that the policy writes."""
    judge: Judge = Judge()
    """The model that scores completions of the task `judge`."""

    def processes(self, automatic: int) -> int:
        """Return `workers`, or for "auto" what a verifier or reward function does best with."""
        return automatic if self.workers == "auto" else self.workers


class LearnerSettings(Part):
    """Settings of the trainer."""

    micro_batch_tokens: Auto | Count = "auto"
    """Tokens per forward and backward pass, including padding; auto: 16,384, or 1,280 on CPU, where larger
    micro-batches exceed the cache of the processor and give helpers (`hardware.trainer_helpers`) fewer to share; fewer
    if these need too much memory."""
    packing: Auto | Literal["padded", "packed", "shared"] = "auto"
    """packed: the sequences of a micro-batch are one row without padding, each with separate attention. padded: one row
    per sequence. shared: packed, and each prompt is computed once for its rollouts (with one trainer rank; several
    ranks use packed). auto: shared if it saves over 10% of the tokens, else packed if over 10% would be padding, else
    padded. Models whose attention cannot be packed use padded."""
    gradient_checkpointing: Auto | bool = "auto"
    """Recompute activations in the backward pass: needs less memory and about a third more time. auto: only if the
    sequences of the torch engine would not fit otherwise."""
    compile: Auto | bool = "auto"
    """Compile the decoder layers with torch.compile, which takes up to a minute at the start. auto: on GPUs, if the
    rows are packed and the model is not a mixture, unless torch cannot."""


class Checkpointing(Part):
    """Settings of the checkpoints, which contain the whole state of a run.

    A run keeps its newest checkpoints, the one with the best held-out pass rate, and every N-th for good. It can go
    back to each of them.
    """

    every: Count = 50
    """Training steps between checkpoints."""
    every_minutes: Positive | None = None
    """Minutes after the last checkpoint at which another one is written, before `every` steps are done; none: never.
    When a checkpoint is written does not change what a run computes. Evaluations count steps only: their points would
    depend on the speed of the machine."""
    keep: Count = 2
    """Newest checkpoints kept. The one with the best held-out pass rate is kept too."""
    keep_every: Count | None = None
    """Training steps between checkpoints that are kept for good, a multiple of `every`; none: none are."""

    @model_validator(mode="after")
    def _check(self) -> Checkpointing:
        if self.keep_every and self.keep_every % self.every:
            near = max(1, round(self.keep_every / self.every)) * self.every
            raise ValueError(
                f"keep_every: got {self.keep_every}; allowed: none, or a multiple of checkpoint.every = {self.every}, "
                f"such as {near}"
            )
        return self

    @property
    def interval(self) -> str:
        """The interval of checkpoints as text."""
        return f"{self.every:,} steps" + (f" or {self.every_minutes:g} minutes" if self.every_minutes else "")

    def policy(self, evaluated: int) -> str:
        """Return which checkpoints a run writes and keeps, as text.

        Args:
            evaluated: Training steps between evaluations.
        """
        both = math.lcm(self.every, evaluated)
        best = "the one with the best held-out pass rate"
        best += f" (of every {both:,} steps, where both fall together)" if both > self.every else ""
        last = "the last" if self.keep == 1 else f"the last {self.keep:,}"
        kinds = [last, best, *([f"those of every {self.keep_every:,} steps"] if self.keep_every else [])]
        listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        return f"checkpoint every {self.interval}; kept are {listed}; resume --from-step goes back to any of them"


class RunConfig(Part):
    """The configuration of a run."""

    seed: Seed = 0
    """Seed of sampling, prompt order and interruption points."""
    steps: Count = 1000
    """Number of updates."""
    stop_when: StopWhen = ()
    """Conditions that end the run early, such as 'gain at 2x below 0.02' or 'falling' (docs/scaling.md)."""
    min_gain: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Smallest gain of the held-out pass rate that is worth twice the compute: the limit of the advice."""
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
    learner: LearnerSettings = LearnerSettings()
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
        others = {name: value for name, value in values.items() if name != "suites"}
        tasks = as_list(others["data"]) if "data" in others else [ArithmeticTask()]
        return {**others, "data": [*tasks, *suite_tables(values["suites"])]}

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        check_tasks(self.data)
        needed = prompts_of_step(self.data, self.recipe.prompts_per_step)
        for task in self.data:
            pool, least = getattr(task, "prompts", None), needed[task.curve]
            if isinstance(pool, int) and pool < least:
                raise ValueError(
                    f"data.prompts: got {pool}; allowed: at least the {least} of a step, or fewer "
                    "recipe.prompts_per_step"
                )
        if self.evaluated_sequences() > MOST_SEQUENCES:
            raise ValueError(
                f"evaluation: got {self.evaluated_sequences():,} sequences (held-out prompts x samples of all tasks); "
                f"allowed: at most {MOST_SEQUENCES:,}"
            )
        kinds = [task.kind for task in self.data if isinstance(task, TextTask)]
        if isinstance(self.model, TinyModel) and kinds:
            raise ValueError(
                f"data.kind: got {kinds[0]!r} with model.kind 'tiny', which has the lab's vocabulary; give --model"
            )
        engines = self.placement.engines
        if self.rollouts.slots != "auto" and self.rollouts.slots < engines:
            raise ValueError(
                f"rollouts.slots: got {self.rollouts.slots} for {engines} generators; allowed: at least one slot for "
                "each generator"
            )
        adapters = self.lora is not None and self.placement.engine == "vllm" and not self.merged_because()
        allowed = ("auto", *self.placement.channels, *(["adapters"] if adapters else []))
        if self.rollouts.weights not in allowed:
            raise ValueError(
                f"rollouts.weights: got {self.rollouts.weights!r} with placement.backend {self.placement.backend!r} "
                f"and placement.engine {self.placement.engine_name!r}; allowed: {', '.join(allowed)}"
                + (f" ({self.merged_because()})" if self.lora and self.placement.servers else "")
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
        if self.evaluation.overlap and place.servers:
            raise ValueError(
                "evaluation.overlap: got true with placement.servers; allowed: false, or true with engines that the "
                "run starts"
            )
        rounds = self.recipe.off_policy
        if self.rollouts.weights == "nccl" and not rounds.streams and rounds.max_lag:
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
    def has_agents(self) -> bool:
        """Whether programs make rollouts of a task."""
        return any(isinstance(task, AgentTask) for task in self.data)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks; each has a held-out set and a curve."""
        return [task.curve for task in self.data]

    @property
    def main_tasks(self) -> list[str]:
        """Names of the tasks with a forecast: all except evaluation suites."""
        return [task.curve for task in self.data if not is_suite(task)]

    def evaluated_sequences(self, held_out: Mapping[str, int] | None = None) -> int:
        """Return the sequences of an evaluation, all tasks together.

        `held_out`: prompts of tasks whose prompts are known; else as many as the configuration allows.
        """
        known, checks = held_out or {}, self.evaluation
        return sum(known.get(one.curve, checks.held_out_of(one)) * checks.samples_of(one) for one in self.data)

    def merged_because(self, unable: str = "") -> str:
        """Return why vLLM servers get merged weights although adapters are trained; empty: they get the adapters.

        `unable`: why vLLM cannot load adapters of this model (`adapter_problem` of training/engines/vllm/adapters.py).
        """
        if self.placement.servers:
            return "servers given by address were not started for adapters"
        if self.lora and self.lora.rank > MOST_RANK:
            return f"vLLM loads adapters up to rank {MOST_RANK}"
        return unable
