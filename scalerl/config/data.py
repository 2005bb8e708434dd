"""Which prompts a run trains on: tasks that are generated, a mixture of them, or a file. It knows no run and no task.

These are the sections that `data` in config.toml may hold; config.py puts them into a whole run.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scalerl.config.base import Part
from scalerl.config.recipe import Count, Natural, Share


class ArithmeticTask(Part):
    """Chained arithmetic modulo 10, left to right, generated; some reference answers are wrong on purpose."""

    kind: Literal["arithmetic"] = "arithmetic"
    operations: tuple[Count, Count] = (2, 6)
    """Fewest and most operations in a chain."""
    prompts: Count = 4096
    """Size of the training pool."""
    label_noise: Share = 0.12
    """Share of prompts, in training and held-out alike, whose reference answer is wrong: it sets the ceiling."""
    seed: Natural = 0
    """Seed of the prompts, apart from the run's seed, so that runs share one task."""


class ProgramsTask(Part):
    """Linear functions modulo 10 to be written as programs from shown points; each program is run on a hidden one."""

    kind: Literal["programs"] = "programs"
    points: Annotated[int, Field(ge=3, le=5)] = 4
    """Points shown: x = 0, x = 1 and others. There are 800 distinct prompts with 3, 5,600 with 4, 33,600 with 5."""
    prompts: Count = 4096
    """Size of the training pool."""
    label_noise: Share = 0.12
    """Share of prompts, training and held-out alike, whose hidden point is wrong: no right program passes there."""
    seed: Natural = 0
    """Seed of the prompts, apart from the run's seed, so that runs share one task."""


class MixedTasks(Part):
    """Both generated tasks in one run, with a held-out set, a point an evaluation and a curve for each."""

    kind: Literal["mixed"] = "mixed"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of programs among the prompts drawn, in every batch of them up to rounding."""
    arithmetic: ArithmeticTask = ArithmeticTask()
    """The chains."""
    programs: ProgramsTask = ProgramsTask()
    """The programs."""


GeneratedTask = ArithmeticTask | ProgramsTask
GeneratedData = ArithmeticTask | ProgramsTask | MixedTasks


def task_shares(data: GeneratedData) -> list[tuple[GeneratedTask, float]]:
    """Return the tasks of a generated data section, each with its share of the prompts drawn."""
    if isinstance(data, MixedTasks):
        return [(data.arithmetic, 1.0 - data.share), (data.programs, data.share)]
    return [(data, 1.0)]


class PromptFile(Part):
    """Prompts of your own, with answers that a verifier or your reward function judges."""

    kind: Literal["file"] = "file"
    path: str
    """A JSONL file, one object a line, or a data set on the hub (needs the `datasets` package)."""
    split: str = "train"
    """Split, for a data set on the hub."""
    task: Literal["math", "arithmetic"] = "math"
    """The verifier: math (Math-Verify on the text after the thinking) or arithmetic."""
    reward: str | None = None
    """`package.module:function` in TRL's form f(prompts, completions, **columns) -> list[float]; replaces the task."""
    pass_reward: float = 1.0
    """A reward of your function at or above this counts as a pass in the pass rate and the curve."""
    prompt_column: str = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    answer_column: str = "answer"
    """Column with the reference answer."""
    system_prompt: str = ""
    """Put before every prompt, as a system message where the tokenizer has a chat template."""
    chat_template: Literal["auto", "never"] = "auto"
    """auto: use the tokenizer's chat template where it has one."""
    max_prompt_tokens: Count = 2048
    """Tokens; longer prompts are an error that names their lines, or are left out (`long_prompts`)."""
    long_prompts: Literal["error", "drop"] = "error"
    """What happens to prompts over the limit."""
