"""A stopwatch for the seconds of training; work that continues during a pause is added by training/session.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from scalerl.types import GeneratorStats


class Stopwatch:
    """Seconds of training; the time of evaluations and checkpoints is excluded and summed in `left_out`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._since: float | None = None
        self.left_out = 0.0

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
            self.left_out += seconds

    def add(self, seconds: float) -> None:
        """Add seconds of work that was done while the clock was paused."""
        self._before += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude a block of work from the training time."""
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
"""Minimum idle share of the generators' time at which helpers of the trainer are worth the cores they take."""


def waited(before: GeneratorStats, now: GeneratorStats) -> bool:
    """Return whether the generators waited for the trainer between two readings of their counters."""
    return now.idle_s - before.idle_s > IDLE_SHARE * (now.busy_s - before.busy_s)
