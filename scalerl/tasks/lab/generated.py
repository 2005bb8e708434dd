"""The tasks whose prompts are generated, by name: rows, traces to learn from, steps to be tested on.

A new one is a file beside this and an entry in GENERATED; its settings are a section in data.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from scalerl.config import WarmStart
from scalerl.config.data import TaskData
from scalerl.config.data import generated as generated_tasks
from scalerl.tasks.lab import arithmetic, programs

Pairs = Iterator[tuple[str, str]]


class Generated(NamedTuple):
    """What a generated task can do; each function takes the task's settings."""

    rows: Callable[[Any, int], list[dict[str, str]]]
    """(settings, count): distinct prompts with reference answers."""
    traces: Callable[[Any, WarmStart, float, object], Pairs]
    """(settings, warm start, noise, seed): prompts and completions without end."""
    facts: Callable[[Any], list[tuple[str, str]]]
    """Text up to the result of a single step, and the right digit."""
    taught: Callable[[Any], list[Any]]
    """The settings that the traces depend on, for the name of a cached warm start."""


GENERATED: dict[str, Generated] = {
    "arithmetic": Generated(arithmetic.rows, arithmetic.traces, lambda task: arithmetic.facts(), arithmetic.taught),
    "programs": Generated(programs.rows, programs.traces, programs.facts, lambda task: [task.points]),
}


def traces(data: Sequence[TaskData], start: WarmStart, noise: float, seed: object) -> Pairs:
    """Yield traces of the tasks in turn, whatever their shares, so that runs of all shares begin with one model."""
    tasks = sorted(generated_tasks(data), key=lambda task: task.kind)  # so that the order of the tables is no setting
    sources = [GENERATED[task.kind].traces(task, start, noise, seed) for task in tasks]
    return chain.from_iterable(zip(*sources, strict=True))
