"""Warns when the curve of a run declines, and names the metrics that moved with it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalerl.scaling import Curve
from scalerl.scaling.health import decline

WATCHED = {
    "entropy": "entropy",
    "log_ratio_mean": "log ratio",
    "truncation_rate": "truncation",
    "staleness_mean": "staleness",
}
"""Columns of metrics.jsonl to check if a run declines, and their names in text."""

KEPT = 400
"""Number of latest rows of metrics that are kept."""

RECENT = 0.2
"""Share of the kept rows that count as recent."""

MOVED = 3.0
"""A metric has moved if its recent mean is this many standard deviations away from the earlier one."""

LEAST_ROWS = 20


class FallWatch:
    """Watches the rows and curves of a run; warns once for each decline."""

    def __init__(self, warned: Iterable[str] = ()) -> None:
        """Prepare for a run; `warned` names the curves with a warning before the run was resumed."""
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=KEPT)
        self._warned: set[str] = set(warned)

    @property
    def warned(self) -> list[str]:
        """Falling curves that the user was warned about."""
        return sorted(self._warned)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics."""
        self._rows.append(row)

    def warning(self, curve: Curve) -> str | None:
        """Return a warning about the curve of a task; None without a decline, or after an earlier warning about it."""
        symptom = decline(curve)
        if symptom is None:
            self._warned.discard(curve.label)
            return None
        if curve.label in self._warned:
            return None
        self._warned.add(curve.label)
        fell = f"the held-out metric of {curve.label} has fallen by {symptom.numbers['fall']:.3f} since its best"
        changes = moved(list(self._rows))
        if not changes:
            return f"{fell}; entropy, log ratio, truncation and staleness in metrics.jsonl did not move clearly"
        return f"{fell}; metrics that moved: {', '.join(changes)}"


def moved(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the watched metrics whose recent mean differs from the earlier one by more than their scatter."""
    recent = int(RECENT * len(rows))
    found = []
    for column, name in WATCHED.items():
        values = [float(row[column]) for row in rows if math.isfinite(row.get(column, math.nan))]
        if len(values) < LEAST_ROWS:
            continue
        before, now = values[:-recent], values[-recent:]
        mean = math.fsum(before) / len(before)
        scatter = math.sqrt(math.fsum((value - mean) ** 2 for value in before) / len(before))
        level = math.fsum(now) / len(now)
        # with the standard error of the mean, any slow drift would count as moved
        if abs(level - mean) > MOVED * max(scatter, 1e-3 * abs(mean), 1e-9):
            found.append(f"{name} from {mean:.3g} to {level:.3g}")
    return found
