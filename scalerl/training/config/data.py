"""The prompts of a run: a list of tasks with shares. Each task is generated, from a file or from an environment.

These are the tables of `data` in config.toml; run.py has the configuration of a whole run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalerl.core.errors import short
from scalerl.training.config.base import ORDERED, Auto, Count, Few, Fraction, ObjectCount, Part, Positive, Seed, Share
from scalerl.training.config.named import NAMED_SETS, with_named_set
from scalerl.training.config.recipe import Custom


class TaskData(Part):
    """The fields of every task: a name, a share of the prompts drawn, a held-out set and a curve."""

    named_by: ClassVar[str] = "kind"
    """Field that gives the name of a task without `name`."""

    kind: str
    name: str = ""
    """Name of the task and of its curve; empty: the kind, or the name of the verifier or reward function."""
    share: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Share of the prompts drawn, relative to the other tasks'; 0: only evaluated, never trained on."""
    held_out: Auto | ObjectCount | Literal["all"] = "auto"
    """Number of held-out prompts; auto: evaluation.prompts; all: every prompt, for a task with share 0."""
    samples: Auto | Few = "auto"
    """k: samples per held-out prompt; auto: evaluation.samples."""

    @property
    def curve(self) -> str:
        """Name of the task and of its curve: `name`, or a default."""
        return self.name or str(getattr(self, self.named_by))

    @property
    def verifier(self) -> str:
        """Name of the verifier of its completions."""
        return self.kind


class GeneratedTask(TaskData):
    """A task of the embedded lab, whose prompts are generated; some reference answers are wrong on purpose."""

    prompts: ObjectCount = 4096
    """Size of the training pool."""
    label_noise: Share = 0.12
    """Share of prompts with a wrong reference answer, in training and held-out; it sets the ceiling."""
    seed: Seed = 0
    """Seed of the prompts, separate from the run's seed, so that runs share one task."""


class ArithmeticTask(GeneratedTask):
    """Generated chains of arithmetic modulo 10, from left to right; some reference answers are wrong on purpose."""

    kind: Literal["arithmetic"] = "arithmetic"
    operations: Annotated[tuple[Few, Few], ORDERED] = (2, 6)
    """Fewest and most operations in a chain."""
    lengths: Literal["uniform", "long-tailed"] = "uniform"
    """Distribution of the number of operations: uniform, or lognormal (sigma 1, median one above the fewest)."""


class ProgramsTask(GeneratedTask):
    """Linear functions modulo 10: the model writes a program from 4 points, which is tested on a hidden one.

    There are 5,600 distinct prompts.
    """

    kind: Literal["programs"] = "programs"


def _day(value: Any) -> str:
    """Return a date as text; TOML has dates of its own."""
    try:
        return "auto" if value == "auto" else date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError(f"got {short(value)}; allowed: auto, or a date such as 2025-01-31") from None


class TextTask(TaskData):
    """Prompts in natural language, and their conversion to tokens."""

    system_prompt: str = ""
    """Text before every prompt; a system message if the tokenizer has a chat template."""
    chat_template: Auto | Literal["never", "always"] = "auto"
    """auto: use the tokenizer's chat template if it has one; always: a tokenizer without one is an error."""
    template_date: Annotated[str, BeforeValidator(_day)] = "auto"
    """Date that a chat template gets when it asks for today's, such as 2025-01-31; some put it before every prompt.
    auto: the date on which the run starts, recorded in config.toml."""
    template_arguments: dict[str, Any] = Field(default={})
    """Arguments of the chat template, such as {enable_thinking = false}: of every prompt, and of the later turns of an
    environment."""
    max_prompt_tokens: Count = 2048
    """Limit in tokens; longer prompts are an error that names their lines, or are left out (`long_prompts`)."""
    long_prompts: Literal["error", "drop"] = "error"
    """Treatment of prompts over the limit."""


class RewardFunction(Custom):
    """Your reward function `package.module:function`, as in TRL: f(prompts, completions, **columns) -> list[float]."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function in addition to the columns; they replace columns of the same name."""

    @model_validator(mode="before")
    @classmethod
    def _function_as_kind(cls, values: Any) -> Any:
        """Read `--reward my:fn --data.reward.params '{...}'`, which puts the name into the field `kind`."""
        if isinstance(values, dict) and ":" in str(values.get("kind", "")):
            return {"function": values["kind"], **values, "kind": "custom"}
        return values


def _as_reward(value: Any) -> Any:
    if callable(value):
        raise ValueError("got a function; allowed: its import path, 'my_rewards:length', which other processes import")
    return {"function": value} if isinstance(value, str) else value


