"""Reads a log into points: recognizes the source, chooses the metric, joins it to compute, and collects notes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.core.files import parse_json, read_bytes, write_whole
from scalerl.importers.choose import Candidate, choose, listed, others
from scalerl.importers.containers import Log, names_of, read_log
from scalerl.importers.dialect import AXES, RUN_COLUMNS, TRAINING, Dialect, Row
from scalerl.importers.join import (
    Array,
    Spent,
    column,
    last_of_each,
    present,
    row_steps,
    spent_by_counter,
    spent_by_step,
)
from scalerl.importers.sources import IMPORTERS
from scalerl.scaling import CurveError
from scalerl.scaling.curve import checked_bounds

ROLES = ("step", "seconds", "clock", "tokens", "step_tokens", "device_hours", "flops", "task", "stderr")
"""Roles that `columns` can assign."""


@dataclass(frozen=True)
class Imported:
    """Points of one run, with notes about all assumptions.

    Example:
        Imported(rows=[{"step": 20, "device_hours": 2.7, "tokens": 9400000.0, "task": "gsm8k", "pass_rate": 0.41}],
                 notes=("devices: 8, by perf/throughput",), source="verl", metric="val-core/gsm8k/acc/mean@8",
                 axis="device_hours", bounds=(0.0, 1.0))
    """

    rows: list[dict[str, Any]]
    """Rows of a points.jsonl, for `Curve.from_rows`. If bounds are not [0, 1], the metric's column is `metric`."""
    notes: tuple[str, ...]
    source: str
    metric: str
    axis: str
    """The best compute column: device_hours, flops, tokens, compute or step."""
    bounds: tuple[float, float] = (0.0, 1.0)


def read(
    path: str | Path | Sequence[str | Path],
    source: str | None = None,
    *,
    metric: str | None = None,
    task: str | None = None,
    run: str | None = None,
    devices: float | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    columns: Mapping[str, str] | None = None,
) -> Imported:
    """Read another framework's log into points.

    Args:
        path: A file, a run's directory, or several in the order they were written.
        source: One of `IMPORTERS`; None recognizes it by the columns.
        metric: Full name of the metric in the log; required if there are several.
        task: Name of the task; required if the log has several.
        run: Name of the run; required if the file has several, such as a chart of wandb or a table with a column `run`.
        devices: Number of accelerators of the run, for device-hours; required if the log does not contain it.
        bounds: Smallest and largest possible value of the metric.
        columns: Column names by role (`ROLES`), for logs with other names.

    Raises:
        CurveError: There is nothing to read, the source is unknown, or the metric is missing or ambiguous.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(p) for p in path]
    if not paths:
        raise CurveError("no log was given; give a file or the directory of a run")
    if devices is not None and not (np.isfinite(devices) and devices > 0):
        raise CurveError(f"devices must be a positive number; got {devices!r}")
    logs = [read_log(p) for p in paths]
    name = ", ".join(p.name or str(p) for p in paths)
    rows, notes = [row for log in logs for row in log.rows], [note for log in logs for note in log.notes]
    rows = of_run(rows, run, name)
    dialect, columns = find_dialect(source, logs, rows, name), dict(columns or {})
    names = {column_name: dialect.rename(column_name) for column_name in names_of(rows)}
    rows = [{names[column_name]: value for column_name, value in row.items()} for row in rows]
    columns = {role: dialect.rename(column_name) for role, column_name in columns.items()}
    metric = None if metric is None else dialect.rename(metric)
    rows, extra = dialect.prepare(rows)
    notes += extra
    dialect = with_columns(dialect, columns, rows, name)
    if (of_task := columns.get("task")) is not None:
        rows = [{**row, "task": str(row[of_task])} if of_task in row else row for row in rows]
    chosen = choose(rows, dialect, metric, task, name)
    notes.append(metric_note(chosen, others(rows, dialect, chosen), given_by_user=metric is not None))
    points, axis, more = points_of(rows, dialect, chosen, devices, columns)
    check_bounds(points, bounds, chosen.metric)
    if tuple(bounds) != (0.0, 1.0):
        points = [{("metric" if k == "pass_rate" else k): v for k, v in point.items()} for point in points]
        more = [*more, f"the metric lies in [{bounds[0]:g}, {bounds[1]:g}]: pass the same bounds to Curve"]
    return Imported(
        points, tuple(notes + more), dialect.name, chosen.metric, axis, (float(bounds[0]), float(bounds[1]))
    )


def of_run(rows: list[Row], run: str | None, name: str) -> list[Row]:
    """Return the rows of the given run, or all rows if there is only one run.

    Raises:
        CurveError: There are several runs and none was chosen, or there is no run of that name.
    """
    names = {key: dict.fromkeys(str(row[key]) for row in rows if key in row) for key in RUN_COLUMNS}
    by, runs = max(names.items(), key=lambda item: len(item[1]))
    if run is None and len(runs) <= 1:
        return rows
    some = listed([*runs])
    if run is None:
        raise CurveError(f"{name} has {len(runs)} runs; choose by run= (--run): {some}")
    if run not in runs:
        has = f"it has {some}" if runs else f"it has no column that names runs ({', '.join(RUN_COLUMNS)})"
        raise CurveError(f"{name} has no run {run!r}; {has}")
    return [row for row in rows if str(row.get(by)) == run]


def find_dialect(source: str | None, logs: list[Log], rows: list[Row], name: str) -> Dialect:
    """Return the given source, or the one that the columns identify."""
    if source is not None:
        if source not in IMPORTERS:
            raise CurveError(f"unknown source {source!r}; allowed: {', '.join(IMPORTERS)}")
        return IMPORTERS[source]
    names = names_of(rows)
    sources = {d.name: d.recognizes(names) for d in IMPORTERS.values()}
    sources = {known: marks for known, marks in sources.items() if marks}
    if len(sources) > 1:
        matches = "; ".join(f"{known} by {', '.join(marks[:3])}" for known, marks in sources.items())
        raise CurveError(f"{name} could be from {len(sources)} sources ({matches}); choose one with source= (--from)")
    if sources:
        return IMPORTERS[next(iter(sources))]
    formats = {log.source for log in logs}
    return IMPORTERS[formats.pop() if len(formats) == 1 else "table"]


def with_columns(dialect: Dialect, columns: Mapping[str, str], rows: list[Row], name: str) -> Dialect:
    """Return the dialect with the user's column names first."""
    unknown = set(columns) - set(ROLES)
    if unknown:
        raise CurveError(f"unknown role {', '.join(sorted(unknown))} in columns; allowed: {', '.join(ROLES)}")
    there = set(names_of(rows))
    for role, column_name in columns.items():
        if column_name not in there and role != "task":
            raise CurveError(
                f"{name} has no column {column_name!r} (for {role}); it has {', '.join(sorted(there)[:20])}"
            )
    fields = dict(step="steps", seconds="seconds", clock="clocks", tokens="tokens", step_tokens="step_tokens")
    given: dict[str, Any] = {fields[role]: (name,) for role, name in columns.items() if role in fields}
    if "clock" in columns and "seconds" not in columns:
        given["seconds"] = ()
    if "tokens" in columns:
        given["step_tokens"] = ()
    return replace(dialect, **given)


