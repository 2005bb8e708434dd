"""What a framework calls things: a record of column names, filled in once for each source. Reads nothing itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.importers.rows import Row

HELD_OUT, SECOND, OTHER, TRAINING = 0, 1, 2, 3
"""Ranks of a metric: mean score on held-out prompts; one to take where that is missing; another held-out figure; the
reward on training prompts."""

Prepare = Callable[[list[Row]], tuple[list[Row], tuple[str, ...]]]
"""Rows to rows with what needs more than a name, and notes."""

SECONDS = "@seconds"
"""Column that ``prepare`` adds where training time is not a column of the log but a difference of some."""


def number(row: Row, name: str) -> float | None:
    """A cell as a number, or None where it is absent or no number."""
    value: Any = row.get(name)
    return value if isinstance(value, float) and value == value else None


def total(row: Row, names: Iterable[str]) -> float:
    """The sum of some columns, absent ones left out."""
    return sum(number(row, name) or 0.0 for name in names)


def as_they_are(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Rows that need no preparation."""
    return rows, ()


def without(whole: str, aside: Sequence[str]) -> Prepare:
    """How to make ``SECONDS`` of a timer that includes others, such as those of checkpoints."""

    def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
        for row in rows:
            seconds = number(row, whole)
            if seconds is not None:
                row[SECONDS] = seconds - total(row, aside)
        return rows, ()

    return prepare


def unknown(rows: list[Row]) -> int | None:
    """The device count of a log that does not tell it."""
    return None


@dataclass(frozen=True)
class Dialect:
    """The columns of one source.

    Example:
        Dialect(name="skyrl", marks=(r"timing/sync_weights",), steps=("trainer/global_step",),
                evaluations=((r"eval/(?P<task>.+)/avg_score", HELD_OUT),), seconds=("@seconds",),
                about="timing/step without timing/save_checkpoints")
    """

    name: str
    marks: tuple[str, ...]
    """Patterns of column names that give the source away; none where only the file's layout does."""
    steps: tuple[str, ...]
    """Step columns, best first; where a row has not the best one it is inferred from the next."""
    evaluations: tuple[tuple[str, int], ...]
    """Patterns of metric names, the task as a named group, each with its rank."""
    about: str
    """What counts as training time, in one clause: said with every import."""
    seconds: tuple[str, ...] = ()
    """Training seconds of one step (of the mean step since the last row), best first."""
    clocks: tuple[str, ...] = ()
    """Seconds since some start, evaluation included; used where there is no ``seconds``."""
    tokens: tuple[str, ...] = ()
    """Tokens so far."""
    step_tokens: tuple[str, ...] = ()
    """Tokens of one step."""
    rename: Callable[[str], str] = str
    """A column's name in one logger to its name in another, which the other fields use."""
    prepare: Prepare = as_they_are
    devices: Callable[[list[Row]], int | None] = unknown
    """The device count, where the log implies it."""

    def recognises(self, names: Iterable[str]) -> list[str]:
        """The columns that give this source away."""
        pattern = re.compile("|".join(f"(?:{mark})" for mark in self.marks) or r"(?!)")
        return [name for name in names if pattern.fullmatch(name)]


GENERIC_EVALUATIONS = (
    (r"pass_rate|accuracy|success_rate", HELD_OUT),
    (r"(?:.*/)?(?:eval|val|test|valid|validation|heldout|held_out)[/_](?:(?P<task>[^/]+)/)?"
     r"(?:pass_rate|pass@1|accuracy|acc|reward|score|scores|success_rate|success|mean_reward)(?:[/_]mean)?", HELD_OUT),
    (r"(?:.*/)?(?:eval|val|test|valid|validation|heldout|held_out)[/_].+", OTHER),
    (r"metric|score|reward", OTHER),
    (r"(?:train/)?(?:reward|rewards/mean|reward/mean)", TRAINING),
)  # fmt: skip
"""Metric names where the framework is not known."""