class PromptFile(TextTask):
    """Your prompts or those of a public set, with answers for a verifier or your reward function."""

    kind: Literal["file"] = "file"
    set: str = ""
    """Name of a public set (docs/data.md): sets columns, split and verifier, and the rows if `path` is empty."""
    path: str = ""
    """A JSONL, JSON or Parquet file, a data set on the hub (needs `datasets`), or the name of a public set."""
    subset: str = ""
    """Configuration of a data set on the hub that has several."""
    split: str = "train"
    """Split, for a data set on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a data set on the hub."""
    layout: Auto | Literal["plain", "verl", "open-instruct", "trl"] = "auto"
    """Layout of prompt and answer in the rows, by the name of a trainer. auto: detected from a row's columns."""
    task: Literal["math", "arithmetic", "code", "judge"] = "math"
    """The verifier: math (the answer after the thinking), code (runs programs on tests), judge (a model over HTTP,
    `scoring.judge`) or arithmetic."""
    answer_form: Literal["any", "box", "tag", "hashes", "phrase"] = "any"
    """math: form of an answer that counts (docs/rewards.md). any: each in order, then the last expression."""
    float_tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """code: largest difference of two numbers in outputs and values, absolute, or relative above 1. A column
    `float_tolerance` sets that of a row. 0: the same value."""
    reward: Annotated[RewardFunction | None, BeforeValidator(_as_reward)] = None
    """Your reward function, in place of the verifier: `package.module:function`, or a table with `function` and
    `params`."""
    pass_reward: float = 1.0
    """Smallest reward of your function that counts as passed in the pass rate and the curve."""
    truncated_reward: float | None = 0.0
    """Largest reward of a truncated completion, in the scale of your function. none: it keeps the function's reward. In
    both cases it counts as failed."""
    columns: dict[str, str] = Field(default={})
    """Columns by the names that are used here: {prompt = "question", level = "extra_info.level"}. `prompt` is text or a
    list of chat messages, `answer` the reference answer, `tests` the tests for the verifier code, which needs no answer
    (docs/rewards.md); others are for your reward function. Dots reach into nested columns."""
    answers: Literal["whole", "hashes", "boxed"] = "whole"
    """Position of the answer in the answer column. whole: the whole text. hashes: after the last ####, as in GSM8K.
    boxed: in the last \\boxed{}, as in MATH."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        return with_named_set(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check(self) -> PromptFile:
        if not self.path:
            raise ValueError("path: a value is needed and none was given; allowed: a file, a hub name or a public set")
        return self

    @property
    def curve(self) -> str:
        """The name, or that of the reward function, the public set or the verifier."""
        return self.name or (self.reward.function if self.reward else "") or self.set or self.task

    @property
    def verifier(self) -> str:
        """The verifier, if no reward function replaces it."""
        return self.task


class ReasoningGymTask(TextTask):
    """A procedural task of reasoning-gym, scored in [0, 1] by its `score_answer`."""

    named_by: ClassVar[str] = "dataset"
    kind: Literal["reasoning-gym"] = "reasoning-gym"
    dataset: str
    """Name in reasoning-gym, such as chain_sum."""
    parameters: dict[str, Any] = Field(default={})
    """Parameters of the data set, such as {min_terms = 2, max_terms = 4}."""
    prompts: ObjectCount = 4096
    """Size of the training pool."""
    seed: Seed = 0
    """Seed of the prompts, separate from the run's seed, so that runs share one task."""
    pass_score: Fraction = 1.0
    """Smallest score that counts as passed in the pass rate and the curve; the reward follows the score."""
    system_prompt: str = (
        "Think step by step. Then give the final answer, and nothing else, between <answer> and </answer>."
    )
    """Text before every prompt; a system message if the tokenizer has a chat template."""


TURN_LIMITS = ("turns", "reply_tokens", "reply_s", "reply_threads", "reply_ticks", "start_s", "chat_template")
"""Fields of a RepliedTask that its prompts carry."""


class RepliedTask(TextTask):
    """A task that may be an environment, with the limits of a rollout of several turns (docs/environments.md)."""

    turns: Few = 8
    """Environments: most turns of the policy. `recipe.length` is the limit of each turn. A rollout that has not ended
    after them is truncated."""
    reply_tokens: Count = 256
    """Environments: most tokens of a reply with those of the chat template; a longer reply is cut."""
    reply_s: Positive = 60.0
    """Environments: time limit of a reply, seconds."""
    reply_threads: Few = 1
    """Environments: most replies that a process computes at the same time, in threads; more if replies mostly wait."""
    reply_ticks: Count = 8
    """Environments: decode steps after which a deterministic engine uses a reply; it waits for a later one. Slow
    environments need more."""

    start_s: Positive = 60.0
    """Your code at the start of a run: time limit, seconds, for the creation of the class, for each row, and for the
    first score or reply; for `verifiers`, for loading the environment with its data set."""

    @property
    def limits(self) -> dict[str, Any]:
        """The limits, for the columns of a prompt."""
        dated = {} if self.template_date == "auto" else {"template_date": self.template_date}
        arguments = {"template_arguments": self.template_arguments} if self.template_arguments else {}
        return {name: getattr(self, name) for name in TURN_LIMITS} | dated | arguments


