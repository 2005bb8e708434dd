"""When new weights become active: at a tick that the data fixes, or as they arrive.

A rule is an object with two answers; a new one is a class here and an entry in ACTIVATIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


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


ACTIVATIONS: dict[str, Callable[[int], Activation]] = {
    "deterministic": AtTick,
    "eager": lambda lag_ticks: OnArrival(),
}
"""By `rollouts.schedule`; each is given the lag in ticks."""