def metric_note(chosen: Candidate, rest: list[str], given_by_user: bool) -> str:
    """Return the note about the metric."""
    note = f"metric: {chosen.metric}" + (f" of task {chosen.task}" if chosen.task not in ("", chosen.metric) else "")
    if chosen.rank == TRAINING:
        note += ", which is measured on training prompts and is not a held-out score"
    if rest and not given_by_user:
        note += f"; other metrics: {listed(rest, most=4)}"
    return note


def points_of(
    rows: list[Row], dialect: Dialect, chosen: Candidate, devices: float | None, columns: Mapping[str, str]
) -> tuple[list[dict[str, Any]], str, list[str]]:
    """Return the points, the name of their best compute column, and the notes."""
    step_N = row_steps(rows, dialect.steps)
    picked_E, notes = evaluations(rows, step_N, chosen)
    cells: dict[str, Array] = {}
    seconds = None
    if np.isfinite(step_N[picked_E]).all():
        cells["step"] = step_N[picked_E]
        seconds, tokens, more = spending(rows, step_N, dialect)
        notes += more
        late = [int((cells["step"] > s.steps[-1]).sum()) for s in (seconds, tokens) if s is not None]
        if any(late):
            notes.append(f"evaluations after the last training row, extrapolated at its pace: {max(late)}")
        if tokens is not None:
            cells["tokens"] = tokens.by(cells["step"])
    count = devices if devices is not None else dialect.devices(rows)
    if seconds is not None and count is not None:
        cells["device_hours"] = seconds.by(cells["step"]) * count / 3600
    for role, name in as_it_stands(dialect, columns).items():
        cell_E = column([rows[i] for i in picked_E], name)
        if np.isfinite(cell_E).any():
            cells[role] = cell_E
    axis = next((name for name in (*AXES, "step") if name in cells), None)
    if axis is None:
        raise CurveError(
            f"no compute for {chosen.metric}: the log has neither {', '.join((*AXES, 'step'))} nor a step column "
            f"of {dialect.name}; name one with columns= (--column step=NAME)"
        )
    notes += compute_notes(axis, dialect, seconds, count, devices is not None)
    cells["pass_rate"] = column([rows[i] for i in picked_E], chosen.metric)
    return as_rows(cells, chosen.task or chosen.metric), axis, notes