class ServedTask(TextTask):
    """A task whose rollouts are those of programs that call the policy over an endpoint (docs/environments.md)."""

    processes: Few = 16
    """Agents, and episodes of `verifiers` 0.4: most rollouts whose program runs at the same time, divided among the
    generators."""
    rollout_s: Positive = 600.0
    """Time limit of a rollout, seconds, without those in which it waits for the policy only."""

    def served(self, **own: Any) -> dict[str, Any]:
        """Return what a rollout needs, for the columns of a prompt; `own` are the settings of one kind of task."""
        dated = {} if self.template_date == "auto" else {"template_date": self.template_date}
        return {**SERVED, **{name: getattr(self, name) for name in SERVED_FIELDS}, **own, **dated}


SERVED_FIELDS = (
    "processes", "rollout_s", "max_prompt_tokens", "chat_template", "template_arguments", "system_prompt",
)  # fmt: skip
"""Fields of a ServedTask that its prompts carry."""
SERVED: dict[str, Any] = {
    "command": (), "function": "", "model": "policy", "environment": (), "host": "127.0.0.1",
}  # fmt: skip
"""The other settings, for tasks without such fields."""


class EnvironmentTask(RepliedTask, ServedTask):
    """An environment of the `verifiers` package: prompts from its data set, rewards by its rubric."""

    named_by: ClassVar[str] = "environment"
    kind: Literal["verifiers"] = "verifiers"
    environment: str
    """Id of an installed environment or taskset, as `verifiers` takes it."""
    arguments: dict[str, Any] = Field(default={})
    """Arguments of the environment's `load_environment`; with verifiers 0.4, the table [env], such as
    {taskset = {difficulty = "easy"}}."""
    prompts: ObjectCount | Literal["all"] = "all"
    """Size of the training pool, with verifiers 0.4; all: all tasks, except those of evaluations."""
    pass_reward: float = 1.0
    """Smallest reward of the rubric that counts as passed in the pass rate and the curve."""
    truncated_reward: float | None = 0.0
    """Largest reward of a truncated completion, in the scale of the rubric. none: it keeps the rubric's reward. In both
    cases it counts as failed. An episode of several turns keeps its reward."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that an episode of verifiers 0.4 gets, such as the key of a judge. Otherwise it
    gets only those of paths, language and time zone, and no key of the run."""


class CustomTask(RepliedTask):
    """Your task: a class that makes rows and scores completions (docs/extending.md), or replies (environments.md)."""

    kind: Literal["custom"] = "custom"
    function: str
    """`package.module:Class`, importable where the run starts; constructed with `params`, once per process."""
    params: dict[str, Any] = Field(default={})
    """Keyword arguments of the class."""
    prompts: ObjectCount = 4096
    """Size of the training pool."""
    pass_score: Fraction = 1.0
    """Smallest score that counts as passed in the pass rate and the curve; the reward follows the score."""

    @property
    def curve(self) -> str:
        """The name, or that of the class."""
        return self.name or self.function.rpartition(":")[2]


