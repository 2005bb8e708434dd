"""Separates the runs in one log: by a column with their names, by phases of rows, or by restarts from the beginning.

Axes in names: N rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.logs.choose import name_list
from scalerl.reading.tables.documents import phase_of, phase_table
from scalerl.reading.tables.errors import CurveError, LogError
from scalerl.reading.tables.grids import RUN
from scalerl.reading.tables.table import Array, Table, joined_tables, key

RUN_COLUMNS = (RUN, "run_name", "run_id", "name", "runname", "run name", "experiment", "exp_name", "experiment_name")
"""Columns with the names of runs."""
CONDITIONS = ("condition", "arm", "variant", "method", "algorithm", "algo", "config", "setting", "group", "seed",
              "model",
              "model_name", "recipe", "trial", "label", "exp", "job", "fold", "lr", "agent")  # fmt: skip
"""Columns that often tell runs apart; any other column of words does, if it makes steps unique."""
PHASE_COLUMNS = ("split", "phase", "mode", "stage", "type", "event", "kind", "set", "subset", "tag", "prefix")
"""Columns that say whether a row is of training or of evaluation."""
TASKS = ("task", "dataset", "data_source", "benchmark", "eval_set", "env", "environment", "domain", "eval_dataset")
"""Columns with the task of a row."""

LEAST_ROWS = 3
"""Rows of the shortest part that is another run; a shorter one is a failed start, whose rows the next one replaces."""
MOST_RUNS_OF_LOG = 500


def with_phases(table: Table) -> Table:
    """Return a table in which metrics of evaluation rows have other names than those of training rows."""
    for name in table.words:
        if key(name) not in PHASE_COLUMNS:
            continue
        column = table.words[name]
        phases = {word: phase_of(word) for word in column.words}
        if "eval" not in phases.values() or len(set(phases.values())) < 2:
            continue
        word_N = table.labels(name)
        phase_N = np.array([phases.get(word, "") for word in word_N], dtype=object)
        parts = [(phase, table.select(phase_N == phase)) for phase in dict.fromkeys(phase_N)]
        return joined_tables([phase_table(part, phase) if phase else part for phase, part in parts])
    return table


def of_run(table: Table, run: str | None) -> tuple[Table, str]:
    """Return the rows of the given run, or all rows if there is only one, and a note about the choice.

    Columns with names of runs are used here; other ways to tell runs apart need the metric (`rows_of_run`).

    Raises:
        CurveError: There are several runs and none was chosen, or there is no run of that name.
    """
    columns = {c: table.labels(c) for c in table.words if key(c) in {key(column) for column in RUN_COLUMNS}}
    distinct = {c: Counter(str(w) for w in label_N if w is not None) for c, label_N in columns.items()}
    by = max(distinct, key=lambda c: len(distinct[c]), default=None)
    if by is None or (len(distinct[by]) <= 1 and run not in distinct[by]):
        return table, ""
    if run is None:
        raise several_runs_error(table.name, distinct[by], f"the column {by}")
    if run not in distinct[by]:
        return table, ""
    return table.select(columns[by] == run), f"run {run}"


def several_runs_error(name: str, runs: Mapping[str, int], how: str) -> CurveError:
    """Return the error for a log with several runs, given the number of rows of each; the longest comes first."""
    ordered = sorted(runs, key=lambda run: -runs[run])
    return LogError(
        f"{name} has {len(runs)} runs, told apart by {how}: {name_list(ordered)}; choose by run= (--run)",
        add=("--run", ordered[0].split(" (steps ")[0]),
    )


def rows_of_run(
    table: Table, metric: str, picked: NDArray[np.intp], step_N: Array, run: str | None
) -> NDArray[np.bool_] | None:
    """Return the rows of the chosen run, if the metric's rows are those of several runs; None if they are of one.

    `picked` has the rows with the metric; `step_N` the step of each row, NaN without one.

    Raises:
        CurveError: There are several runs and none was chosen, or there is no run of that name.
    """
    steps = step_N[picked]
    if np.isfinite(steps).all() and len(np.unique(steps)) < len(steps):
        column = dividing_column(table, picked, steps)
        part_N = parts_of(table, metric, picked, step_N) if column is None else None
        if part_N is not None:
            column = column_of_parts(table, picked, part_N)
        if column is not None:
            label_N = table.labels(column)
            names = Counter(str(word) for word in label_N[picked] if word is not None)
            if run is None:
                raise several_runs_error(table.name, names, f"the column {column}")
            if run in names:
                return np.asarray(label_N == run)
            raise CurveError(f"{table.name} has no run {run!r}; it has {name_list([*names])}")
        if part_N is not None:
            spans = [step_N[picked[part_N[picked] == number]] for number in range(1, int(part_N.max()) + 1)]
            sizes = {f"{n} (steps {span.min():g} to {span.max():g})": len(span) for n, span in enumerate(spans, 1)}
            if run is None:
                raise several_runs_error(table.name, sizes, "restarts from the first step")
            if run in map(str, range(1, len(sizes) + 1)):
                return np.asarray(part_N == int(run))
            raise CurveError(f"{table.name} has no run {run!r}; it has {name_list([*sizes])}")
    if run is not None:
        raise CurveError(f"{table.name} has no run {run!r}; it has one run; leave out --run")
    return None


def column_of_parts(table: Table, picked: NDArray[np.intp], part_N: NDArray[np.intp]) -> str | None:
    """Return the column with one value in each part and another one in every other part; None without one."""
    parts = part_N[picked]
    for column in (*table.words, *table.names):
        label_K = table.labels(column)[picked]
        labels = {(part, label) for part, label in zip(parts.tolist(), label_K, strict=True)}
        values = {label for _, label in labels}
        if None not in values and len(labels) == len(values) == int(parts.max()) and not commands(table, column):
            return column
    return None


COMMAND = re.compile(r"(?:^|\s)-{1,2}\w|&&|^(?:python3?|bash|sh|cd|ls|cat|git|pip|torchrun|accelerate|ray)\b")


def commands(table: Table, column: str) -> bool:
    """Return whether a column has lines of a shell, which are no names of runs."""
    words = table.words[column].words if column in table.words else ()
    return sum(bool(COMMAND.search(word)) for word in words) > 0.5 * len(words)


def dividing_column(table: Table, picked: NDArray[np.intp], steps: Array) -> str | None:
    """Return the column of words (or a seed) whose values make the steps of the metric unique, or nearly so."""
    column_keys = [key(c) for c in (*RUN_COLUMNS, *CONDITIONS)]
    numbers = [c for c in table.names if key(c) in CONDITIONS and c not in table.words]
    best: tuple[tuple[int, int], str] | None = None
    for column in (*table.words, *numbers):
        if key(column) in TASKS or commands(table, column):
            continue
        label_K = table.labels(column)[picked]
        if any(word is None for word in label_K):
            continue
        codes = np.unique(label_K.astype(str), return_inverse=True)[1]
        count = int(codes.max()) + 1
        if not 1 < count <= min(MOST_RUNS_OF_LOG, len(picked) // 2):
            continue
        pairs = len(np.unique(np.stack([codes, steps]), axis=1).T)
        if pairs < 0.9 * len(steps):
            continue
        order = (column_keys.index(key(column)) if key(column) in column_keys else len(column_keys), count)
        if best is None or order < best[0]:
            best = order, column
    return best[1] if best else None


def parts_of(table: Table, metric: str, picked: NDArray[np.intp], step_N: Array) -> NDArray[np.intp] | None:
    """Return the number of the part, from 1, of each row, if a file has runs one after the other; None if one run.

    A part whose points are all in another one is a copy, or the beginning of what was started again, and no run.
    """
    steps, values = step_N[picked], table.column(metric)[picked]
    if len(np.unique(np.stack([steps, values]), axis=1).T) == len(np.unique(steps)):
        return None
    first = steps.min()
    usual = float(np.median(np.abs(np.diff(steps)))) if len(steps) > 1 else 0.0
    drops = np.flatnonzero((np.diff(steps) < 0) & (steps[1:] <= first + 0.5 * usual)) + 1
    if not len(drops) or len(drops) > MOST_RUNS_OF_LOG:
        return None
    edges = [0, *drops.tolist(), len(steps)]
    starts = [0]
    for start, end in pairwise(edges[1:]):
        if end - start >= LEAST_ROWS and start - starts[-1] >= LEAST_ROWS:
            starts.append(start)
    points = [
        set(zip(steps[start:end].tolist(), values[start:end].tolist(), strict=True))
        for start, end in pairwise([*starts, len(steps)])
    ]
    kept = [0]
    for number in range(1, len(starts)):
        if not any(points[number] <= points[other] or points[other] <= points[number] for other in range(number)):
            kept.append(number)
    if len(kept) < 2:
        return None
    part_N = np.zeros(table.size, dtype=np.intp)
    for number, place in enumerate(kept, 1):
        part_N[int(picked[starts[place]]) if number > 1 else 0 :] = number
    return part_N
