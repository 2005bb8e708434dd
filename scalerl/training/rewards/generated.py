"""Registry of the tasks with generated prompts: rows, traces for the warm start, and single operations for its test.

A new task is a file in this folder, an entry in GENERATED, and a section with its settings in data.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from scalerl.training.config import WarmStart
from scalerl.training.config.data import TaskData, generated_tasks
from scalerl.training.rewards import arithmetic, programs

Pairs = Iterator[tuple[str, str]]


class Generated(NamedTuple):
    """The functions of a generated task."""

    rows: Callable[[Any, int], list[dict[str, str]]]
    """(settings, count): distinct prompts with reference answers."""
    traces: Callable[[Any, WarmStart, float, object], Pairs]
    """(settings, warm start, noise, seed): endless prompts and completions."""
    facts: Callable[[], list[tuple[str, str]]]
    """Text up to the result of a single operation, and the right digit."""
    taught: Callable[[Any], list[Any]]
    """The settings that determine the traces, for the name of a cached warm start."""


GENERATED: dict[str, Generated] = {
    "arithmetic": Generated(arithmetic.rows, arithmetic.traces, arithmetic.facts, arithmetic.taught),
    "programs": Generated(programs.rows, programs.traces, programs.facts, lambda task: [programs.POINTS]),
}


def traces(data: Sequence[TaskData], start: WarmStart, noise: float, seed: object) -> Pairs:
    """Yield traces of the tasks in turn. Shares have no effect, so that runs of all shares start from one model."""
    tasks = sorted(generated_tasks(data), key=lambda task: task.kind)  # so that the order of the tables has no effect
    sources = [GENERATED[task.kind].traces(task, start, noise, seed) for task in tasks]
    return chain.from_iterable(zip(*sources, strict=True))
