"""The compute of a log's points: device-hours from any usual clock, tokens, or steps, and where it came from.

Axes in names: N rows of the log, E points.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.logs.choose import Candidate
from scalerl.reading.logs.dialect import Dialect, match
from scalerl.reading.logs.dialects import (
    CLOCK_WITH_UNIT,
    GENERAL_CLOCKS,
    GENERAL_RATES,
    GENERAL_SECONDS,
    GENERAL_STEP_TOKENS,
    GENERAL_TOKENS,
    STEP_TIME_WITH_UNIT,
    UNIT_SECONDS,
    verl_devices,
)
from scalerl.reading.logs.join import Spent, includes, spent_by_counter, spent_by_step, summed
from scalerl.reading.tables.names import AXES
from scalerl.reading.tables.table import WRAPPERS, Array, Table, key

DEVICE = r"(?:gpu|device|accelerator|tpu|[abhlv]\d{2,3})s?"
WRAPPER_PREFIX = rf"(?:(?:{'|'.join(WRAPPERS)})_)?"
TOTALS = {
    "device_hours": (
        re.compile(rf"(?:.*_)?{DEVICE}_?(?:(?P<h>h|hrs?|hours)|(?P<d>days?)|(?P<min>min|minutes))"),
        {"h": 1.0, "d": 24.0, "min": 1 / 60},
    ),
    "flops": (
        re.compile(rf"{WRAPPER_PREFIX}(?:total_)?(?:(?P<g>g)|(?P<t>t)|(?P<p>p)|(?P<e>e)|(?P<z>z))?flops?"),
        {"": 1.0, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21},
    ),
    "tokens": (
        re.compile(r"(?:.*_)?tokens_(?:in_)?(?:(?P<k>k|thousands?)|(?P<m>m|millions?)|(?P<b>b|billions?))"),
        {"k": 1e3, "m": 1e6, "b": 1e9},
    ),
    "compute": (re.compile(rf"{WRAPPER_PREFIX}compute"), {"": 1.0}),
}
"""Names of columns with the compute so far, as `plain_key` writes them, and the factors of their units, by axis."""

NO_CLOCK = re.compile(rf"(?:.*_)?(?:{DEVICE}|nodes?|cores?|cpus?)_.*")
"""Hours of these are not hours of a clock."""


@dataclass(frozen=True, eq=False)
class Compute:
    """The compute of each point.

    Example:
        Compute(cells={"tokens": array([1e6, 2e6])}, axis="tokens", origin="num_tokens; no clock in the log", notes=())
    """

    cells: dict[str, Array]
    """Compute of each point by axis, shape (E,)."""
    axis: str
    """The best axis."""
    origin: str
    """Where it came from, and why no better one was used."""
    notes: tuple[str, ...]
    clock: bool = False
    """Whether the log has the time of its steps, so that the number of devices is all that device-hours lack."""


@dataclass(frozen=True, eq=False)
class Amount:
    """Seconds or tokens up to each step, and where they came from."""

    spent: Spent
    origin: str
    notes: tuple[str, ...] = ()


def compute_of(
    table: Table,
    step_N: Array,
    picked_E: NDArray[np.intp],
    dialect: Dialect,
    candidate: Candidate,
    pulse: str,
    devices: float | None,
    columns: Mapping[str, str],
) -> Compute:
    """Return the compute of the points in some rows.

    Args:
        table: The log.
        step_N: The step of each row, NaN without one.
        picked_E: The rows of the points.
        dialect: The names of the trainer.
        candidate: The metric.
        pulse: The column that occurs once per update.
        devices: Number of devices from the user, or None.
        columns: Columns from the user, by role.
    """
    seconds, tokens, notes = None, None, list[str]()
    cells: dict[str, Array] = {}
    if np.isfinite(step_N[picked_E]).all():
        ends_N, at_E = ends_of(table, step_N, picked_E, dialect, candidate)
        seconds = seconds_of(table, ends_N, dialect, pulse)
        tokens = tokens_of(table, ends_N, dialect, pulse)
        for amount in (seconds, tokens):
            if amount is not None:
                notes += [*amount.notes, *amount.spent.notes]
        late = [int((at_E > amount.spent.steps[-1]).sum()) for amount in (seconds, tokens) if amount is not None]
        if any(late):
            notes.append(f"evaluations after the last training row, extrapolated at its pace: {max(late)}")
        if tokens is not None:
            cells["tokens"] = tokens.spent.by(at_E)
    count = devices if devices is not None else verl_devices(table) if dialect.name == "verl" else None
    if seconds is not None and count is not None:
        cells["device_hours"] = seconds.spent.by(at_E) * count / 3600
    totals = total_columns(table, dialect, columns)
    for axis, (column, factor) in totals.items():
        cell_E = factor * table.column(column)[picked_E]
        if np.isfinite(cell_E).any():
            cells[axis] = cell_E
    best = next((name for name in AXES if name in cells), "step")
    origin = origin_of(best, totals, seconds, tokens, count, devices)
    return Compute(cells, best, origin, tuple(dict.fromkeys(notes)), seconds is not None)


def ends_of(
    table: Table, step_N: Array, picked_E: NDArray[np.intp], dialect: Dialect, candidate: Candidate
) -> tuple[Array, Array]:
    """Return the number of updates after each row, shape (N,), and before each point, shape (E,).

    A trainer that counts steps from 0 has made s + 1 updates at the end of the row of step s.
    """
    timed_N = np.zeros(table.size, dtype=bool)
    for name in (*dialect.seconds, *dialect.parts, *dialect.step_tokens, *GENERAL_SECONDS):
        if (column := table.find(name)) is not None:
            timed_N |= table.present(column)
    timed_N &= np.isfinite(step_N)
    zero = (dialect.from_zero or not dialect.marks) and timed_N.any() and step_N[timed_N].min() == 0
    ends_N = step_N + 1.0 if zero else step_N
    at_E = step_N[picked_E]
    if zero and (candidate.training or dialect.evaluates_after):
        # an evaluation before training has the same number as the one after the first update
        first = int(np.flatnonzero(timed_N)[0])
        before_E = (at_E == 0) & (picked_E < first) & (not candidate.training)
        at_E = np.where(before_E, 0.0, at_E + 1.0)
    return ends_N, at_E


# ------------------------------------------------------------------------------------------------------------ seconds


def seconds_of(table: Table, ends_N: Array, dialect: Dialect, pulse: str) -> Amount | None:
    """Return the training seconds up to each step: from the time of a step, its parts, or a clock; None without any."""
    names = [*dialect.seconds] if dialect.seconds or dialect.parts or dialect.clocks else []
    if (column := table.first(names)) is not None:
        return step_seconds(table, ends_N, dialect, column, table.column(column))
    parts = [c for name in dialect.parts if (c := table.find(name)) is not None]
    if parts and (spent := spent_by_step(ends_N, summed(table, parts), "time")) is not None:
        return Amount(spent, dialect.about)
    for name in dialect.clocks:
        if (column := table.find(name)) is not None and (amount := clock(table, ends_N, column, pulse)):
            return amount
    return general_seconds(table, ends_N, dialect, pulse)


def step_seconds(table: Table, ends_N: Array, dialect: Dialect, column: str, seconds_N: Array) -> Amount | None:
    """Return the sum of the times of steps, without evaluation and checkpoints if they are inside."""
    aside_N, timers = aside_of(table, ends_N, seconds_N, dialect)
    notes: list[str] = []
    if timers:
        inside = includes(ends_N, seconds_N, aside_N)
        if inside is None:
            inside = bool(np.nanmedian(aside_N[aside_N > 0] / seconds_N[aside_N > 0]) < 1)
        if inside:
            seconds_N = np.where(aside_N < seconds_N, seconds_N - aside_N, seconds_N)
            notes = [f"{column} includes {' and '.join(timers)} in this log; they were subtracted"]
    spent = spent_by_step(ends_N, seconds_N, "time")
    if spent is None:
        return None
    is_described = column == table.first(dialect.seconds) and len(dialect.about) > 0
    return Amount(spent, dialect.about if is_described else f"{column}, summed", tuple(notes))


def aside_of(table: Table, ends_N: Array, seconds_N: Array, dialect: Dialect) -> tuple[Array, list[str]]:
    """Return the seconds of evaluation and checkpoints in the step of each timed row, and the timers."""
    total_N, timers = np.zeros(table.size), []
    for text in dialect.aside:
        columns = [name for name in table.names if match(text, name)]
        if not columns:
            continue
        timers.append(columns[0])
        # environments are evaluated in parallel, so the longest counts; the timers may be in another row of the step
        longest_N = np.nanmax(np.nan_to_num([table.column(name) for name in columns]), axis=0)
        there_N = (longest_N > 0) & np.isfinite(ends_N)
        steps, first = np.unique(ends_N[there_N], return_index=True)
        timed_N = np.isfinite(seconds_N) & np.isfinite(ends_N)
        if len(steps):
            place_N = np.clip(np.searchsorted(steps, np.where(timed_N, ends_N, steps[0])), 0, len(steps) - 1)
            same_N = timed_N & (steps[place_N] == ends_N)
            total_N += np.where(same_N, longest_N[there_N][first][place_N], 0.0)
    return total_N, timers if (total_N > 0).any() else []


def general_seconds(table: Table, ends_N: Array, dialect: Dialect, pulse: str) -> Amount | None:
    """Return the training seconds of a log whose trainer is unknown, or that lacks the trainer's own timers."""
    named = [(column, 1.0) for name in GENERAL_SECONDS if (column := table.find(name)) is not None]
    for column, unit_s in [*named, *with_units(table, STEP_TIME_WITH_UNIT)]:
        value_N = table.column(column) * unit_s
        if not grows(value_N[np.isfinite(value_N)]):
            return step_seconds(table, ends_N, dialect, column, value_N)
    if (column := table.first(GENERAL_RATES)) is not None:
        with np.errstate(divide="ignore"):
            seconds_N = 1.0 / table.column(column)
        if (spent := spent_by_step(ends_N, seconds_N, "time")) is not None:
            return Amount(spent, f"1 / {column}, summed")
    for name in GENERAL_CLOCKS:
        if (column := table.find(name)) is None:
            continue
        if (amount := clock(table, ends_N, column, pulse)) is not None:
            return amount
        if name in ("time", "seconds", "time_s", "train_time", "training_time", "total_time"):
            value_N = table.column(column)
            if not grows(value_N[np.isfinite(value_N)]):
                return step_seconds(table, ends_N, dialect, column, value_N)
    for column, unit_s in with_units(table, CLOCK_WITH_UNIT):
        amount = clock(table, ends_N, column, pulse, unit_s)
        if amount is not None and not NO_CLOCK.fullmatch(plain_key(column)):
            return amount
    return None


