"""What a planned run finds on this machine: its device, and how many prompts its files have. For dry runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from scalerl.config.base import replace
from scalerl.config.data import GeneratedTask, PromptFile, is_suite
from scalerl.config.run import RunConfig
from scalerl.placement.choices import Pool
from scalerl.prompts.dataset import PromptSplit
from scalerl.prompts.layouts import read_rows

MOST_READ = 20_000_000
"""Bytes of prompt files up to which a dry run reads them."""


def resolved_here(config: RunConfig) -> RunConfig:
    """Return a configuration with the device of this machine, unless it is planned for other machines."""
    from scalerl.training.resolve import resolve_hardware

    if config.placement.backend != "local" or config.hardware.device == "cuda":
        return config
    return replace(config, hardware=resolve_hardware(config.hardware))


def evaluated_sequences(config: RunConfig, pool: Pool) -> int:
    """Return the sequences of an evaluation of a planned run."""
    evaluation = config.evaluation
    return sum(
        pool.held_out.get(task.curve, evaluation.held_out_of(task)) * evaluation.samples_of(task)
        for task in config.data
    )


def pool_of(config: RunConfig, split: PromptSplit | None = None) -> Pool:
    """Return how many prompts a planned run trains on and holds out, of the tasks that tell without a tokenizer.

    Raises:
        ConfigError: A row of a file cannot be read.
    """
    if split is not None:
        training, held_out = (Counter(prompt.task for prompt in part) for part in (split.training, split.held_out))
        return Pool(training, held_out)
    training, held_out = Counter(), Counter()
    for task in config.data:
        if isinstance(task, GeneratedTask):
            training[task.curve], held_out[task.curve] = task.prompts, config.evaluation.held_out_of(task)
        elif isinstance(task, PromptFile) and is_readable(task.path):
            rows = sum(1 for _ in read_rows(task))
            kept = rows if is_suite(task) else config.evaluation.held_out_of(task, rows)
            training[task.curve], held_out[task.curve] = rows - kept, kept
    return Pool(training, held_out)


def is_readable(path: str) -> bool:
    """Return whether a file of prompts is here and small enough for a dry run to read it."""
    return bool(path) and Path(path).is_file() and Path(path).stat().st_size <= MOST_READ
