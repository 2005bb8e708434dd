"""Progress of a run, the display that shows it, and the error that ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalerl.types import EvalPoint, GeneratorStats


class TrainingFailed(RuntimeError):
    """The run had to stop; the message gives the reason and names what is saved."""


class Display(Protocol):
    """Display of a run."""

    def step(self, row: dict[str, Any]) -> None:
        """Show a training step."""
        ...

    def point(self, points: Sequence[EvalPoint]) -> None:
        """Show the curve so far."""
        ...

    def note(self, text: str) -> None:
        """Show a line of text."""
        ...


@dataclass(slots=True)
class Progress:
    """Progress and counters of a run; part of every checkpoint.

    Example: Progress(step=100, training_flops=2.1e11, trained_groups=1600, drawn_groups=1744)
    """

    step: int = 0
    """Number of completed updates, which is also the version of the weights."""
    training_flops: float = 0.0
    trained_groups: int = 0
    drawn_groups: int = 0
    dropped_groups: int = 0
    """Groups that were dropped because no update could train them in time."""
    closed: bool = False
    """Whether the curriculum has no more prompts to draw."""
    skipped_steps: int = 0
    """Steps without trained tokens."""
    replay_difference: float = math.nan
    """Largest difference of log-probabilities at the last evaluation, nats."""
    stopped_by: str = ""
    """The condition of `stop_when` that ended the run; empty if none did."""
    overruled: tuple[str, ...] = ()
    """Conditions that ended the run earlier and were overruled by resuming it."""
    generator: GeneratorStats = field(default_factory=lambda: GeneratorStats(0, 0, 0.0))
    """The generators' counters when they completed the last trained batch."""

    @property
    def exhausted(self) -> bool:
        """Whether all drawn prompts were trained or dropped, and no more can be drawn."""
        return self.closed and self.trained_groups + self.dropped_groups >= self.drawn_groups
