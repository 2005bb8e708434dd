"""Measurement of the lag of new weights in decode steps, for `rollouts.lag_ticks = "measure"`."""

from __future__ import annotations

import math

from scalerl.rollouts.pipeline import RolloutBatch


def measured_lag(update_s: float, taken: RolloutBatch, slots: int) -> int:
    """Return the lag in ticks: 1.5 times the longer of an update and the generation of a batch.

    With this lag neither side waits for the other; the factor 1.5 absorbs the variation of both.

    Args:
        update_s: Duration of an update, seconds.
        taken: A batch, with the generators' counters when it was complete.
        slots: Number of sequences decoded together.
    """
    update_ticks = update_s / (taken.stats.busy_s / taken.stats.tick)
    batch_ticks = sum(len(r) for scored in taken.groups for r in scored.group.rollouts) / slots
    return math.ceil(1.5 * max(update_ticks, batch_ticks))
