"""Recognizes the trainer of a log and chooses the metric that becomes the curve; the others are named with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.logs.dialect import Dialect, steps_of
from scalerl.reading.logs.dialects import GENERAL_STEPS, GENERAL_TABLE, IMPORTERS
from scalerl.reading.tables.errors import LIST, CurveError, LogError, TooEarly
from scalerl.reading.tables.names import (
    EVALUATION_WORD,
    HELD_OUT,
    MINOR,
    OTHER,
    SECOND,
    TELLING,
    TRAINING,
    is_evaluation,
    names_no_prompts,
    rank_of,
)
from scalerl.reading.tables.table import Table, key

LISTED = 12
"""Number of candidates that an error lists."""

ENOUGH_POINTS = 5
"""Evaluations of a held-out curve that can be fitted; with fewer, the reward of training is used, if it has them."""

FEW_ROWS = 20
"""Rows with a training reward below which it is not used unasked, if the run evaluates without logging its score."""

DOMINANT = 3
"""A dialect is the log's if it has this multiple of the marks of any other."""

TASK = "task"
"""Column of words with the task of a row."""


def find_dialect(source: str | None, table: Table) -> Dialect:
    """Return the given dialect, or the one that the columns identify.

    Raises:
        CurveError: There is no dialect of this name, or two fit the columns.
    """
    if source is not None:
        if source not in IMPORTERS:
            raise CurveError(f"unknown source {source!r}; allowed: {', '.join(IMPORTERS)}")
        return IMPORTERS[source]
    marks = {dialect.name: dialect.recognizes(table.names) for dialect in IMPORTERS.values()}
    marks = {label: columns for label, columns in marks.items() if columns}
    extended = {other for label in marks for other in IMPORTERS[label].extends}
    marks = {label: columns for label, columns in marks.items() if label not in extended}
    most = max(map(len, marks.values()), default=0)
    marks = {label: columns for label, columns in marks.items() if DOMINANT * len(columns) > most}
    if len(marks) > 1:
        matches = "; ".join(f"{label} by {', '.join(columns[:3])}" for label, columns in marks.items())
        best = max(marks, key=lambda label: len(marks[label]))
        text = f"{table.name} could be from {len(marks)} sources ({matches}); choose one with source= (--from)"
        raise LogError(text, add=("--from", best))
    return IMPORTERS[next(iter(marks))] if marks else GENERAL_TABLE


@dataclass(frozen=True)
class Candidate:
    """One metric of one task.

    Example:
        Candidate(metric="val-core/gsm8k/acc/mean@8", task="gsm8k", rank=0, count=41)
    """

    metric: str
    task: str
    rank: int
    count: int
    why: str = ""
    """What shows whether the prompts are held out, if the name does not."""

    @property
    def training(self) -> bool:
        """Whether this is a reward of training, not a score on held-out prompts."""
        return self.rank >= TRAINING

    def __str__(self) -> str:
        # the task is left out if it is part of the metric's name
        aside = f", task {self.task}" if self.task and f"/{self.task}/" not in f"{self.metric}/" else ""
        kind = "training reward, " if self.training else ""
        return f"{self.metric} ({kind}{self.count} points{aside})"


def candidates(table: Table, dialect: Dialect) -> list[Candidate]:
    """Return all metrics of a log that could become the curve, the most plausible first."""
    ranks = {name: rank_and_task for name in table.names if (rank_and_task := dialect.rank(name)) is not None}
    parts = [name for name, (rank, _) in ranks.items() if rank < TRAINING and key(name).startswith("eval_rewards_")]
    if len(parts) == 1 and any(key(name) == "eval_reward" for name in ranks):
        del ranks[parts[0]]  # the only reward function of TRL equals eval_reward
    metrics, pulse, stepped_N = [], training_pulse(table), rows_with_step(table)
    by_task = table.labels(TASK) if TASK in table.words else None
    for name, (rank, task) in ranks.items():
        why = ""
        if names_no_prompts(name) and not dialect.defines(name):
            held_out, why = prompts_of(table, name, pulse)
            if held_out:
                rank = OTHER if dialect.metrics or rank == MINOR else HELD_OUT
        if task or by_task is None:
            metrics.append(Candidate(name, task, rank, table.count(name), why))
        else:
            present_N = table.present(name)
            names = dict.fromkeys("" if word is None else str(word) for word in by_task[present_N])
            for word in names:
                count = int(np.sum((by_task == (word or None)) & present_N))
                metrics.append(Candidate(name, word, rank, count, why))
    return sorted(metrics, key=lambda candidate: preference(table, candidate, stepped_N))


