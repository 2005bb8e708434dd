"""Rules for when new weights become active: at a tick that the data determines, or on arrival.

To add a rule, write a subclass of `Activation` and add it to ACTIVATIONS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

LAG_BATCHES = 1.5
"""Lag in batches. If both sides are balanced, an update takes as long as a batch; the extra half absorbs the variation
of both."""

AVERAGED_BATCHES = 8
"""Batches over which Following averages."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A rule for when the generators start to use the weights trained on a batch. This one never waits for them."""

    on_arrival: ClassVar[bool] = False
    """Whether weights are used as soon as they have arrived."""

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether the weights trained on a batch must be active before this tick.

        Args:
            tick: The next tick.
            formed_at: Tick at which the batch was complete.
        """
        return False

    def formed(self, tick: int) -> Self:
        """Return the rule to use after another batch is complete at a tick."""
        return self

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the rule restored from a checkpoint: its fields by name."""
        return self


@dataclass(frozen=True, slots=True)
class AtTick(Activation):
    """Weights become active a fixed number of ticks after their batch was complete.

    The results of a run do not depend on the clock. If the trainer is late, the generators wait at that tick. If it is
    early, the weights wait.

    Example: AtTick(lag_ticks=42)
    """

    lag_ticks: int
    """Lag in ticks."""

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether `lag_ticks` have passed."""
        return tick >= formed_at + self.lag_ticks

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the rule with the lag that was in use."""
        return replace(self, lag_ticks=state.get("lag_ticks", self.lag_ticks))


@dataclass(frozen=True, slots=True)
class Following(Activation):
    """As AtTick, with a lag of 1.5 times the mean ticks of the latest batches, for runs with unknown lengths.

    Ticks are counted and not timed, so that the results do not depend on the clock.

    Example: Following(lag_ticks=24, recent=(64, 80, 96, 112, 128, 144, 160, 176, 192))
    """

    lag_ticks: int
    """Lag in ticks; an estimate until WINDOW batches are complete."""
    recent: tuple[int, ...] = ()
    """Ticks at which the latest batches were complete."""

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether `lag_ticks` have passed."""
        return tick >= formed_at + self.lag_ticks

    def formed(self, tick: int) -> Self:
        """Return the rule with the lag of the latest batches."""
        recent = (*self.recent, tick)[-AVERAGED_BATCHES - 1 :]
        if len(recent) <= AVERAGED_BATCHES:
            return replace(self, recent=recent)
        return replace(
            self, recent=recent, lag_ticks=math.ceil(LAG_BATCHES * (recent[-1] - recent[0]) / AVERAGED_BATCHES)
        )

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the rule with the saved batches; the state of another rule has none."""
        return replace(self, lag_ticks=state.get("lag_ticks", self.lag_ticks), recent=tuple(state.get("recent", ())))


class OnArrival(Activation):
    """Weights become active as soon as they arrive. Nothing waits, and the results depend on the clock."""

    on_arrival = True


ACTIVATIONS: dict[str, Callable[[int], Activation]] = {
    "deterministic": AtTick,
    "eager": lambda lag_ticks: OnArrival(),
}
"""Rules by `rollouts.schedule`; each factory takes the lag in ticks."""
