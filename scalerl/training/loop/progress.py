"""Progress of a run: its counters, its device-hours and FLOPs, and the error that ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from scalerl.core.errors import RunError
from scalerl.core.types import GeneratorStats
from scalerl.training.engines.pipeline import Pipeline
from scalerl.training.placement.devices import Devices


class TrainingFailed(RunError):
    """The run had to stop; the message gives the reason and names what is saved."""


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

    @property
    def flops(self) -> float:
        """Floating-point operations of training and generation."""
        return self.training_flops + self.generator.flops


class Stopwatch:
    """Seconds of training; the time of evaluations and checkpoints is excluded."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Training seconds so far, including those before a resume."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    def start(self) -> None:
        """Start or continue."""
        assert self._since is None
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Exclude elapsed seconds from the training time, if the clock is running."""
        if self._since is not None:
            self._before -= seconds

    def add(self, seconds: float) -> None:
        """Add seconds of work that was done while the clock was paused."""
        self._before += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude a block of work from the training time."""
        running = self._since is not None
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            if running:
                self._since = time.perf_counter()


@dataclass(slots=True)
class RunCompute:
    """The device-hours of a run.

    Evaluations and checkpoints are excluded, but the generators' work for training during them is included.
    """

    clock: Stopwatch
    devices: Devices
    pipeline: Pipeline

    @property
    def device_hours(self) -> float:
        """Held devices x hours of training so far."""
        return self.devices.held * self.clock.seconds / 3600.0

    def generated_s(self) -> float:
        """Return the seconds of sampling since the pipeline's mark, weighted by the generators' share of devices."""
        return self.devices.generating / self.devices.held * self.pipeline.busy_since_mark()
