"""Reads a log into points: recognizes the trainer, chooses the metric, joins it to compute, and says what it did.

Axes in names: N rows of the log, E points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.core.files import parse_json, read_bytes, write_whole
from scalerl.reading.curves.curve import TRAINING_REWARD, listed
from scalerl.reading.logs.bounds import bounds_of
from scalerl.reading.logs.choose import (
    ENOUGH_POINTS,
    TASK,
    Candidate,
    candidates,
    choose,
    find_dialect,
    name_list,
    others,
)
from scalerl.reading.logs.compute import compute_of
from scalerl.reading.logs.dialect import Dialect, match, steps_of
from scalerl.reading.logs.dialects import GENERAL_STEPS
from scalerl.reading.logs.join import coalesced, last_of_each, row_steps
from scalerl.reading.logs.runs import TASKS, of_run, rows_of_run, with_phases
from scalerl.reading.logs.windows import hidden_causes, windows
from scalerl.reading.tables.errors import CurveError, LogError, TooEarly
from scalerl.reading.tables.forms import read_table
from scalerl.reading.tables.names import AXES, EVALUATION_WORD
from scalerl.reading.tables.table import Array, Table, joined_tables, key

ROLES = ("step", "seconds", "clock", "tokens", "step_tokens", "device_hours", "flops", "task", "stderr")
"""Roles that `columns` can assign."""


@dataclass(frozen=True)
class Imported:
    """Points of one run, with all assumptions.

    Example:
        Imported(rows=[{"step": 20, "device_hours": 2.7, "tokens": 9400000.0, "pass_rate": 0.41, "task": "gsm8k"}],
                 notes=("devices: 8, by perf/throughput",), source="verl", metric="val-core/gsm8k/acc/mean@8",
                 axis="device_hours", bounds=(0.0, 1.0), form="CSV", training=False, ...)
    """

    rows: list[dict[str, Any]]
    """Rows of a points.jsonl, for `Curve.from_rows`. If bounds are not [0, 1], the metric's column is `metric`, and
    `bounds` has them; `kind` is "training reward" if the metric is that."""
    notes: tuple[str, ...]
    source: str
    """Name of the dialect."""
    metric: str
    axis: str
    """The best compute column: device_hours, flops, tokens, compute or step."""
    bounds: tuple[float, float] = (0.0, 1.0)
    trainer: str = ""
    """Name of the trainer in text; "" if it is unknown."""
    form: str = ""
    """What the log is: CSV, trainer_state.json, notebook, TensorBoard, ..."""
    training: bool = False
    """Whether the metric is the reward of training, not a score on held-out prompts."""
    kind_origin: str = ""
    """What shows whether the prompts are held out, if the metric's name does not."""
    values: int = 0
    """Number of values of the metric in the log, of which `rows` may be means."""
    axis_origin: str = ""
    clock: bool = False
    """Whether the log has the time of its steps."""
    bounds_origin: str = ""
    others: tuple[str, ...] = ()
    """Metrics that could be chosen instead."""
    start: str = ""
    """What is known about the level before training."""
    merged: tuple[str, ...] = ()
    """Notes about evaluations that are no points: averaged, repeated, or without a number or a step."""

    def to_dict(self) -> dict[str, Any]:
        """Return what was read as JSON values, without the points."""
        return {
            "trainer": self.trainer or None, "form": self.form, "metric": self.metric, "kind": self.kind,
            "kind_origin": self.kind_origin, "values": self.values, "axis": self.axis,
            "axis_origin": self.axis_origin, "bounds": list(self.bounds), "bounds_origin": self.bounds_origin,
            "start": self.start, "others": list(self.others), "notes": list(self.notes),
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """What the metric is."""
        return TRAINING_REWARD if self.training else "held-out"

    def lines(self) -> list[str]:
        """Return what was read as lines: trainer, metric, compute, bounds, notes."""
        kind = f"{TRAINING_REWARD}, not held out" if self.training else "held-out"
        kind += f" ({self.kind_origin})" if self.kind_origin else ""
        means = f" in {len(self.rows)} windows" if len(self.rows) < self.values else ""
        instead = f"; instead: --metric {', '.join(self.others[:4])}" if self.others else ""
        low, high = self.bounds
        axis = {"device_hours": "device-hours"}.get(self.axis, self.axis)
        return [
            f"log       {self.trainer or 'unknown trainer'}, {self.form}",
            f"metric    {self.metric}: {kind}, {self.values} points{means}{instead}",
            f"compute   {axis}: {self.axis_origin}",
            f"bounds    {low:g} to {high:g}: {self.bounds_origin}",
            f"start     {self.start}",
            *(f"note      {note}" for note in self.notes),
        ]


def read(
    path: str | Path | Sequence[str | Path],
    source: str | None = None,
    *,
    metric: str | None = None,
    task: str | None = None,
    run: str | None = None,
    devices: float | None = None,
    bounds: tuple[float, float] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Imported:
    """Read the log of any trainer into points.

    Args:
        path: A file, a run's directory, `wandb:entity/project/run`, or the parts of one run in the order they were
            written.
        source: One of `IMPORTERS`; None recognizes it by the columns.
        metric: Name of the metric in the log; None: the mean score on held-out prompts, else the reward of training.
        task: Name of the task; required if the rows have several.
        run: Name of the run; required if the log has several.
        devices: Number of accelerators of the run, for device-hours; required if the log does not contain it.
        bounds: Smallest and largest possible value of the metric; None: by its name, or from its values.
        columns: Column names by role (`ROLES`), for logs with other names.

    Raises:
        CurveError: There is nothing to read, the source is unknown, or the metric is missing or ambiguous.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(p) for p in path]
    if not paths:
        raise CurveError("no log was given; give a file or the directory of a run")
    if devices is not None and not (np.isfinite(devices) and devices > 0):
        raise CurveError(f"devices must be a positive number; got {devices!r}")
    options: dict[str, Any] = {
        "metric": metric,
        "task": task,
        "run": run,
        "devices": devices,
        "bounds": bounds,
        "columns": columns,
    }
    return of_tables([read_table(p) for p in paths], source, paths=paths, **options)


def of_tables(
    tables: Sequence[Table],
    source: str | None = None,
    *,
    metric: str | None = None,
    task: str | None = None,
    run: str | None = None,
    devices: float | None = None,
    bounds: tuple[float, float] | None = None,
    columns: Mapping[str, str] | None = None,
    paths: Sequence[Path] = (),
) -> Imported:
    """Return the points of the parts of one log; arguments and errors are those of `read`."""
    tables = [without_summary(with_phases(without_written(part.bounded()))) for part in tables]
    table, chosen_run = of_run(joined_tables(tables), run)
    name, notes = table.name, [*table.notes]
    dialect = find_dialect(source, table)
    columns = found_columns(table, dict(columns or {}))
    table = with_steps(with_tasks(table, columns.get("task")))
    dialect = with_columns(dialect, columns)
    candidate = choose(table, dialect, metric, task)
    step_N, note = steps(table, dialect, candidate)
    step_N = before_training(step_N, metric_rows(table, candidate))
    if len(tables) > 1 and not chosen_run:
        check_parts([part.size for part in tables], table, candidate, step_N, paths)
    divided_run = None if chosen_run else run
    if len(tables) == 1 or divided_run is not None:
        keep_N = rows_of_run(table, candidate.metric, metric_rows(table, candidate), step_N, divided_run)
        if keep_N is not None:
            table, step_N, chosen_run = table.select(keep_N), step_N[keep_N], f"run {divided_run}"
    notes += [f"{chosen_run} of {name}"] if chosen_run else []
    notes += [note] if note else []
    return points_of(table, step_N, dialect, candidate, devices, bounds, columns, notes)


# ------------------------------------------------------------------------------------------------- rows and columns


def summarized(table: Table) -> bool:
    """Return whether a log ends with the summary that a Hugging Face Trainer writes after training."""
    names = [column for name in SUMMARY if (column := table.find(name)) is not None]
    return bool(names and has_cells(table, names)[-1])


SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train/train_runtime",
           "train/total_flos")  # fmt: skip
"""Columns of the row that a Hugging Face Trainer writes after training, with means over the whole run."""


WRITTEN = "scalerl/"
"""Prefix of forecasts that users write to the run that they follow (docs/importing.md)."""

TIME_COLUMNS = ("step", "_step", "global_step", "epoch", "time", "timestamp", "_timestamp", "_runtime", "wall_time")
"""Columns, as `table.key` writes them, that say when a row was written."""


def without_written(table: Table) -> Table:
    """Return a table without the forecasts that this package wrote into the log, and without rows of nothing else."""
    written = [name for name in table.cells if key(name).startswith(key(WRITTEN) + "_")]
    if not written:
        return table
    remaining = table.without(written)
    filled_N = has_cells(table, [name for name in remaining.cells if key(name) not in TIME_COLUMNS])
    return remaining.select(filled_N | ~has_cells(table, written))


def has_cells(table: Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have a cell in any of some columns, shape (N,)."""
    has_N = np.zeros(table.size, dtype=bool)
    for name in names:
        has_N[table.cells[name][0]] = True
    return has_N


def without_summary(table: Table) -> Table:
    """Return a table without the rows that summarize a run."""
    columns = [column for name in SUMMARY if (column := table.find(name)) is not None]
    if not columns:
        return table
    summary_N = np.any([table.present(column) for column in columns], axis=0)
    return table if summary_N.mean() > 0.1 else table.select(~summary_N)


def found_columns(table: Table, columns: dict[str, str]) -> dict[str, str]:
    """Return the user's columns by role in the spelling of the log.

    Raises:
        CurveError: A role or a column does not exist.
    """
    unknown = set(columns) - set(ROLES)
    if unknown:
        raise CurveError(f"unknown role {', '.join(sorted(unknown))} in columns; allowed: {', '.join(ROLES)}")
    columns_by_role = {}
    for role, column in columns.items():
        actual = column if column in table.words and role == "task" else table.find(column)
        if actual is None:
            names = name_list(sorted([*table.names, *table.words]), most=20)
            raise TooEarly(f"{table.name} has no column {column!r} (for {role}); it has {names}")
        columns_by_role[role] = actual
    return columns_by_role


def with_tasks(table: Table, column: str | None) -> Table:
    """Return a table with a column `task`: the given one, TRL's evaluation sets, or one of the usual names."""
    if column is None and TASK not in table.words:
        sets = evaluation_sets(table.names)
        if len(sets) > 1:
            label_N = np.full(table.size, None, dtype=object)
            for word, name in sets.items():
                label_N[table.present(name)] = word
            return table.labeled(TASK, label_N)
        column = next((c for c in table.words if key(c) in TASKS and len(table.words[c].words) > 1), None)
    if column is None or column == TASK:
        return table
    return table.labeled(TASK, table.labels(column))


def evaluation_sets(names: Sequence[str]) -> dict[str, str]:
    """Return the evaluation sets of a Hugging Face Trainer with the column of each; only their runtimes tell them."""
    sets = {}
    for name in names:
        if (match := re.fullmatch(r"eval_(?:(.+)_)?runtime", key(name))) and match[1]:
            sets[match[1]] = name
    return sets


def with_columns(dialect: Dialect, columns: Mapping[str, str]) -> Dialect:
    """Return the dialect with the user's column names first."""
    fields: dict[str, Any] = {}
    if "step" in columns:
        fields["steps"] = ((columns["step"],),)
    if "seconds" in columns:
        fields |= {"seconds": (columns["seconds"],), "parts": (), "about": f"{columns['seconds']}, summed"}
    if "clock" in columns:
        fields["clocks"] = (columns["clock"],)
        if "seconds" not in columns:
            fields |= {"seconds": (), "parts": ()}
    if "tokens" in columns:
        fields |= {"tokens": (columns["tokens"],), "step_tokens": ()}
    if "step_tokens" in columns:
        fields["step_tokens"] = (columns["step_tokens"],)
    return replace(dialect, **fields)


def metric_rows(table: Table, candidate: Candidate) -> NDArray[np.intp]:
    """Return the rows with a number of the metric."""
    keep_N = table.present(candidate.metric)
    if TASK in table.words and candidate.task:
        label_N = table.labels(TASK)
        keep_N &= np.array([label in (None, candidate.task) for label in label_N])
    return np.flatnonzero(keep_N)


# -------------------------------------------------------------------------------------------------------------- steps

STEP_WORD = re.compile(r"(?P<name>.*?)(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[kKmM]?)")
"""A step as text: `checkpoint-200`, `step_200`, `2.5k`."""

STEP_COLUMNS = (
    "step",
    "steps",
    "global_step",
    "checkpoint",
    "checkpoints",
    "ckpt",
    "checkpoint_name",
    "iteration",
    "iter",
)
"""Columns with such text, as `table.key` writes them."""


def with_steps(table: Table) -> Table:
    """Return a table with a column `step`, if its steps are text of one form and it has none as numbers."""
    if steps_of(table, GENERAL_STEPS[:1]):
        return table
    for column in (name for name in table.words if key(name) in STEP_COLUMNS):
        matches = [STEP_WORD.fullmatch(word) for word in table.words[column].words]
        if all(matches) and len({match["name"] for match in matches if match}) == 1:
            sizes = [float(m["number"]) * {"k": 1e3, "m": 1e6}.get(m["unit"].lower(), 1.0) for m in matches if m]
            index, codes = table.words[column].index, table.words[column].codes
            return replace(table, cells={**table.cells, "step": (index, np.array(sizes)[codes])})
    return table


STEPLESS = "steps are counted from the rows with {}, because {}"


def steps(table: Table, dialect: Dialect, candidate: Candidate) -> tuple[Array, str]:
    """Return the step of each row, and a note if they were counted.

    wandb's own step counts calls of log, not updates: if rows of one update are spread over several calls, steps are
    counted from the rows with the metric of training.
    """
    groups = steps_of(table, dialect.steps)
    if not groups:
        groups = steps_of(table, GENERAL_STEPS)
    if groups and groups[0][0].startswith("@bar"):
        groups = [groups[0]] if bar_counts(table, candidate) else []
    pulse = pulse_of(table, dialect, candidate)
    if dialect.evaluation_steps and not candidate.training and groups:
        return evaluated_steps(table, dialect, row_steps(table, groups), candidate), ""
    if groups and key(groups[0][0]) == "_step" and counts_calls(table, groups[0][0], pulse):
        step_N = counted(table, pulse)
        if candidate.training or pulse == candidate.metric or np.isfinite(step_N).any():
            return step_N, STEPLESS.format(pulse, "_step of wandb counts calls of log, not updates")
    step_N = row_steps(table, groups)
    if groups and np.isfinite(step_N[metric_rows(table, candidate)]).any():
        is_step = key(groups[0][0]) != "epoch"
        if is_step and (epoch := epoch_of_steps(table, step_N, metric_rows(table, candidate))):
            note = f"steps begin anew in each {epoch} and were counted on"
            return across_epochs(step_N, table.column(epoch), metric_rows(table, candidate)), note
        if not is_step and (step_N[np.isfinite(step_N)] % 1).any():  # shares of an epoch: TRL's console has no step
            return counted(table, pulse), STEPLESS.format(pulse, "the log has no step")
        return step_N, "" if is_step else "steps are epochs, because the log has no other step"
    if groups and np.isfinite(step_N).sum() > 1 and not candidate.training:
        return carried(step_N), "evaluations have no step in their rows and take that of the row before"
    return counted(table, pulse), STEPLESS.format(pulse, "the log has no step")


def carried(step_N: Array) -> Array:
    """Return steps in which a row without one has that of the row before; 0 before the first."""
    last_N = np.maximum.accumulate(np.where(np.isfinite(step_N), np.arange(len(step_N)), -1))
    return np.where(last_N < 0, 0.0, step_N[last_N])


def before_training(step_N: Array, rows: NDArray[np.intp]) -> Array:
    """Return steps in which the only evaluation at a negative step, -1, is the one before training, at 0."""
    steps = step_N[rows]
    if (steps < 0).sum() != 1 or steps.min() != -1 or (steps == 0).any():
        return step_N
    step_N = step_N.copy()
    step_N[rows[np.argmin(steps)]] = 0.0
    return step_N


EPOCHS = ("epoch", "epochs", "current_epoch", "cur_epoch", "epoch_idx", "epoch_id", "epoch_num", "train/epoch")
"""Columns that count how often the prompts were used, as `table.key` writes them."""


def epoch_of_steps(table: Table, step_N: Array, picked: NDArray[np.intp]) -> str:
    """Return the column of the epoch if the steps of the metric go back exactly where it advances; "" if not."""
    for name in EPOCHS:
        if (column := table.find(name)) is None:
            continue
        epochs, steps = table.column(column)[picked], step_N[picked]
        if not np.isfinite(steps).all() or not np.isfinite(epochs).all() or (epochs % 1).any():
            continue
        back, on = np.diff(steps) < 0, np.diff(epochs) > 0
        if back.any() and np.array_equal(back, on) and (np.diff(epochs) >= 0).all():
            return column
    return ""


def across_epochs(step_N: Array, epoch_N: Array, picked: NDArray[np.intp]) -> Array:
    """Return the steps of all epochs as one count, shape (N,)."""
    steps, epochs = step_N[picked], epoch_N[picked]
    usual = float(np.median(np.diff(steps)[np.diff(steps) > 0])) if (np.diff(steps) > 0).any() else 1.0
    shift = usual if steps.min() == 0 else 0.0  # the index of a batch, after which one update more was made
    ends = {epoch: steps[epochs == epoch].max() + shift for epoch in np.unique(epochs)}
    before = dict(zip(ends, shift + np.cumsum([0.0, *ends.values()]), strict=False))
    before_N: Array = np.array([before.get(epoch, np.nan) for epoch in epoch_N.tolist()])
    return step_N + before_N


def evaluated_steps(table: Table, dialect: Dialect, step_N: Array, candidate: Candidate) -> Array:
    """Return the step of each row; for rows of the metric, the number of updates of the model that was evaluated."""
    version_N = np.full(table.size, np.nan)
    for text in dialect.evaluation_steps:
        columns = [name for name in table.names if match(text, name)]
        version_N = np.where(np.isfinite(version_N), version_N, coalesced(table, columns))
    rows_N = table.present(candidate.metric) & np.isfinite(version_N)
    return np.where(rows_N, version_N, step_N)


def bar_counts(table: Table, candidate: Candidate) -> bool:
    """Return whether the progress bar before each row counts the steps of training."""
    bars = table.column("@bar")[metric_rows(table, candidate)]
    return bool(np.isfinite(bars).all() and len(bars) > 1 and (np.diff(bars) > 0).all())


def pulse_of(table: Table, dialect: Dialect, candidate: Candidate) -> str:
    """Return the column that occurs once per update: the reward of training, if it is more frequent than the metric."""
    training = [c for c in candidates(table, dialect) if c.training]
    best = max(training, key=lambda c: c.count, default=candidate)
    if candidate.training and candidate.count >= 0.9 * best.count:
        return candidate.metric
    if best.count > candidate.count:
        return best.metric
    # without a reward of training: a loss, or whatever is logged most often
    losses = [name for name in table.names if "loss" in key(name) and table.count(name) > candidate.count]
    return losses[0] if losses else candidate.metric


def counts_calls(table: Table, name: str, pulse: str) -> bool:
    """Return whether a counter of wandb counts calls of log, not updates.

    It then advances by more than one from update to update, and between two updates lie calls with other columns.
    """
    index_K, _ = table.cells[pulse]
    step_N, pulse_N = table.column(name), np.zeros(table.size, dtype=bool)
    pulse_N[index_K] = True
    pulses = step_N[pulse_N & np.isfinite(step_N)]
    if len(pulses) < 3 or np.median(np.diff(pulses)) < 1.5:
        return False
    enough = 0.5 * len(pulses)
    return any(
        len(rows_K) >= enough and pulse_N[rows_K].mean() < 0.1
        for other, (rows_K, _) in table.cells.items()
        if not other.startswith(("_", "@")) and not EVALUATION_WORD.search(other)
    )


def counted(table: Table, pulse: str) -> Array:
    """Return the number of updates up to each row, shape (N,), from the rows of an update."""
    return np.cumsum(table.present(pulse)).astype(np.float64)


def check_parts(sizes: Sequence[int], table: Table, candidate: Candidate, step_N: Array, paths: Sequence[Path]) -> None:
    """Refuse several logs that are not the parts of one run: each begins at the first step, and they overlap.

    Raises:
        CurveError: The logs are those of several runs.
    """
    edges = np.cumsum([0, *sizes])
    rows = metric_rows(table, candidate)
    spans = [step_N[rows[(rows >= start) & (rows < end)]] for start, end in pairwise(edges)]
    spans = [span for span in spans if len(span)]
    if len(spans) < 2:
        return
    first = min(float(span.min()) for span in spans)
    fresh = [
        float(span.min()) == first and len(span) > 2 and np.isin(span, spans[0]).mean() > 0.5 for span in spans[1:]
    ]
    if any(fresh):
        names = name_list([str(path) for path in paths], most=4)
        raise LogError(
            f"{names} are {len(paths)} runs, because each begins at step {first:g}, not parts of one; read one at a "
            "time",
            paths=[str(paths[0])],
        )


# -------------------------------------------------------------------------------------------------------------- points


def points_of(
    table: Table,
    step_N: Array,
    dialect: Dialect,
    candidate: Candidate,
    devices: float | None,
    bounds: tuple[float, float] | None,
    columns: Mapping[str, str],
    notes: list[str],
) -> Imported:
    """Return the points of a metric.

    Raises:
        CurveError: The metric has no number, or lies outside given bounds.
    """
    picked_E, value_E, merged = evaluation_rows(table, step_N, candidate)
    notes = [*notes, *merged]
    pulse = pulse_of(table, dialect, candidate)
    compute = compute_of(table, step_N, picked_E, dialect, candidate, pulse, devices, columns)
    limits, bounds_origin, more = bounds_of(table.select(rows_mask(table, picked_E)), dialect, candidate.metric, bounds)
    notes += [*compute.notes, *more]
    value_E = np.clip(value_E, *limits)
    cells = {"step": step_N[picked_E], **compute.cells}
    stderr_E = table.column(columns["stderr"])[picked_E] if "stderr" in columns else None
    if stderr_E is None and not dialect.marks and (column := table.find("stderr")) is not None:
        stderr_E = table.column(column)[picked_E]
    count = len(picked_E)
    if candidate.training:
        order_E = np.argsort(cells[compute.axis], kind="stable")
        last_W, value_W, stderr_W = windows(cells[compute.axis][order_E], value_E[order_E])
        if stderr_E is not None:
            sizes_W = np.diff(last_W, prepend=-1)
            stderr_W = np.sqrt(np.add.reduceat(stderr_E[order_E] ** 2, last_W - sizes_W + 1)) / sizes_W
        cells = {name: cell[order_E][last_W] for name, cell in cells.items()}
        value_E, stderr_E = value_W, stderr_W
        notes += hidden_causes(table, candidate.metric, table.names)
    name = "pass_rate" if limits == (0.0, 1.0) else "metric"
    cells[name] = value_E
    if stderr_E is not None:
        cells["stderr"] = stderr_E
    rows = as_rows(cells, candidate.task or candidate.metric)
    extra: dict[str, Any] = {"bounds": list(limits)} if limits != (0.0, 1.0) else {}
    extra |= {"kind": TRAINING_REWARD} if candidate.training else {}
    alternatives = [c for c in others(table, dialect, candidate) if c.count >= min(ENOUGH_POINTS, count)]
    return Imported(
        rows=[{**row, **extra} for row in rows],
        notes=tuple(dict.fromkeys(notes)),
        source=dialect.name,
        metric=candidate.metric,
        axis=compute.axis,
        bounds=limits,
        trainer=dialect.title,
        form=table.form,
        training=candidate.training,
        kind_origin=candidate.why,
        values=count,
        axis_origin=compute.origin,
        clock=compute.clock,
        bounds_origin=bounds_origin,
        others=tuple(dict.fromkeys(c.metric for c in alternatives if c.metric != candidate.metric)),
        start=start_of(rows, compute.axis, candidate.training),
        merged=tuple(merged),
    )


def rows_mask(table: Table, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return a mask of some rows, shape (N,)."""
    keep_N = np.zeros(table.size, dtype=bool)
    keep_N[rows] = True
    return keep_N


def start_of(rows: Sequence[Mapping[str, Any]], axis: str, training: bool) -> str:
    """Return what is known about the level before training."""
    first = rows[0]
    if first.get(axis) == 0:
        return "the first point is before training"
    what = "the rewards of training begin" if training else "no evaluation before training, the first is"
    place = f" at step {first['step']:g}" if "step" in first else f" at {axis} {first.get(axis, float('nan')):g}"
    return f"{what}{place}: the level before training (R0) is unknown and is fitted"


def evaluation_rows(table: Table, step_N: Array, candidate: Candidate) -> tuple[NDArray[np.intp], Array, list[str]]:
    """Return the rows that become points, by step if there are steps, their values, and notes about those left out.

    Rows of one step that follow each other, such as those of its samples, count with their mean. Of a step that comes
    back, as after a resume, the last rows count.

    Raises:
        CurveError: No row has a number.
    """
    notes = []
    _, value_K = table.cells[candidate.metric]
    bad = int((~np.isfinite(value_K)).sum())
    notes += [f"evaluations without a number (NaN) were left out: {bad}"] if bad else []
    picked_E = metric_rows(table, candidate)
    if not len(picked_E):
        raise TooEarly(f"{candidate.metric} has no finite value in this log; choose another by metric= (--metric)")
    value_N = table.column(candidate.metric)
    stepped_E = np.isfinite(step_N[picked_E])
    if not stepped_E.any():
        return picked_E, value_N[picked_E], notes
    if not stepped_E.all():
        notes.append(f"evaluations without a step were left out: {int((~stepped_E).sum())}")
        picked_E = picked_E[stepped_E]
    early_E = step_N[picked_E] < 0
    if early_E.any() and not early_E.all():
        notes.append(f"evaluations at a negative step were left out: {int(early_E.sum())}")
        picked_E = picked_E[~early_E]
    # another step between two rows of one: a run that went on or back in between was resumed
    known_N = np.isfinite(step_N)
    lowest_E = np.minimum.reduceat(np.where(known_N, step_N, np.inf), np.append(0, picked_E))[:-1]
    highest_E = np.maximum.reduceat(np.where(known_N, step_N, -np.inf), np.append(0, picked_E))[:-1]
    resumed_E = (lowest_E < step_N[picked_E]) | (highest_E > step_N[picked_E])
    starts = np.flatnonzero((np.diff(step_N[picked_E], prepend=np.nan) != 0) | resumed_E)
    sizes = np.diff(np.append(starts, len(picked_E)))
    first_E, ends_E = value_N[picked_E[starts]], picked_E[starts + sizes - 1]
    mean_E = first_E + np.add.reduceat(value_N[picked_E] - np.repeat(first_E, sizes), starts) / sizes
    meant = int((sizes - 1).sum())
    notes += [f"further rows of a step, of which the mean counts: {meant}, {at_steps(step_N[ends_E[sizes > 1]])}"] \
        if meant else []  # fmt: skip
    _, last_E = last_of_each(step_N[ends_E], np.arange(len(ends_E), dtype=np.float64))
    distinct, times = np.unique(step_N[ends_E], return_counts=True)
    repeated, again = len(ends_E) - len(last_E), at_steps(distinct[times > 1])
    notes += [f"repeated evaluations of a step, of which the last counts: {repeated}, {again}"] if repeated else []
    last = last_E.astype(np.intp)
    return ends_E[last], mean_E[last], notes


def at_steps(steps: Array) -> str:
    """Return the first of some steps as text."""
    return f"at step {listed([f'{step:g}' for step in steps.tolist()])}"


def as_rows(cells: Mapping[str, Array], task: str) -> list[dict[str, Any]]:
    """Return rows of a points.jsonl; missing numbers are left out, and whole steps are integers."""
    order = [name for name in ("step", *AXES[:-1], "pass_rate", "metric", "stderr") if name in cells]
    points = []
    for values in zip(*(cells[name].tolist() for name in order), strict=True):
        point = {name: value for name, value in zip(order, values, strict=True) if value == value}
        if "step" in point and point["step"].is_integer():
            point["step"] = int(point["step"])
        points.append({**point, "task": task})
    return points


# --------------------------------------------------------------------------------------------------------------- files


def write_points(imported: Imported, path: str | Path) -> None:
    """Write points as JSONL, one evaluation per line; an existing file is replaced atomically."""
    text = "".join(json.dumps(row) + "\n" for row in imported.rows)
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise CurveError(f"{path} cannot be written: {error.strerror}; give another path") from error


def holds_part_of(imported: Imported, path: Path) -> bool:
    """Return whether this import contains all points of a file, as after a repeated import of a log that has grown."""
    imported_keys = {_identity(row) for row in imported.rows}
    try:
        rows = [parse_json(line) for line in read_bytes(path).splitlines()]
    except (OSError, ValueError):
        return False
    return all(isinstance(row, dict) and _identity(row) in imported_keys for row in rows)


def _identity(row: Mapping[str, Any]) -> str:
    """Return a key for an evaluation. It excludes seconds and tokens, which may change when the log grows."""
    if row.get("kind") == TRAINING_REWARD:  # windows of a log that has grown are other windows
        return json.dumps([row["kind"], row.get("task")])
    return json.dumps([row.get(name) for name in ("task", "step", "pass_rate", "metric")])
