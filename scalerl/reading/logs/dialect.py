"""The record of a trainer's column names, and patterns of names that allow for the spelling of any logger."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from scalerl.reading.tables.names import HELD_OUT, MINOR, NO_SCORE, OTHER, TRAINING, rank_of
from scalerl.reading.tables.table import WRAPPERS, Table, key

TOKEN = re.compile(r"<(\w+)>")
WRAPPER = re.compile(rf"(?:{'|'.join(WRAPPERS)})(?:\s*/\s*|[._])", re.IGNORECASE)
"""A prefix that a wrapper puts before the names of a trainer, `metrics/` or `train_`."""
ANY_SEPARATOR = r"(?:\s*/\s*|[._\-\s:])"


@lru_cache(maxsize=4096)
def pattern(text: str, loose: bool) -> re.Pattern[str]:
    """Return the expression of a name in which `<task>` is any text, `<n>` a number and any other `<x>` one part.

    Args:
        text: A name such as `eval/<task>/avg@<n>`; parentheses, bars and question marks are those of expressions.
        loose: Whether separators may be those of another logger: `eval_aime_avg_at_8`, `eval / aime / avg@8`.
    """
    parts = []
    for number, part in enumerate(TOKEN.split(text)):
        if number % 2:
            expression = ".+?" if part == "task" or loose else "[^/]+?"
            parts.append(rf"(?P<{part}>{expression})" if part == "task" else r"\d+" if part == "n" else expression)
        elif loose:
            parts.append(re.sub(r"[/_.\-]|@", lambda m: r"(?:@|_at_)" if m[0] == "@" else ANY_SEPARATOR, part))
        else:
            parts.append(re.sub(r"[.\-]", r"\\\g<0>", part))
    return re.compile("".join(parts), re.IGNORECASE if loose else 0)


def match(text: str, name: str) -> re.Match[str] | None:
    """Return the match of a name with a pattern: in its own spelling, in that of another logger, within a wrapper's."""
    result = pattern(text, False).fullmatch(name) or pattern(text, True).fullmatch(name)
    if result is None and (wrapper := WRAPPER.match(name)) is not None:
        return pattern(text, True).fullmatch(name[wrapper.end() :])
    return result


@dataclass(frozen=True)
class Dialect:
    """The columns of one trainer.

    Example:
        Dialect(name="skyrl", title="SkyRL", source="NovaSky-AI/SkyRL skyrl/train/trainer.py",
                marks=("timing/sync_weights",), steps=(("trainer/global_step",),),
                metrics=(("eval/<task>/avg_score", HELD_OUT),), seconds=("timing/step",),
                aside=("timing/save_checkpoints",), about="timing/step")
    """

    name: str
    """Name for `--from`."""
    title: str
    """Name of the trainer in text."""
    source: str
    """Repository and file from which the names come."""
    marks: tuple[str, ...]
    """Patterns of column names that identify the trainer; empty: it is found by another one's marks, or by none."""
    metrics: tuple[tuple[str, int], ...]
    """Patterns of metric names, with the task as `<task>`, and their ranks."""
    steps: tuple[tuple[str, ...], ...] = ()
    """Step columns. Those in one group count the same and never share a row; a row that lacks the first group gets its
    step from the next."""
    seconds: tuple[str, ...] = ()
    """Training seconds per step (mean since the last row), best first."""
    parts: tuple[str, ...] = ()
    """Timers whose sum is the time of a step, if there is no column in `seconds`."""
    aside: tuple[str, ...] = ()
    """Timers of evaluation and checkpoints, which `seconds` may include; if so, they are subtracted."""
    clocks: tuple[str, ...] = ()
    """Seconds since an arbitrary start, including evaluation; used if there is no time per step."""
    tokens: tuple[str, ...] = ()
    """Total number of tokens."""
    step_tokens: tuple[str, ...] = ()
    """Tokens per step; several columns of one group are added, as `a + b`."""
    no_metrics: str = ""
    """Expression of names that are no metrics, although a pattern of `metrics` fits."""
    from_zero: bool = False
    """Whether the row of step s ends after s + 1 updates, if the first step is 0."""
    evaluates_after: bool = False
    """Whether the evaluation of step s then takes place after s + 1 updates, too."""
    evaluation_steps: tuple[str, ...] = ()
    """Patterns of columns with the number of updates of an evaluated model, if its row may have another step."""
    extends: tuple[str, ...] = ()
    """Dialects whose marks this one has too."""
    about: str = ""
    """What counts as training time, printed with every import."""
    ranges: tuple[tuple[str, tuple[float, float]], ...] = ()
    """Known ranges of metrics other than [0, 1]."""
    extremes: tuple[tuple[str, str, str], ...] = ()
    """Metrics whose smallest and largest single values are logged: pattern, column of the minimum and maximum."""
    supervised: bool = False
    """Whether these are logs of supervised training, DPO or a reward model, which have no curve of a reward."""

    def recognizes(self, names: Iterable[str]) -> list[str]:
        """Return the columns that identify this trainer."""
        return [name for name in names if any(match(mark, name) for mark in self.marks)]

    def defines(self, name: str) -> bool:
        """Return whether the trainer's own metrics have this name."""
        return any(match(text, name) for text, _ in self.metrics)

    def rank(self, name: str) -> tuple[int, str] | None:
        """Return the rank and the task of a column, or None if it is no metric.

        Names without a pattern are ranked as those of an unknown trainer, below the trainer's own.
        """
        if self.supervised:
            return None
        if self.no_metrics and re.search(self.no_metrics, key(name)):
            return None
        for text, rank in self.metrics:
            if match_of_name := match(text, name):
                task = match_of_name.groupdict().get("task") or ""
                return None if task and text.endswith("<task>") and NO_SCORE.search(key(task)) else (rank, task)
        rank_or_none = rank_of(name)
        if rank_or_none is None or not self.metrics:
            return None if rank_or_none is None else (rank_or_none, "")
        return {HELD_OUT: OTHER, TRAINING: MINOR}.get(rank_or_none, rank_or_none), ""


def steps_of(table: Table, groups: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the step columns that a log has, by group."""
    columns = [list(dict.fromkeys(c for name in group if (c := table.find(name)) is not None)) for group in groups]
    return [group for group in columns if group]
