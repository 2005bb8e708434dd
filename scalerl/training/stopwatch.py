"""Seconds of training, from a clock that can be paused. What works on during a pause is added (training/session.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from scalerl.types import GeneratorStats


class Stopwatch:
    """Seconds of training, with evaluation and checkpoints left out and added up apart."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._since: float | None = None
        self.left_out = 0.0

    @property
    def seconds(self) -> float:
        """Training seconds so far, those of earlier sessions of a resumed run included."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    def start(self) -> None:
        """Start, or continue."""
        assert self._since is None
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave seconds that have passed out of the training time, if the clock was running."""
        if self._since is not None:
            self._before -= seconds
            self.left_out += seconds

    def add(self, seconds: float) -> None:
        """Count seconds that were worked while the clock stood still."""
        self._before += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave a block of work out of the training time."""
        began = time.perf_counter()
        running = self._since is not None
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self.left_out += time.perf_counter() - began
            if running:
                self._since = time.perf_counter()


IDLE_SHARE = 0.02
"""Of the generators' seconds: below it, a helper of the trainer would take more from them than it brings."""


def waited(before: GeneratorStats, now: GeneratorStats) -> bool:
    """Return whether the generators have waited for the trainer between two readings of their counters."""
    return now.idle_s - before.idle_s > IDLE_SHARE * (now.busy_s - before.busy_s)