RARER = 0.5
"""Share of the steps of training in which a score of held-out prompts is logged at most."""


def training_pulse(table: Table) -> str:
    """Return the loss or reward of training that is logged most often; empty without one."""
    training = [n for n in table.names if "loss" in key(n) or (rank_of(n) == TRAINING and not names_no_prompts(n))]
    return max((n for n in training if not is_evaluation(n)), key=table.count, default="")


def rows_with_step(table: Table) -> NDArray[np.bool_]:
    """Return the rows with a step of training, shape (N,)."""
    columns = [name for group in steps_of(table, GENERAL_STEPS[:1]) for name in group]
    return np.any([table.present(name) for name in columns], axis=0) if columns else np.zeros(table.size, dtype=bool)


def prompts_of(table: Table, name: str, pulse: str) -> tuple[bool, str]:
    """Return whether a score whose name does not say so is one of held-out prompts, and what shows it.

    It is the reward of training, unless it is logged more rarely than `pulse`, a column of training, or in other rows.
    """
    count, steps = table.count(name), table.count(pulse)
    if (stderr := table.find("stderr")) is not None and table.count(stderr) >= RARER * count:
        return True, "it has standard errors"
    if count <= RARER * steps:
        return True, f"it is logged {count} times, {pulse} {steps} times"
    rows_N = table.present(name)
    both_N = rows_N & table.present(pulse)
    if steps and not both_N.any():
        return True, f"its rows are not those of {pulse}"
    if steps and not both_N[np.argmax(rows_N)]:
        return True, f"its first value is before the first {pulse}"
    return False, "its name has no word of evaluation, such as eval or test"


def preference(table: Table, candidate: Candidate, stepped_N: NDArray[np.bool_]) -> tuple[object, ...]:
    """Return the key by which candidates are sorted: a telling, general, often and well measured metric first.

    A metric without a step in any of its rows, although other rows have one, as of single samples, comes later.
    """
    name = key(candidate.metric)
    general = "all" in (candidate.task, *candidate.metric.split("/")) or not candidate.task
    samples = re.search(r"_at_(\d{1,9})(?:_|$)", name)
    telling = bool(TELLING.search(candidate.metric + candidate.task))
    # of equal ones, the reward comes before its return, which may include a penalty
    last = (-candidate.count, -int(samples[1]) if samples else 0, "return" in name, candidate.metric)
    stepless = bool(stepped_N.any()) and not (table.present(candidate.metric) & stepped_N).any()
    return (candidate.rank, stepless, not telling, not general, *last)


def choose(table: Table, dialect: Dialect, metric: str | None, task: str | None) -> Candidate:
    """Return the requested candidate, or the most plausible one.

    Raises:
        CurveError: There is none, or the rows have several tasks; the message lists them.
    """
    metrics = candidates(table, dialect)
    if metric is None:
        suitable = metrics
    else:
        column = table.find(metric)
        suitable = [c for c in metrics if c.metric == column]
        if not suitable and column is not None:
            rank = dialect.rank(column)
            suitable = [Candidate(column, "", OTHER if rank is None else rank[0], table.count(column))]
    if not suitable:
        example = metrics[0].metric if metrics else next(iter(values_of(table)), "")
        add = ("--metric", example) if example and not declined(table, dialect, metric) else ()
        raise TooEarly(
            f"{table.name} {missing_text(table, dialect, metric, metrics)}",
            add=add,
            without="--metric" if metric else "",
            command="" if add else LIST,
        )
    if metric is None and (losses := falling_loss(table, suitable[0])):
        raise TooEarly(
            f"{table.name} is a log of supervised training: {losses} falls, and no column is of sampled answers, which "
            f"a forecast is about; to fit {suitable[0].metric} all the same, choose it by metric= (--metric)",
            add=("--metric", suitable[0].metric),
        )
    of_task = [c for c in suitable if task in (None, c.task)]
    if not of_task:
        tasks = ", ".join(sorted({c.task for c in suitable if c.task})) or "one task without a name"
        raise TooEarly(f"{table.name} has no task {task!r}; it has {tasks}")
    best = of_task[0]
    if metric is None and best.count < ENOUGH_POINTS:
        best = next((c for c in of_task if c.count >= ENOUGH_POINTS), best)
    if metric is None and best.training and best.count < FEW_ROWS and (scoreless := scoreless_evaluation(table)):
        raise TooEarly(
            f"{table.name} evaluates ({scoreless}) but logs no score of it, and {best.count} rows with the training "
            f"reward are few; log the score, or use the training reward",
            add=("--metric", best.metric),
        )
    same = [c for c in of_task if c.metric == best.metric]
    if len(same) > 1:
        tasks = name_list([c.task or "(no name)" for c in same])
        raise LogError(
            f"{table.name} has {len(same)} tasks of {best.metric}: {tasks}; choose by task= (--task)",
            add=("--task", same[0].task or same[1].task),
        )
    return best