def with_units(table: Table, pattern: re.Pattern[str]) -> list[tuple[str, float]]:
    """Return the columns whose names end in a unit of time, each with its seconds."""
    matches = [(name, pattern.fullmatch(plain_key(name))) for name in table.names]
    groups = [(name, match_of_name.lastgroup) for name, match_of_name in matches if match_of_name]
    return [(name, UNIT_SECONDS[group.rpartition("_")[2]]) for name, group in groups if group]


def plain_key(name: str) -> str:
    """Return `table.key` of a name without brackets: `Wall Clock (min)` is wall_clock_min."""
    return key(re.sub(r"[()\[\]]", " ", name))


def counts_up(table: Table, column: str) -> bool:
    """Return whether no value of a column is below the one before it, and the last is above the first."""
    values = table.cells[column][1][np.isfinite(table.cells[column][1])]
    return bool((np.diff(values) >= 0).all() and values[-1] > values[0])


def grows(values: Array) -> bool:
    """Return whether a column counts up, and is not an amount per step."""
    if len(values) < 3:
        return False
    steps = np.diff(values)
    return bool((steps >= 0).mean() > 0.9 and (steps > 0).mean() > 0.5 and values[-1] > 1.5 * abs(np.median(steps)))


MILLISECONDS = 1e11
"""Dates above this are in milliseconds (as seconds, they would be after the year 5000)."""


