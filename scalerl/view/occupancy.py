"""Slot occupancy while a run trains: the recent mean, and a warning with a remedy if many slots are empty."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from scalerl.config import RunConfig

LOW = 0.7
"""Occupancy below which a warning is shown; a decode step costs nearly the same with empty slots as with full ones."""

WINDOW = 20
"""Number of steps over which the occupancy is averaged."""


class OccupancyWatch:
    """Watches the rows of a run; warns at most once."""

    def __init__(self, config: RunConfig) -> None:
        """Prepare for a run; the first `max_lag` steps are its ramp-up and are left out."""
        self._config = config
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self._ramp = config.recipe.off_policy.max_lag + 1
        self._warned = False

    def mean(self) -> float | None:
        """Return the mean occupancy over the last steps; None before the first."""
        known = [row["occupancy"] for row in self._rows if math.isfinite(row["occupancy"])]
        return math.fsum(known) / len(known) if known else None

    def warning(self, row: Mapping[str, Any]) -> str | None:
        """Add a row of metrics; return a warning, at most once per run."""
        if row["step"] <= self._ramp:
            return None
        self._rows.append(row)
        mean = self.mean()
        if self._warned or len(self._rows) < WINDOW or mean is None or mean >= LOW:
            return None
        self._warned = True
        return (
            f"only {mean:.0%} of the {self._config.slots} slots were busy over the last {WINDOW} steps: {self._cure()}"
        )

    def _cure(self) -> str:
        recipe, slots = self._config.recipe, self._config.slots
        off_policy, batch = recipe.off_policy, recipe.completions_per_step
        mean = sum(row["completion_tokens_mean"] for row in self._rows) / len(self._rows)
        longest = max(row["completion_tokens_max"] for row in self._rows)
        fed = (off_policy.max_lag + 1) * mean / longest * batch  # number of slots that the rule `wait` keeps busy
        if not off_policy.streams:
            return "every round waits for its longest sequence; set recipe.off_policy.kind to pipeline to avoid this"
        if off_policy.max_lag == 0:
            return "every batch waits for its longest sequence; set recipe.off_policy.max_lag above 0 to avoid this"
        if off_policy.waits and fed < 0.9 * slots:
            return (
                f"updates wait for long sequences ({longest} tokens, mean {mean:.0f}); set rollouts.slots to "
                f"{max(1, int(fed))} or fewer, or recipe.off_policy.stale to mask (old tokens then carry no loss)"
            )
        return (
            "generation is ahead of training and waits for it; increase hardware.trainer_threads or "
            f"learner.micro_batch_tokens, or set rollouts.slots below {slots}, which makes decode steps faster"
        )
