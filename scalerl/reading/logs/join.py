"""Joins evaluations to the compute used up to them.

Axes in names: N rows of a log, S distinct steps with time or tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.reading.tables.table import Array, Table

MOST_RESTARTS = 1_000
"""Restarts of a counter that are followed; a file with more is not in the order in which it was written."""

INTERRUPTED = 10.0
"""Ratio of a clock's advance per step to the usual one above which the run was interrupted or evaluated for long."""


def row_steps(table: Table, groups: Sequence[Sequence[str]]) -> Array:
    """Return the step of each row, shape (N,), from the best group of columns, or interpolated from another one.

    Columns of a group count the same and never share a row. NaN for a row without any such column.
    """
    step_N = np.full(table.size, np.nan)
    for number, group in enumerate(groups):
        other_N = coalesced(table, group)
        if not number:
            step_N = other_N
            continue
        both_N = np.isfinite(step_N) & np.isfinite(other_N)
        want_N = ~np.isfinite(step_N) & np.isfinite(other_N)
        if both_N.any() and want_N.any():
            other, first = np.unique(other_N[both_N], return_index=True)
            step_N[want_N] = straight(other_N[want_N], other, step_N[both_N][first])
    return step_N


def coalesced(table: Table, names: Iterable[str]) -> Array:
    """Return the first cell of each row in some columns, shape (N,)."""
    value_N = np.full(table.size, np.nan)
    for name in names:
        value_N = np.where(np.isfinite(value_N), value_N, table.column(name))
    return value_N


def summed(table: Table, names: Iterable[str]) -> Array:
    """Return the sum of the columns that a row has, shape (N,); NaN for a row with none of them."""
    columns = [table.column(name) for name in names]
    if not columns:
        return np.full(table.size, np.nan)
    any_N = np.isfinite(columns).any(axis=0)
    return np.where(any_N, np.nansum(columns, axis=0), np.nan)


LEAST_SHARE = 0.5
"""Part of the timers of evaluation that must reappear in the time of a step for them to be inside it."""


def includes(step_N: Array, seconds_N: Array, aside_N: Array) -> bool | None:
    """Return whether the time of a step includes the timers of evaluation and checkpoints in its row.

    Rows with these timers are compared with the steps around them; None: there are no such steps to compare with.
    """
    timed_N = np.isfinite(step_N) & np.isfinite(seconds_N)
    slow_N = timed_N & (aside_N > 0)
    plain_N = timed_N & ~(aside_N > 0)
    if not slow_N.any() or not plain_N.any():
        return None
    order = np.argsort(step_N[plain_N], kind="stable")
    steps, seconds = step_N[plain_N][order], seconds_N[plain_N][order]
    around = 4
    place = np.searchsorted(steps, step_N[slow_N])
    usual = np.array([np.median(seconds[max(0, p - around) : p + around]) for p in place])
    return bool(np.median((seconds_N[slow_N] - usual) / aside_N[slow_N]) > LEAST_SHARE)


def straight(x: Array, known_x: Array, known_y: Array) -> Array:
    """Interpolate linearly and extrapolate at both ends; a single known pair is scaled in proportion."""
    if len(known_x) == 1:
        slope = known_y / known_x if known_x[0] else np.ones(1)
    else:
        slope = np.diff(known_y) / np.diff(known_x)
    inside = np.interp(x, known_x, known_y)
    before, after = known_y[0] + (x - known_x[0]) * slope[0], known_y[-1] + (x - known_x[-1]) * slope[-1]
    return np.asarray(np.where(x < known_x[0], before, np.where(x > known_x[-1], after, inside)), dtype=np.float64)


@dataclass(frozen=True)
class Spent:
    """Seconds or tokens used up to each step.

    Example:
        Spent(steps=array([1., 2., 3.]), total=array([61., 120., 183.]), notes=())
    """

    steps: Array
    """Steps in ascending order, shape (S,)."""
    total: Array
    """Total up to and including each step, shape (S,)."""
    notes: tuple[str, ...] = ()

    def by(self, step: Array) -> Array:
        """Return the total up to any step: 0 at step 0, linear between steps and beyond the last."""
        return straight(np.maximum(step, 0.0), np.append(0.0, self.steps), np.append(0.0, self.total))


def spent_by_step(step_N: Array, amount_N: Array, what: str) -> Spent | None:
    """Return the totals of a column with amounts per step (after skipped steps, the mean since the previous row).

    The last row of each step counts, because a resumed run repeats steps and continues from the repetition.
    """
    use_N = np.isfinite(step_N) & np.isfinite(amount_N) & (amount_N >= 0)
    if not (use_N & (step_N > 0)).any():
        return None
    steps, amount = last_of_each(step_N[use_N], amount_N[use_N])
    steps, amount = steps[steps > 0], amount[steps > 0]
    gap = np.diff(steps, prepend=0.0)
    return Spent(steps, np.cumsum(gap * amount), holes(steps, gap, what))


