"""Chooses the metric of a log that becomes the curve; if several are equally plausible, an error lists them."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scalerl.importers.containers import names_of
from scalerl.importers.dialect import OTHER, TRAINING, Dialect, Row, number
from scalerl.scaling import CurveError

LISTED = 12
"""Number of candidates that an error lists."""
TELLING = re.compile(r"acc|correct|solve|math|pass|success|verif", re.IGNORECASE)
"""Names of metrics that are listed first within a rank, for example before a format reward."""


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

    def __str__(self) -> str:
        # the task is left out if it is part of the metric's name
        aside = f", task {self.task}" if self.task and f"/{self.task}/" not in f"{self.metric}/" else ""
        return f"{self.metric} ({self.count} points{aside})"


def candidates(rows: list[Row], dialect: Dialect) -> list[Candidate]:
    """Return all metrics of a log that could become the curve, the most plausible first."""
    patterns = [(re.compile(pattern), rank) for pattern, rank in dialect.evaluations]
    matched: dict[str, tuple[int, str]] = {}
    for name in names_of(rows):
        for pattern, rank in patterns:
            if match := pattern.fullmatch(name):
                matched[name] = (rank, match.groupdict().get("task") or "")
                break
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for name in matched.keys() & row.keys():
            if number(row, name) is not None:
                counts[name, matched[name][1] or str(row.get("task", ""))] += 1
    ranked = [Candidate(name, task, matched[name][0], count) for (name, task), count in counts.items()]
    return sorted(ranked, key=lambda c: (c.rank, not TELLING.search(c.metric + c.task), -c.count, c.metric, c.task))


def choose(rows: list[Row], dialect: Dialect, metric: str | None, task: str | None, source: str) -> Candidate:
    """Return the requested candidate, or the only one.

    Raises:
        CurveError: There is none, or there are several; the message lists them.
    """
    known = candidates(rows, dialect)
    if metric is None:
        suitable = [c for c in known if c.rank < TRAINING]
    else:
        counts = Counter(str(row.get("task", "")) for row in rows if number(row, metric) is not None)
        suitable = [c for c in known if c.metric == metric]
        suitable = suitable or [Candidate(metric, name, OTHER, count) for name, count in counts.items()]
    if not suitable:
        raise CurveError(f"{source} has no {absent(rows, dialect, metric, known)}")
    of_task = [c for c in suitable if task in (None, c.task)]
    if not of_task:
        tasks = ", ".join(sorted({c.task for c in suitable if c.task})) or "one task without a name"
        raise CurveError(f"{source} has no task {task!r}; it has {tasks}")
    best = [c for c in of_task if c.rank == of_task[0].rank]
    if len(best) > 1:
        how = "task= (--task)" if len({c.metric for c in best}) == 1 else "metric= (--metric) or task= (--task)"
        raise CurveError(f"{source} has {len(best)} evaluations; choose by {how}, most plausible first: {listed(best)}")
    return best[0]


def absent(rows: list[Row], dialect: Dialect, metric: str | None, known: list[Candidate]) -> str:
    """Return what is absent from a log and what it has instead, for an error message."""
    names = [c.metric for c in known]
    if metric is None:
        training = f"; it has the training reward {names[0]}: name it with metric= (--metric)" if names else ""
        hint = training or column_hint(rows)
        return f"evaluation metric of {dialect.name}{hint}. A curve needs scores on held-out prompts"
    near = difflib.get_close_matches(metric, names or names_of(rows), n=LISTED, cutoff=0.3) or names[:LISTED]
    return f"metric {metric!r}" + (f"; it has {', '.join(near)}" if near else column_hint(rows))


def others(rows: list[Row], dialect: Dialect, chosen: Candidate) -> list[str]:
    """Return the names of the held-out metrics that were not chosen."""
    return [c.metric for c in candidates(rows, dialect) if c.rank <= OTHER and c != chosen]


def listed(some: Sequence[object], most: int = LISTED) -> str:
    """Return the first of some names or candidates for a message."""
    return ", ".join(map(str, some[:most])) + (f" and {len(some) - most} more" if len(some) > most else "")


def column_hint(rows: list[Row]) -> str:
    """Return a list of the log's columns for an error message."""
    return f"; its columns are {listed(names_of(rows))}: name one with metric= (--metric)"
