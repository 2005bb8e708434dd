"""When new weights become active: at a tick that the data fixes, or as they arrive.

A rule is an object with two answers; a new one is a class here and an entry in ACTIVATIONS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

LAG_BATCHES = 1.5
"""Lag in batches. Where both sides are balanced an update takes as long as a batch; half as much again absorbs the
variation of both."""

WINDOW = 8
"""Batches over which Following takes the mean."""


class Activation(Protocol):
    """When the generators use the weights that a batch has trained."""

    @property
    def on_arrival(self) -> bool:
        """Whether weights are used as soon as they have arrived."""
        ...

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether the weights trained on a batch must be active before this tick.

        Args:
            tick: the tick about to be done.
            formed_at: tick at which the batch was complete.
        """
        ...

    def measured(self, lag_ticks: int) -> Activation:
        """Return the rule with a lag that the trainer has measured."""
        ...

    def formed(self, tick: int) -> Activation:
        """Return the rule after one more batch was complete at a tick."""
        ...

    def restored(self, state: Mapping[str, Any]) -> Activation:
        """Return the rule as a checkpoint holds it: its fields by name."""
        ...


@dataclass(frozen=True, slots=True)
class AtTick:
    """A fixed number of ticks after the batch was complete: a run's bits do not depend on the clock.

    If the trainer is late the generators wait at that tick; if it is early the weights lie ready.

    Example: AtTick(lag_ticks=42)
    """

    lag_ticks: int
    """Ticks; -1: not known yet, so that the generators wait at the first batch, where the trainer measures it."""
    on_arrival: bool = False

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether `lag_ticks` have passed."""
        return self.lag_ticks < 0 or tick >= formed_at + self.lag_ticks

    def measured(self, lag_ticks: int) -> Activation:
        """Return the rule with the measured lag."""
        return AtTick(lag_ticks)

    def formed(self, tick: int) -> Self:
        """Return the same rule: its lag is fixed."""
        return self

    def restored(self, state: Mapping[str, Any]) -> AtTick:
        """Return the rule with the lag that was in use."""
        return AtTick(state.get("lag_ticks", -1))


@dataclass(frozen=True, slots=True)
class Following:
    """As AtTick, with a lag of 1.5 times the ticks that the latest batches took: for runs of unknown lengths.

    Ticks are counted, not timed, so a run's bits do not depend on the clock either.

    Example: Following(lag_ticks=24, recent=(64, 80, 96, 112, 128, 144, 160, 176, 192))
    """

    lag_ticks: int
    """In use; an estimate until WINDOW batches were complete."""
    recent: tuple[int, ...] = ()
    """Ticks at which the latest batches were complete."""
    on_arrival: bool = False

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether `lag_ticks` have passed."""
        return tick >= formed_at + self.lag_ticks

    def measured(self, lag_ticks: int) -> Self:
        """Return the same rule: it measures by itself."""
        return self

    def formed(self, tick: int) -> Self:
        """Return the rule with the lag that follows from the latest batches."""
        recent = (*self.recent, tick)[-WINDOW - 1 :]
        if len(recent) <= WINDOW:
            return replace(self, recent=recent)
        return replace(self, recent=recent, lag_ticks=math.ceil(LAG_BATCHES * (recent[-1] - recent[0]) / WINDOW))

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the rule with the batches it had seen; one of another kind had seen none."""
        return replace(self, lag_ticks=state.get("lag_ticks", self.lag_ticks), recent=tuple(state.get("recent", ())))


@dataclass(frozen=True, slots=True)
class OnArrival:
    """As soon as the weights arrive: never a wait, and bits that depend on the clock."""

    on_arrival: bool = True

    def due(self, tick: int, formed_at: int) -> bool:
        """Return False: no tick is waited at."""
        return False

    def measured(self, lag_ticks: int) -> Activation:
        """Return the same rule: it has no lag."""
        return self

    def formed(self, tick: int) -> Self:
        """Return the same rule."""
        return self

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the same rule."""
        return self


ACTIVATIONS: dict[str, Callable[[int], Activation]] = {
    "deterministic": AtTick,
    "eager": lambda lag_ticks: OnArrival(),
}
"""By `rollouts.schedule`; each is given the lag in ticks."""