def evaluations(rows: list[Row], step_N: Array, chosen: Candidate) -> tuple[NDArray[np.intp], list[str]]:
    """Return the indices of the rows that become points, by step if there are steps, and notes about those left out."""
    value_N = column(rows, chosen.metric)
    notes = []
    if chosen.task and any("task" in row for row in rows):
        value_N[[row.get("task", chosen.task) != chosen.task for row in rows]] = np.nan
    else:
        bad = sum(chosen.metric in row for row in rows) - int(np.isfinite(value_N).sum())
        notes += [f"evaluations without a number (NaN) were left out: {bad}"] if bad else []
    picked_E = np.flatnonzero(np.isfinite(value_N))
    if not len(picked_E):
        raise CurveError(f"{chosen.metric} has no finite value in this log; choose another by metric= (--metric)")
    stepped_E = np.isfinite(step_N[picked_E])
    if not stepped_E.any():
        return picked_E, notes
    if not stepped_E.all():
        notes.append(f"evaluations without a step were left out: {int((~stepped_E).sum())}")
        picked_E = picked_E[stepped_E]
    _, last_E = last_of_each(step_N[picked_E], picked_E.astype(np.float64))
    repeated = len(picked_E) - len(last_E)
    notes += [f"repeated evaluations of a step, of which the last counts: {repeated}"] if repeated else []
    return last_E.astype(np.intp), notes


def as_it_stands(dialect: Dialect, columns: Mapping[str, str]) -> dict[str, str]:
    """Return columns by role that already contain totals."""
    roles = (*AXES, "stderr")
    if dialect.name == "table":
        return {role: columns.get(role, role) for role in roles}
    return {role: columns[role] for role in roles if role in columns and role != "tokens"}


def as_rows(cells: dict[str, Array], task: str) -> list[dict[str, Any]]:
    """Return rows of a points.jsonl; missing numbers are left out, and whole steps are integers."""
    order = [name for name in ("step", *AXES, "pass_rate", "stderr") if name in cells]
    points = []
    for values in zip(*(cells[name].tolist() for name in order), strict=True):
        point = {name: value for name, value in zip(order, values, strict=True) if value == value}
        if "step" in point and point["step"].is_integer():
            point["step"] = int(point["step"])
        points.append({**point, "task": task})
    return points


def spending(rows: list[Row], step_N: Array, dialect: Dialect) -> tuple[Spent | None, Spent | None, list[str]]:
    """Return seconds and tokens by step, from the best existing columns, and notes about missing parts."""
    notes: list[str] = []
    seconds = tokens = None
    if name := present(rows, dialect.seconds):
        seconds = spent_by_step(step_N, column(rows, name), "time")
    elif name := present(rows, dialect.clocks):
        seconds = spent_by_counter(step_N, column(rows, name), False, f"the clock {name}")
        notes.append(f"{name} is the run's clock: it includes evaluation and checkpoints, which cannot be separated")
    if name := present(rows, dialect.step_tokens):
        tokens = spent_by_step(step_N, column(rows, name), "tokens")
    elif name := present(rows, dialect.tokens):
        tokens = spent_by_counter(step_N, column(rows, name), True, f"the counter {name}")
    more = [spent.notes for spent in (seconds, tokens) if spent is not None]
    return seconds, tokens, [*notes, *dict.fromkeys(note for some in more for note in some)]


def compute_notes(axis: str, dialect: Dialect, seconds: Spent | None, count: float | None, given: bool) -> list[str]:
    """Return notes about the compute axis, and about why a better one is not available."""
    if axis == "device_hours" and seconds is not None:
        origin = "as given" if given else "by perf/throughput"
        return [f"device-hours: {dialect.about}; times {count:g} devices, {origin}"]
    if axis in ("device_hours", "flops", "compute"):
        return []
    if dialect.name == "table" and seconds is None:
        return [f"compute falls back to {axis}: the table has no device_hours"]
    uncounted = "the log does not contain the number of devices; give devices= (--devices)"
    why = "the log has no times" if seconds is None else uncounted
    return [f"compute falls back from device-hours to {axis}: {why}"]


def check_bounds(points: list[dict[str, Any]], bounds: tuple[float, float], metric: str) -> None:
    """Refuse a metric outside its bounds, by default [0, 1]; clip rounding errors."""
    low, high = checked_bounds(bounds)
    values = np.array([point["pass_rate"] for point in points])
    outside = values[(values < low - 1e-9) | (values > high + 1e-9)]
    if len(outside):
        least, most = ("0", "100") if values.min() >= 0 and values.max() <= 100 else ("-1", "1")
        raise CurveError(
            f"{metric}: {len(outside)} of {len(values)} values are outside [{low:g}, {high:g}]; the values range from "
            f"{values.min():g} to {values.max():g}. Give bounds=({least}, {most}) or --bounds {least} {most}"
        )
    for point in points:  # rounding in the log
        point["pass_rate"] = min(max(point["pass_rate"], low), high)


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
    return json.dumps([row.get(name) for name in ("task", "step", "pass_rate", "metric")])
