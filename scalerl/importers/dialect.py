"""Rows of a log, and the column names of a framework as a record with one instance per source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""Column -> number (or text, in `TEXT_COLUMNS`); a cell that is empty or not a number is absent."""

RUN_COLUMNS = ("run", "run_name", "run_id")
"""Columns that distinguish several runs in one file."""

TEXT_COLUMNS = frozenset({"task", *RUN_COLUMNS})


def flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    """Return a flat row: nested objects become `outer/inner`; the content of `data` (verl) moves to the top level."""
    cells: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells.update(flat(value, prefix if name == "data" else f"{prefix}{name}/"))
        elif (cell := as_cell(name, value)) is not None:
            cells[prefix + name] = cell
    return cells


def as_cell(name: str, value: Any) -> float | str | None:
    """Return a number (NaN included), a text of `TEXT_COLUMNS`, or None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 or value != value else None
    if not isinstance(value, str):
        return None
    if name in TEXT_COLUMNS:
        return value.strip() or None
    try:
        return float(value) if len(value) < 40 else None
    except ValueError:
        return None


AXES = ("device_hours", "flops", "tokens", "compute")
"""Columns with the compute used so far; their values are not converted."""

HELD_OUT, SECOND, OTHER, TRAINING = 0, 1, 2, 3
"""Ranks of a metric: mean score on held-out prompts, a substitute for it, another held-out metric, and reward on
training prompts."""

Prepare = Callable[[list[Row]], tuple[list[Row], tuple[str, ...]]]
"""A function from rows to prepared rows and notes."""

SECONDS = "@seconds"
"""Column that `prepare` adds if training time must be computed from several columns of the log."""


def number(row: Row, name: str) -> float | None:
    """Return a cell as a number, or None if it is absent or not a number."""
    value: Any = row.get(name)
    return value if isinstance(value, float) and value == value else None


def total(row: Row, names: Iterable[str]) -> float:
    """Return the sum of some columns; absent ones count as 0."""
    return sum(number(row, name) or 0.0 for name in names)


def without(whole: str, aside: Sequence[str]) -> Prepare:
    """Return a `prepare` that computes `SECONDS`: a timer minus other timers that it includes."""

    def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
        for row in rows:
            seconds = number(row, whole)
            if seconds is not None:
                row[SECONDS] = seconds - total(row, aside)
        return rows, ()

    return prepare


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
    """Patterns of column names that identify the source; empty if only the file format identifies it."""
    steps: tuple[str, ...]
    """Step columns, best first; if a row lacks the best one, the step is inferred from the next."""
    evaluations: tuple[tuple[str, int], ...]
    """Patterns of metric names, with the task as a named group, and their ranks."""
    about: str
    """Definition of training time in a few words, printed with every import."""
    seconds: tuple[str, ...] = ()
    """Training seconds per step (mean since the last row), best first."""
    clocks: tuple[str, ...] = ()
    """Seconds since an arbitrary start, including evaluation; used if there is no `seconds`."""
    tokens: tuple[str, ...] = ()
    """Total number of tokens."""
    step_tokens: tuple[str, ...] = ()
    """Tokens per step."""
    rename: Callable[[str], str] = str
    """Function that maps a column's name in any logger to the name that the other fields use."""
    prepare: Prepare = lambda rows: (rows, ())
    devices: Callable[[list[Row]], int | None] = lambda rows: None
    """Function that returns the device count; None if the log has too little information."""

    def recognizes(self, names: Iterable[str]) -> list[str]:
        """Return the columns that identify this source."""
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
"""Metric names for an unknown framework."""
