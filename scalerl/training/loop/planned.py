"""What a run finds before it starts: how many prompts its files have, and what a laptop can train."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.training.config.data import GeneratedTask, PromptFile, is_suite
from scalerl.training.config.overrides import fields_given, preset_of, read_config
from scalerl.training.config.run import RunConfig
from scalerl.training.machines.memory import BF16, FP32
from scalerl.training.machines.plan import SpeedInputs, expected_run, in_units
from scalerl.training.machines.speed import CALLS_S, CPU_BYTES_PER_S, CPU_SHARE, Assumptions, Gpu
from scalerl.training.models.sizes import SizedModel, sizes_of
from scalerl.training.placement.sizes import PromptCounts, RunSizes
from scalerl.training.prompts.dataset import PromptSplit
from scalerl.training.prompts.layouts import prompt_rows

MINUTES = 10.0
"""Minutes for which the default for a user's model is chosen on a machine without a GPU."""

LAPTOP_SPEED = Gpu("two cores of a laptop", 60e9, CPU_BYTES_PER_S * BF16 / FP32, CPU_BYTES_PER_S)
"""The machine for which it is chosen. Not the speed of this one: equal commands shall give equal runs."""


class Sizes(NamedTuple):
    """Sizes of a run that demonstrates what the package does.

    Example: Sizes(steps=20, prompts=4, generations=4, thinking=(48, 64), answer=16, held_out=16)
    """

    steps: int
    prompts: int
    generations: int
    thinking: tuple[int, int]
    answer: int
    held_out: int

    def fields(self, rows: int) -> dict[str, Any]:
        """Return the fields of the configuration; `rows` is the number of prompts, 0 if it is unknown."""
        return {
            "steps": self.steps,
            "recipe.prompts_per_step": self.prompts,
            "recipe.generations_per_prompt": self.generations,
            "recipe.length.thinking_tokens": self.thinking,
            "recipe.length.answer_tokens": self.answer,
            "recipe.optimizer.warmup_steps": self.steps // 10,
            "evaluation.every": self.steps // 5,
            "evaluation.prompts": max(1, min(self.held_out, rows // 5)) if rows else self.held_out,
            "checkpoint.every": self.steps // 5,
        }


DEMONSTRATIONS = (
    Sizes(50, 8, 8, (100, 128), 32, 64),
    Sizes(40, 8, 4, (100, 128), 32, 32),
    Sizes(30, 4, 4, (72, 96), 32, 16),
    Sizes(20, 4, 4, (48, 64), 16, 16),
    Sizes(10, 4, 4, (32, 48), 16, 8),
    Sizes(10, 2, 4, (24, 32), 16, 8),
)
"""Sizes below those of the preset `laptop`, of which the first is taken that a laptop trains in `MINUTES`; the last one
if none is. Each has the evaluations that a forecast needs."""


def demonstration(file: Path | None, overrides: Sequence[str] | Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the configuration of a run; without a GPU, the default for a user's model takes about ten minutes.

    Whoever sets the steps or a preset decides about the sizes. Other fields that are set stay as they are.

    Args:
        file: As for `read_config`.
        overrides: As for `read_config`.

    Returns:
        The configuration, and lines that say what such a run is, and the command of the real one.

    Raises:
        ConfigError: As for `read_config`.
    """
    config = read_config(file, overrides)
    given = fields_given(file, overrides)
    if preset_of(file, overrides) != "laptop" or given & {"preset", "steps"}:
        return config, []
    try:
        model = sizes_of(config.model)
    except ConfigError:  # the start says what is wrong with the model
        return config, []
    known = pool_of(config)
    rows = min((known.training[name] + known.held_out[name] for name in known.training), default=0)
    seconds = laptop_seconds(config, model, known)
    for one in DEMONSTRATIONS:
        if seconds <= 60.0 * MINUTES:
            break
        config = read_config(file, overrides, one.fields(rows))
        seconds = laptop_seconds(config, model, pool_of(config))
    recipe = config.recipe
    what = (
        f"{config.steps} updates of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} completions of "
        f"up to {recipe.length.max_tokens} tokens"
    )
    cut = "" if seconds <= 60.0 * MINUTES else (
        f". A model of {model.sizes.params / 1e6:,.0f}M parameters takes {in_units(seconds)} even so; take a smaller "
        "one, or lower recipe.length and evaluation.prompts"
    )  # fmt: skip
    return config, [
        f"demonstration: without a GPU, the default is what a laptop trains in about {MINUTES:g} minutes: {what}. It "
        f"shows that everything works, not how good the model gets{cut}",
        f"the real run, on a GPU: {real_command(file, overrides)}",
    ]


def real_command(file: Path | None, overrides: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the command of a run with the sizes of the preset `small`."""
    if isinstance(overrides, Mapping):
        return "scalerl.train(..., preset='small')"
    words = [word for word in overrides if word not in ("--dry-run", "--all")]
    return shlex.join(["scalerl", "train", *([str(file)] if file else []), *words, "--preset", "small"])


def laptop_seconds(config: RunConfig, model: SizedModel, pool: PromptCounts) -> float:
    """Return the expected duration of a run on a laptop in seconds."""
    speed = Assumptions(LAPTOP_SPEED, CPU_SHARE, CPU_SHARE, step_overhead_s=CALLS_S * model.sizes.layers)
    sizes = RunSizes.of(config, model, prompts=pool)
    return 3600.0 * expected_run(sizes, SpeedInputs(speed)).hours


MOST_READ = 20_000_000
"""Bytes of prompt files up to which a dry run reads them."""


def pool_of(config: RunConfig, split: PromptSplit | None = None) -> PromptCounts:
    """Return how many prompts a planned run trains on and holds out, of the tasks that tell without a tokenizer.

    Without a split, their mean tokens are by the characters of the files that are here.

    Raises:
        ConfigError: A row of a file cannot be read.
    """
    if split is not None:
        training, held_out = (Counter(prompt.task for prompt in part) for part in (split.training, split.held_out))
        prompts = split.all_prompts
        return PromptCounts(training, held_out, sum(len(one.tokens) for one in prompts) / max(1, len(prompts)))
    training, held_out, lengths = Counter(), Counter(), list[int]()
    for task in config.data:
        if isinstance(task, GeneratedTask):
            training[task.curve], held_out[task.curve] = task.prompts, config.evaluation.held_out_of(task)
        elif isinstance(task, PromptFile) and is_readable_file(task.path):
            of_task = [len(row.prompt if isinstance(row.prompt, str) else str(row.prompt)) for row in prompt_rows(task)]
            rows = len(of_task)
            lengths += of_task
            kept = rows if is_suite(task) else config.evaluation.held_out_of(task, rows)
            training[task.curve], held_out[task.curve] = rows - kept, kept
    return PromptCounts(training, held_out, sum(lengths) / len(lengths) / CHARACTERS + TEMPLATE if lengths else 0.0)


CHARACTERS, TEMPLATE = 3.0, 20.0
"""Assumed characters of a token, and tokens that a chat template adds to a prompt, where no tokenizer is read."""


def is_readable_file(path: str) -> bool:
    """Return whether a file of prompts is here and small enough for a dry run to read it."""
    return bool(path) and Path(path).is_file() and Path(path).stat().st_size <= MOST_READ
