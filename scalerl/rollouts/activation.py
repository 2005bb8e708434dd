"""When new weights become active: at a tick that the data determines, or on arrival.

To add a rule, write a class that implements `Activation` and add it to ACTIVATIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Activation(Protocol):
    """A rule for when the generators start to use the weights trained on a batch."""

    @property
    def on_arrival(self) -> bool:
        """Whether weights are used as soon as they have arrived."""
        ...

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether the weights trained on a batch must be active before this tick.

        Args:
            tick: the next tick.
            formed_at: tick at which the batch was complete.
        """
        ...

    def measured(self, lag_ticks: int) -> Activation:
        """Return the rule with a lag that the trainer has measured."""
        ...


@dataclass(frozen=True, slots=True)
class AtTick:
    """Weights become active a fixed number of ticks after their batch was complete.

    The results of a run do not depend on the clock. If the trainer is late, the generators wait at that tick. If it is
    early, the weights wait.

    Example: AtTick(lag_ticks=42)
    """

    lag_ticks: int
    """Lag in ticks; -1: unknown. The generators then wait for the first weights, and the trainer measures it."""
    on_arrival: bool = False

    def due(self, tick: int, formed_at: int) -> bool:
        """Return whether `lag_ticks` have passed."""
        return self.lag_ticks < 0 or tick >= formed_at + self.lag_ticks

    def measured(self, lag_ticks: int) -> Activation:
        """Return the rule with the measured lag."""
        return AtTick(lag_ticks)


@dataclass(frozen=True, slots=True)
class OnArrival:
    """Weights become active as soon as they arrive. Nothing waits, and the results depend on the clock."""

    on_arrival: bool = True

    def due(self, tick: int, formed_at: int) -> bool:
        """Return False: the generators never wait for weights."""
        return False

    def measured(self, lag_ticks: int) -> Activation:
        """Return the same rule: it has no lag."""
        return self


ACTIVATIONS: dict[str, Callable[[int], Activation]] = {
    "deterministic": AtTick,
    "eager": lambda lag_ticks: OnArrival(),
}
"""Rules by `rollouts.schedule`; each factory takes the lag in ticks."""
