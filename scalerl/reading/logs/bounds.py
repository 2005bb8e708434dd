"""The range of a metric, which a fit needs: as given, as its name says, from logged extremes, or from its values."""

from __future__ import annotations

import re

import numpy as np

from scalerl.reading.curves.curve import checked_bounds
from scalerl.reading.logs.dialect import Dialect, match
from scalerl.reading.tables.errors import LogError
from scalerl.reading.tables.table import Array, Table, key

Bounds = tuple[float, float]

STRAY = 0.02
"""Largest share of values outside a known range, and their largest distance from it as a share of the range."""

NICE = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Leading digits of bounds that are rounded outward."""

FROM_VALUES = "the smallest and largest value in the log, rounded outward"
"""Where bounds come from that nothing else says: they move while the values of a run that trains go on."""

FAR_FROM_ZERO = 20.0
"""Values above this that vary by less than half are not measured from 0."""

SHARE_NAMES = re.compile(
    r"acc(?:uracy)?(?:_|$)|pass|success|solve|correct|win_?rate|exact_match|(?:^|_)em(?:_|$)|(?:^|_)f1(?:_|$)"
    r"|rate(?:_|$)"
)
"""Names of metrics that are shares of answers, in [0, 1] or in percent."""


def bounds_of(table: Table, dialect: Dialect, metric: str, bounds: Bounds | None) -> tuple[Bounds, str, list[str]]:
    """Return the bounds of a metric, where they come from, and notes.

    Raises:
        CurveError: Given bounds are not ascending, or values of the metric lie outside.
    """
    value_N = table.column(metric)
    value_E = value_N[np.isfinite(value_N)]
    if bounds is not None:
        low, high = checked_bounds(bounds)
        outside = outside_of(value_E, low, high, 1e-9)
        if len(outside):
            guess = observed(value_E)
            raise LogError(
                f"{metric}: {len(outside)} of {len(value_E)} values are outside [{low:g}, {high:g}]; the values range "
                f"from {value_E.min():g} to {value_E.max():g}. Leave out --bounds, "
                f"or give --bounds {guess[0]:g} {guess[1]:g}",
                without="--bounds",
            )
        return (low, high), "as given", []
    for text, limits in dialect.ranges:
        if match(text, metric) and not len(outside_of(value_E, *limits, 1e-9)):
            return limits, f"the range of this metric in {dialect.title}", []
    if (total := total_of(table, metric)) is not None:
        return (0.0, total[1]), f"a number of answers, of those in {total[0]}", []
    if fits(value_E, 0.0, 1.0):
        origin = "a share of answers" if SHARE_NAMES.search(key(metric)) else "the values lie in it"
        if (logged := logged_extremes(table, dialect, metric)) is not None and not fits(np.array(logged), 0.0, 1.0):
            return rounded_bounds(*logged), "smallest and largest reward in the log, rounded outward", []
        stray = len(outside_of(value_E, 0.0, 1.0, 1e-6))
        notes = [f"{stray} of {len(value_E)} values are outside [0, 1] by less than {STRAY:g} and were clipped"]
        return (0.0, 1.0), origin, notes if stray else []
    if SHARE_NAMES.search(key(metric)) and fits(value_E, 0.0, 100.0) and value_E.max() > 5:
        return (0.0, 100.0), "a percentage", []
    if value_E.min() < 0 and fits(value_E, -1.0, 1.0):
        return (-1.0, 1.0), "the values lie in it", []
    if (parts := sum_of_parts(table, metric)) is not None and fits(value_E, *parts):
        return parts, "the sum of its reward functions", []
    if (logged := logged_extremes(table, dialect, metric)) is not None:
        least, most = min(logged[0], float(value_E.min())), max(logged[1], float(value_E.max()))
        return rounded_bounds(least, most), "smallest and largest reward in the log, rounded outward", []
    return observed(value_E), FROM_VALUES, []


ANSWERS = re.compile(r"(?:.*_)?(?:correct|solved|passed|successes)")
TOTAL = re.compile(r"(?:.*_)?(?:total|count|n|samples|prompts|questions|problems|examples)(?:_total)?")
"""Names of a number of right answers and of all answers, as `table.key` writes them."""


def total_of(table: Table, metric: str) -> tuple[str, float] | None:
    """Return the column with the number of all answers, and that number, if the metric counts the right ones."""
    count_N, rows_N = table.column(metric), table.present(metric)
    if not ANSWERS.fullmatch(key(metric)) or (count_N[rows_N] % 1).any() or count_N[rows_N].max() <= 1:
        return None
    for name in table.names:
        total_E = table.column(name)[rows_N]
        if TOTAL.fullmatch(key(name)) and np.ptp(total_E) == 0 and (total_E >= count_N[rows_N]).all():
            return name, float(total_E[0])
    return None


def fits(value_E: Array, low: float, high: float) -> bool:
    """Return whether values lie in a range, except for a few that lie beyond it by very little."""
    far = outside_of(value_E, low, high, STRAY * (high - low))
    near = outside_of(value_E, low, high, 1e-6 * (high - low))
    return not len(far) and len(near) <= max(1, STRAY * len(value_E))


def outside_of(value_E: Array, low: float, high: float, slack: float) -> Array:
    """Return the values outside a range."""
    return value_E[(value_E < low - slack) | (value_E > high + slack)]


def logged_extremes(table: Table, dialect: Dialect, metric: str) -> Bounds | None:
    """Return the smallest and largest single reward, if the trainer logs them beside their mean."""
    for text, low, high in dialect.extremes:
        least, most = table.find(low), table.find(high)
        if match(text, metric) and least is not None and most is not None:
            low_N, high_N = table.column(least), table.column(most)
            bounds = float(np.nanmin(low_N)), float(np.nanmax(high_N))
            return bounds if bounds[0] < bounds[1] else None
    return None


def sum_of_parts(table: Table, metric: str) -> Bounds | None:
    """Return the range of TRL's `reward`, the sum of its functions, if each of them lies in [0, 1] or [-1, 1]."""
    prefix = re.fullmatch(r"((?:.*_)?)reward", key(metric))
    if prefix is None:
        return None
    parts = [
        n
        for n in table.names
        if re.fullmatch(rf"{prefix[1]}rewards_(?:(?!.*_std$).+_mean|(?!.*(?:_std|_mean)$).+)", key(n))
    ]
    if not parts:
        return None
    total_N = np.sum([table.column(name) for name in parts], axis=0)
    both_N = np.isfinite(total_N) & table.present(metric)
    if not both_N.any() or not np.allclose(total_N[both_N], table.column(metric)[both_N], atol=0.02, rtol=0.02):
        return None  # weighted
    ranges = []
    for name in parts:
        value_E = table.column(name)[table.present(name)]
        ranges.append(
            (0.0, 1.0) if fits(value_E, 0.0, 1.0) else (-1.0, 1.0) if fits(value_E, -1.0, 1.0) else observed(value_E)
        )
    return sum(low for low, _ in ranges), sum(high for _, high in ranges)


def observed(value_E: Array) -> Bounds:
    """Return the range of values, rounded outward."""
    return rounded_bounds(float(value_E.min()), float(value_E.max()))


def rounded_bounds(least: float, most: float) -> Bounds:
    """Return a range around two values: 0 or a round number at each end; at least as wide as the values."""
    low = -max(1.0, outward(-least)) if least < 0 else 0.0
    high = max(1.0, outward(most)) if most > 0 else 0.0
    if least > FAR_FROM_ZERO and most < 1.5 * least:  # such as an Elo rating
        width = outward(max(most - least, 1e-6 * high))
        low = float(np.floor((least - width) / width) * width)
        high = float(np.ceil((most + width) / width) * width)
    return (low, high) if low < high else (low, low + 1.0)


def outward(value: float) -> float:
    """Return the next round number at or above a positive value: 1.1 gives 2, 37 gives 40."""
    scale = 10.0 ** np.floor(np.log10(value))
    digit = next((digit for digit in NICE if value <= digit * scale * (1 + 1e-9)), 10.0)
    return float(digit * scale)