def clock(table: Table, ends_N: Array, column: str, pulse: str, unit: float = 1.0) -> Amount | None:
    """Return the seconds by a clock of the run; None if the column does not count up.

    Only rows of updates count: other calls of log are moments before or after them.
    """
    clock_N = table.column(column) * unit
    rows_N = table.present(pulse)
    if (np.isfinite(clock_N) & rows_N).sum() < 0.5 * rows_N.sum():
        rows_N = np.isfinite(clock_N)
    values = clock_N[rows_N & np.isfinite(clock_N) & np.isfinite(ends_N)]
    if not grows(values):
        return None
    if np.median(values) > MILLISECONDS:
        clock_N = clock_N / 1000
    spent = spent_by_counter(np.where(rows_N, ends_N, np.nan), clock_N, False, f"the clock {column.lstrip('@')}")
    if spent is None:
        return None
    words = "times of the lines" if column.startswith("@") else f"the clock {column}"
    return Amount(spent, f"{words}, which includes evaluation and checkpoints")


# ------------------------------------------------------------------------------------------------------------- tokens


def tokens_of(table: Table, ends_N: Array, dialect: Dialect, pulse: str) -> Amount | None:
    """Return the tokens up to each step, from amounts per step or a counter; None without any."""
    for text in dialect.step_tokens:
        parts = [table.find(part.strip()) for part in text.split("+")]
        columns = [part for part in parts if part is not None]
        if len(columns) == len(parts):
            spent = spent_by_step(ends_N, summed(table, columns), "tokens")
            if spent is not None:
                return Amount(spent, f"{' + '.join(columns)}, summed")
    for name in dialect.tokens:
        if (column := table.find(name)) is not None and (amount := counter(table, ends_N, column, pulse)) is not None:
            return amount
    for name in (*GENERAL_TOKENS, *GENERAL_STEP_TOKENS):
        column = table.find(name)
        if column is None:
            continue
        value_N = table.column(column)
        if name not in GENERAL_STEP_TOKENS and grows(value_N[np.isfinite(value_N)]):
            if (amount := counter(table, ends_N, column, pulse)) is not None:
                return amount
        elif (spent := spent_by_step(ends_N, value_N, "tokens")) is not None:
            return Amount(spent, f"{column}, summed")
    return None