class AgentTask(ServedTask):
    """Your agent: a program that gets a row and the address of an OpenAI endpoint, and returns a reward.

    `max_prompt_tokens` is the limit of a conversation before each turn of the policy.
    """

    kind: Literal["agent"] = "agent"
    command: tuple[str, ...] = ()
    """The program and its arguments, started for each rollout. It gets the row as JSON on standard input, and the
    variables OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL. Its last line of output that is a JSON object has the
    reward: {"reward": 0.5}. `rewards` is a list with one for each turn of the policy."""
    function: str = ""
    """In place of `command`: `package.module:function`, called as f(row, base_url, api_key) in a process for each
    rollout. It returns the reward, or a dict with `reward`; it may be async."""
    path: str
    """A JSONL, JSON or Parquet file with the rows, or a data set on the hub (needs `datasets`). A column `prompt`, if
    there is one, is shown in lists of rollouts."""
    subset: str = ""
    """Configuration of a data set on the hub that has several."""
    split: str = "train"
    """Split, for a data set on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a data set on the hub."""
    turns: Few = 64
    """Most turns of the policy in a rollout; further requests get an error. Turns under way count, and those whose
    connection was closed. `recipe.length` is the limit of each."""
    model: Annotated[str, Field(min_length=1)] = "policy"
    """Name under which the endpoint serves the policy; requests for another model get an error."""
    environment: tuple[str, ...] = ()
    """Names of further environment variables that the program gets, such as the key of a tool. Otherwise it gets only
    those of paths, language and time zone, and no key of the run."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address on which the endpoint listens. Other than loopback, for programs that run elsewhere, such as containers:
    0.0.0.0 for all addresses of this machine; the program then gets loopback. Every request needs the key of its
    rollout."""
    pass_reward: float = 1.0
    """Smallest reward that counts as passed in the pass rate and the curve."""

    @model_validator(mode="after")
    def _check(self) -> AgentTask:
        if bool(self.command) == bool(self.function):
            raise ValueError(
                f"command: got {short(list(self.command))} with function {self.function!r}; allowed: one of them, such "
                'as command = ["python", "agent.py"] or function = "my_agent:run"'
            )
        return self

    @property
    def curve(self) -> str:
        """The name, that of the function, or that of the command's script or program."""
        scripts = [word for word in self.command if word.endswith((".py", ".sh"))]
        program = (scripts or [*self.command, ""])[0].rpartition("/")[2].rpartition(".")
        return self.name or self.function.rpartition(":")[2] or program[0] or program[2]

    @property
    def settings(self) -> dict[str, Any]:
        """What a rollout needs, for the columns of a prompt."""
        return self.served(turns=self.turns, **{name: getattr(self, name) for name in SERVED})


AnyTask = Annotated[
    ArithmeticTask | ProgramsTask | PromptFile | ReasoningGymTask | EnvironmentTask | CustomTask | AgentTask,
    Field(discriminator="kind"),
]


def suite_tables(suites: Any) -> list[dict[str, Any]]:
    """Return the tables of `suites`: tasks that are only evaluated, on all of their prompts.

    Args:
        suites: List of names of sets, files, or tables with the fields of a PromptFile and `samples`.

    Raises:
        ValueError: The value is not such a list.
    """
    if not isinstance(suites, list | tuple):
        raise ValueError(f"suites: got {short(suites)}; allowed: a list of names, files and tables")
    tables = []
    for suite in suites:
        if not isinstance(suite, str | dict):
            raise ValueError(f"suites: got {short(suite)}; allowed: the name of a suite, a file, or a table")
        table = {"path": suite} if isinstance(suite, str) else dict(suite)
        path = str(table.get("path", ""))
        if path not in NAMED_SETS and "name" not in table and "set" not in table:
            table["name"] = path.rpartition("/")[2].partition(".")[0]
        tables.append({**table, "kind": "file", "share": 0.0, "held_out": "all"})
    return tables


def check_tasks(tasks: Sequence[TaskData]) -> None:
    """Check a list of tasks.

    Raises:
        ValueError: There is no task, two tasks have the same name, no share is positive, or a task has no held-out
            prompts.
    """
    if not tasks:
        raise ValueError("data: got no task; allowed: one [data] table, or one [[data]] table for each task")
    names = [task.curve for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"data: got two tasks with the name {twice[0]!r}; give each task a different `name`")
    if not sum(task.share for task in tasks) > 0:
        raise ValueError(
            f"data.share: got {', '.join(f'{task.share:g}' for task in tasks)}; allowed: shares that sum to more than "
            "0, because at least one task must be trained"
        )
    trained = [task for task in tasks if not is_suite(task)]
    if len(trained) == 1 and trained[0].share != 1:
        raise ValueError(
            f"data.share: got {trained[0].share:g} with one task, which gives all prompts; allowed: leave it out, or "
            "add [[data]] tables of other tasks"
        )
    for task in tasks:
        if task.held_out == "all" and task.share:
            raise ValueError(
                f"data.held_out: got 'all' for the task {task.curve!r} with share {task.share:g}; allowed: a number, "
                "or share = 0 for a task that is only evaluated"
            )


def shares(tasks: Sequence[TaskData]) -> dict[str, float]:
    """Return each task's share of the prompts drawn, by name; they sum to one."""
    total = sum(task.share for task in tasks)
    return {task.curve: task.share / total for task in tasks}


def prompts_of_step(tasks: Sequence[TaskData], prompts_per_step: int) -> dict[str, int]:
    """Return the most prompts of each task in a step, by name: so many it must have for training."""
    return {name: math.ceil(share * prompts_per_step) for name, share in shares(tasks).items()}


def is_suite(task: TaskData) -> bool:
    """Return whether a task is only evaluated, on all of its prompts; the run's forecast does not include it."""
    return task.held_out == "all"


def generated_tasks(tasks: Sequence[TaskData]) -> list[GeneratedTask]:
    """Return the tasks whose prompts are generated."""
    return [task for task in tasks if isinstance(task, GeneratedTask)]
