"""The lag of new weights in decode steps, where the configuration has it measured."""

from __future__ import annotations

import math

from scalerl.rollouts.pipeline import RolloutBatch


def measured_lag(update_s: float, taken: RolloutBatch, slots: int) -> int:
    """Return the lag in ticks that covers the longer of an update's time and a batch's generation.

    Then neither side waits for the other; half as much again absorbs the variation of both.

    Args:
        update_s: seconds of an update.
        taken: a batch, with the generators' counters when it was complete.
        slots: sequences decoded together.
    """
    update_ticks = update_s / (taken.stats.busy_s / taken.stats.tick)
    batch_ticks = sum(len(r) for scored in taken.groups for r in scored.group.rollouts) / slots
    return math.ceil(1.5 * max(update_ticks, batch_ticks))