def holes(steps: Array, gap: Array, what: str) -> tuple[str, ...]:
    """Return notes about steps without a row, which are assumed to take as much as the next row."""
    usual = float(np.median(gap))
    notes = []
    if gap[0] > 1.5 * usual:
        notes.append(f"the log begins at step {steps[0]:g}: earlier steps are assumed to take the same {what}")
    missing = int((gap[1:] > 1.5 * usual).sum())
    if missing:
        notes.append(f"steps are missing in {missing} places: they are assumed to take the {what} of the next row")
    return tuple(notes)


def last_of_each(key: Array, value: Array) -> tuple[Array, Array]:
    """Return the distinct keys in ascending order, each with its last value."""
    distinct, from_end = np.unique(key[::-1], return_index=True)
    return distinct, value[::-1][from_end]


def spent_by_counter(step_N: Array, counter_N: Array, from_zero: bool, what: str) -> Spent | None:
    """Return the totals of a column that counts up: tokens (from zero), or a clock (from an unknown start).

    For resumed runs: a restored counter continues from its value at the checkpoint, a counter that restarts from zero
    is added to the previous total, and a jump of a clock counts as one usual step.
    """
    use_N = np.isfinite(step_N) & np.isfinite(counter_N) & (step_N > 0) & (counter_N >= 0)
    steps, counter = step_N[use_N], counter_N[use_N]
    if len(steps) < 2:
        return None if not len(steps) or not from_zero else Spent(steps, counter)
    if len(np.unique(steps)) == len(steps):  # no step is repeated, so the order of rows does not matter
        order = np.argsort(steps)
        steps, counter = steps[order], counter[order]
    else:  # of consecutive rows of one step, take a counter's last; a clock's first, which precedes any evaluation
        changes = np.diff(steps) != 0
        fresh = np.append(changes, True) if from_zero else np.append(True, changes)
        steps, counter = steps[fresh], counter[fresh]
    gap, grown, restarts = growth(steps, counter, from_zero)
    usual = float(np.nanmedian(grown / gap)) if np.isfinite(grown).any() else np.nan
    if not from_zero:
        # the start of a clock includes loading the model; its jumps include the time of an interruption
        grown = np.where(grown / gap > INTERRUPTED * usual, np.nan, grown)
    jumps = int(np.isnan(grown[1:]).sum())
    if from_zero and np.isnan(grown[0]):
        grown[0] = counter[0]
    grown = np.where(np.isnan(grown), usual * gap, grown)
    if not np.isfinite(grown).all():
        return None
    at, amount = last_of_each(steps, grown)
    # a repeated step was reached from the checkpoint, so its growth is taken per step
    _, reach = last_of_each(steps, gap)
    kept_gap = np.diff(at, prepend=0.0)
    notes = (f"{what} was interrupted or reset in {max(restarts, jumps)} places",) if restarts or jumps else ()
    return Spent(at, np.cumsum(amount / reach * kept_gap), notes)


def growth(steps: Array, counter: Array, from_zero: bool) -> tuple[Array, Array, int]:
    """Return the steps and the counter's growth since the row that each row continues, and the number of restarts.

    Unknown growth (the first row, a clock that kept running over a restart) is NaN.
    """
    gap, grown = np.diff(steps, prepend=0.0), np.diff(counter, prepend=np.nan)
    restarts = np.flatnonzero((gap <= 0) | (grown < 0))
    followed = restarts[:MOST_RESTARTS]
    for i in restarts[MOST_RESTARTS:]:
        gap[i], grown[i] = max(gap[i], 1.0), np.nan
    for i, base in zip(followed, continued_rows(steps, followed), strict=True):
        gap[i] = steps[i] - (steps[base] if base >= 0 else 0.0)
        if not from_zero and counter[i] > counter[i - 1]:  # a clock that kept running while the run was interrupted
            grown[i] = np.nan
        elif base >= 0 and counter[i] >= counter[base]:  # restored from a checkpoint
            grown[i] = counter[i] - counter[base]
        else:  # restarted from zero
            grown[i] = counter[i]
    return gap, grown, len(restarts)


def continued_rows(steps: Array, at: npt.NDArray[np.intp]) -> list[int]:
    """Return the row that each of some rows continues: the last earlier one with the next smaller step, -1 without one.

    Args:
        steps: Step of each row, shape (N,).
        at: Rows, ascending.
    """
    distinct, first = np.unique(steps, return_index=True)
    ranks = np.searchsorted(distinct, steps)
    by_rank, starts = np.argsort(ranks, kind="stable"), np.searchsorted(np.sort(ranks), np.arange(len(distinct) + 1))
    # from the last row to the first, steps leave that begin later; a step that has left points to the next smaller one
    smaller, leaving, rows = list(range(len(distinct) + 1)), np.argsort(-first, kind="stable").tolist(), list[int]()
    count = 0
    for i in at[::-1].tolist():
        while count < len(leaving) and first[leaving[count]] >= i:
            smaller[leaving[count] + 1] = leaving[count]
            count += 1
        rank = int(ranks[i])  # the number of smaller steps, and the place in `smaller` of the largest of these
        while smaller[rank] != rank:
            smaller[rank] = smaller[smaller[rank]]
            rank = smaller[rank]
        candidates = by_rank[starts[rank - 1] : starts[rank]] if rank else ()
        rows.append(int(candidates[np.searchsorted(candidates, i) - 1]) if rank else -1)
    return rows[::-1]