def counter(table: Table, ends_N: Array, column: str, pulse: str) -> Amount | None:
    """Return the tokens by a column that counts them from the start of the run."""
    rows_N, value_N = table.present(pulse), table.column(column)
    if (np.isfinite(value_N) & rows_N).sum() < 0.5 * rows_N.sum():
        rows_N = np.isfinite(value_N)
    spent = spent_by_counter(np.where(rows_N, ends_N, np.nan), value_N, True, f"the counter {column}")
    return None if spent is None else Amount(spent, column)


# ------------------------------------------------------------------------------------------------------------ origins


def total_columns(table: Table, dialect: Dialect, columns: Mapping[str, str]) -> dict[str, tuple[str, float]]:
    """Return columns with totals, by axis, each with the factor of its unit."""
    totals = {axis: (columns[axis], 1.0) for axis in ("device_hours", "flops") if axis in columns}
    if dialect.marks:
        return totals
    for name in table.names:
        plain = plain_key(name)
        for axis, (pattern, factors) in TOTALS.items():
            match_of_name = pattern.fullmatch(plain)
            if match_of_name and axis not in totals and counts_up(table, name):
                totals[axis] = name, factors[match_of_name.lastgroup or ""]
    return totals


def origin_of(
    axis: str,
    totals: Mapping[str, tuple[str, float]],
    seconds: Amount | None,
    tokens: Amount | None,
    count: float | None,
    devices: float | None,
) -> str:
    """Return where the compute came from, and why no better axis was used; `--devices` is never ignored silently."""
    unused = f"; --devices {devices:g} changes nothing" if devices is not None else ""
    if axis in totals:
        return f"the column {totals[axis][0]}{unused}"
    if axis == "device_hours" and seconds is not None:
        return (
            f"{seconds.origin}; times {count:g} devices, {'as given' if devices is not None else 'by perf/throughput'}"
        )
    why = f"; the log has no clock{unused}" if seconds is None else "; for device-hours give devices= (--devices N)"
    origin = tokens.origin if axis == "tokens" and tokens is not None else "the steps of the log"
    return origin + why
