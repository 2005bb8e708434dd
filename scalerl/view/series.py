"""Metrics of a run as columns, and their minimum, mean and maximum over buckets of steps for figures.

Axes in names: N steps, K buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Columns:
    """Columns of numbers by step; other values are NaN."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make empty columns with these names."""
        self.names = tuple(names)
        self._places = {name: place for place, name in enumerate(self.names)}
        self._values, self._count = np.empty((256, len(self.names))), 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        if self._count == len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        try:
            self._values[self._count] = [row.get(name) for name in self.names]  # numpy reads None as NaN
        except (TypeError, ValueError):  # a string or a list instead of a number
            self._values[self._count] = [number(row.get(name)) for name in self.names]
        self._count += 1

    def clear(self) -> None:
        """Remove all rows."""
        self._count = 0

    def column(self, name: str) -> Array:
        """Return a column, shape (N,)."""
        return self._values[: self._count, self._places[name]]

    def between(self, low: float, high: float) -> slice:
        """Return the rows between two steps, plus one on each side so that lines reach the edge."""
        step_N = self.column("step")
        first, last = np.searchsorted(step_N, [low, high], side="left")
        return slice(max(0, int(first) - 1), int(last) + 2)


def number(value: Any) -> float:
    """Return a JSON value as a number; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else float("nan")


def bucketed(step_N: Array, value_N: Array, most: int) -> dict[str, list[float | None]]:
    """Reduce a series to at most `most` buckets, each with minimum, mean and maximum of neighboring steps.

    Args:
        step_N: Increasing steps.
        value_N: Values; NaN is ignored.
        most: K, maximum number of buckets.

    Returns:
        Lists x, low, mean and high, (K,) each; None for values that are not finite.
    """
    known_N = np.isfinite(value_N)
    step_N, value_N = step_N[known_N], value_N[known_N]
    if len(step_N) <= most:
        values = plain(value_N)
        return {"x": plain(step_N), "low": values, "mean": values, "high": values}
    first_K = np.linspace(0, len(step_N), most + 1).astype(int)[:-1]
    count_K = np.diff([*first_K, len(step_N)])
    return {
        "x": plain(np.add.reduceat(step_N, first_K) / count_K),
        "low": plain(np.minimum.reduceat(value_N, first_K)),
        "mean": plain(np.add.reduceat(value_N, first_K) / count_K),
        "high": plain(np.maximum.reduceat(value_N, first_K)),
    }


def plain(value_N: Array) -> list[float | None]:
    """Round numbers to about six digits; None for values that are not finite."""
    known_N = np.isfinite(value_N)
    safe_N = np.where(known_N & (value_N != 0), value_N, 1.0)
    # powers of ten above 1 are exact, so that dividing by them gives the nearest number with few digits
    power_N = np.clip(5 - np.floor(np.log10(np.abs(safe_N))), -300, 300)
    up_N, down_N = 10.0 ** np.maximum(power_N, 0), 10.0 ** np.maximum(-power_N, 0)
    rounded = np.where(value_N == 0, 0.0, np.round(safe_N * up_N / down_N) / up_N * down_N).tolist()
    return [value if known else None for value, known in zip(rounded, known_N.tolist(), strict=True)]