SAMPLED = re.compile(
    r"reward|return|rollout|(?:^|_)kl(?:_|$)|advantage|completion|response|entropy|episode|polic|actor|critic|pass|succe|sol"
    r"v|(?:^|_)win|grpo|ppo|reinforce|sampl|judge|generated|generation|generator|score|avg_at|mean_at|clip_?(?:ratio|frac)"
)
"""Words of training on sampled answers, in a name as `table.key` writes it."""


def falling_loss(table: Table, best: Candidate) -> str:
    """Return the loss of supervised training that falls, if nothing in the log is of sampled answers; else ""."""
    if any(SAMPLED.search(key(name)) for name in table.names) or best.task:
        return ""
    for name in (name for name in table.names if "loss" in key(name)):
        value_K = table.cells[name][1][np.isfinite(table.cells[name][1])]
        if third := len(value_K) // 3:
            first, last = np.median(value_K[:third]), np.median(value_K[-third:])
            if first > 0 and last < 0.9 * first:
                return name
    return ""


def scoreless_evaluation(table: Table) -> str:
    """Return a column of an evaluation, if the log has one but no score of it; a single value is a setting.

    Lengths and counts do not show one: `val` may be a word for values, as in open-instruct's names.
    """
    ends = ("loss", "time", "per_second", "kl")
    names = (name for name in table.names if EVALUATION_WORD.match(name) and key(name).endswith(ends))
    return next((name for name in names if table.count(name) > 1), "")


def declined(table: Table, dialect: Dialect, metric: str | None) -> bool:
    """Return whether a log without a metric is one of supervised training, DPO or a reward model."""
    return metric is None and (dialect.supervised or any("loss" in key(name) for name in table.names))


def missing_text(table: Table, dialect: Dialect, metric: str | None, metrics: list[Candidate]) -> str:
    """Return what is absent from a log and what it has instead, for an error message."""
    names = [c.metric for c in metrics] or table.names
    if metric is None:
        if declined(table, dialect, metric):
            return (
                "is a log of supervised training, DPO or a reward model: it has losses and no score of sampled "
                "answers, which a forecast needs"
            )
        title = f" of {dialect.title}" if dialect.title else ""
        return f"has no score or reward{title}{column_hint(table)}"
    near = difflib.get_close_matches(metric[:200], names[:2000], n=LISTED, cutoff=0.3) or names[:LISTED]
    return f"has no metric {metric!r}" + (f"; it has {name_list(near)}" if near else column_hint(table))


def others(table: Table, dialect: Dialect, candidate: Candidate) -> list[Candidate]:
    """Return the metrics that could have been chosen instead."""
    best = max(candidate.rank, SECOND if candidate.rank < TRAINING else MINOR)
    return [c for c in candidates(table, dialect) if c.rank <= max(best, TRAINING) and c != candidate]


def name_list(items: Sequence[object], most: int = LISTED) -> str:
    """Return the first of some names or candidates for a message."""
    return ", ".join(map(str, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


NO_METRIC = re.compile(r"(?:^|_)(?:step|steps|epoch|time|timestamp|runtime|lr|learning_rate|iteration|seed)(?:_|$)")
"""Names of steps, times and settings."""


def column_hint(table: Table) -> str:
    """Return a list of the log's columns for an error message, with an example of a choice."""
    names = values_of(table) or [name for name in table.names if not name.startswith("@")]
    return f"; its columns are {name_list(names)}; choose one by metric= (--metric)" if names else ""


def values_of(table: Table) -> list[str]:
    """Return the columns that may be metrics, those with several values first."""
    names = [name for name in table.names if not name.startswith("@") and not NO_METRIC.search(key(name))]
    return sorted(names, key=lambda name: len(np.unique(table.cells[name][1][:100])) < 2)
