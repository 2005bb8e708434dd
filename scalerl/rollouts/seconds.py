"""Time accounting of the generators."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Seconds:
    """Seconds that the generators spent, by activity.

    Example: Seconds(busy=31.2, idle=0.4, swap=0.003)
    """

    busy: float = 0.0
    """Sampling for training."""
    idle: float = 0.0
    """Waiting for weights or prompts."""
    swap: float = 0.0
    """The last swap of weights."""
    _aside: float = 0.0

    def aside(self, call: Callable[[], None]) -> Callable[[], None]:
        """Wrap a call so that the next `since` excludes its seconds."""
        self._aside = 0.0

        def timed() -> None:
            began = time.perf_counter()
            call()
            self._aside += time.perf_counter() - began

        return timed

    def since(self, began: float) -> float:
        """Return the seconds from `began` (time.perf_counter) to now, without those of wrapped calls."""
        return time.perf_counter() - began - self._aside
