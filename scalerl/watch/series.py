"""The metrics of a run as columns of numbers, and what a picture needs of them: least, mean and greatest of buckets.

Axes in names: N steps, K buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Columns:
    """Numbers by step; what is no number is NaN."""

    def __init__(self, names: Sequence[str]) -> None:
        """Prepare for rows of which these names are kept."""
        self.names = tuple(names)
        self._places = {name: place for place, name in enumerate(self.names)}
        self._values, self._count = np.empty((256, len(self.names))), 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in a row."""
        if self._count == len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        try:
            self._values[self._count] = [row.get(name) for name in self.names]  # numpy reads None as NaN
        except (TypeError, ValueError):  # a text or a list in the place of a number
            self._values[self._count] = [number(row.get(name)) for name in self.names]
        self._count += 1

    def clear(self) -> None:
        """Forget all rows."""
        self._count = 0

    def column(self, name: str) -> Array:
        """Return the values of a name, shape (N,)."""
        return self._values[: self._count, self._places[name]]

    def between(self, low: float, high: float) -> slice:
        """Return the rows whose step lies between two, with one more on each side, so that lines reach the edge."""
        step_N = self.column("step")
        first, last = np.searchsorted(step_N, [low, high], side="left")
        return slice(max(0, int(first) - 1), int(last) + 2)


def number(value: Any) -> float:
    """Return a JSON value as a number; NaN where it is none."""
    return float(value) if isinstance(value, int | float) else float("nan")


def bucketed(step_N: Array, value_N: Array, most: int) -> dict[str, list[float | None]]:
    """Return a series with at most so many places, each the least, mean and greatest of neighbouring steps.

    Args:
        step_N: steps in their order.
        value_N: values; NaN is left out.
        most: number K of places.

    Returns:
        Lists x, low, mean and high, (K,) each; None where a bucket has no value.
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
    """Return numbers with about six digits; None where they are not finite."""
    known_N = np.isfinite(value_N)
    safe_N = np.where(known_N & (value_N != 0), value_N, 1.0)
    # a power of ten above 1 is exact, so that dividing by it leaves the nearest number with few digits
    power_N = np.clip(5 - np.floor(np.log10(np.abs(safe_N))), -300, 300)
    up_N, down_N = 10.0 ** np.maximum(power_N, 0), 10.0 ** np.maximum(-power_N, 0)
    rounded = np.where(value_N == 0, 0.0, np.round(safe_N * up_N / down_N) / up_N * down_N).tolist()
    return [value if known else None for value, known in zip(rounded, known_N.tolist(), strict=True)]
