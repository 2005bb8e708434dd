"""Learning on a CPU: helper threads on cores that the generator leaves idle, and trims of the heap.

On CPU the trainer often has more work than the generator, whose core is then idle between batches. A second OpenMP
thread would use that core poorly, because every operation would wait for the half that the generator delays. A helper
computes whole micro-batches instead.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from scalerl.core.errors import outcome
from scalerl.core.machine import resident_bytes
from scalerl.training.config.base import chosen
from scalerl.training.config.placement import Hardware

Result = TypeVar("Result")

RESULTS_AHEAD = 2
"""Number of results per helper that may wait for their turn; each is as large as the gradient."""

MOST_HELPERS = 3
"""Maximum number of helpers for `auto`; each holds the activations of a micro-batch and gradients."""


def helpers_of(hardware: Hardware) -> int:
    """Return the number of helper threads: the configured number, or as many as there are cores for."""
    if hardware.trainer_helpers != "auto":
        return hardware.trainer_helpers
    return max(0, min(MOST_HELPERS, (os.cpu_count() or 1) // chosen(hardware.trainer_threads) - 1))


class Helpers:
    """Computes lists of tasks in the calling thread and in helper threads."""

    def __init__(self, count: int) -> None:
        """Prepare the helpers; threads start with the first tasks.

        Args:
            count: Number of helpers; with 0 the caller computes everything.
        """
        self.count = count
        # new threads would otherwise compute with the thread count that any thread of the process has set last
        threads = (torch.get_num_threads(),)
        self._pool = ThreadPoolExecutor(count, "helper", torch.set_num_threads, threads) if count else None

    def in_order(self, tasks: Sequence[Callable[[], Result]], helped: bool = True) -> Iterator[Result]:
        """Yield the results of all tasks in order.

        Each free thread takes the next task. When no task is left, the caller waits for the helpers.

        Args:
            tasks: Tasks in the order of the results; they may run at the same time.
            helped: Whether helpers are used.

        Raises:
            BaseException: The exception of a task, raised at its turn.
        """
        if self._pool is None or not helped:
            yield from (task() for task in tasks)
            return
        futures: list[Future[Result]] = []
        try:
            for number in range(len(tasks)):
                futures += map(self._pool.submit, tasks[len(futures) : number + RESULTS_AHEAD * self.count + 1])
                for later in range(number, len(futures)):  # until the helpers have the result that is next
                    if futures[number].done():
                        break
                    if futures[later].cancel():  # no helper has begun it
                        futures[later] = outcome(tasks[later])
                yield futures[number].result()
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _malloc_trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; other libraries return memory by themselves
    if trim is not None:
        trim(0)


class HeapTrim:
    """Trims the heap when the process has grown to twice its size after the last trim, or by SLACK.

    Activations of 2 to 32 MB whose sizes differ between micro-batches fragment glibc's heap: the trainer of a 135M
    model grew from 8 to 15 GB over 55 updates, and stayed at 7 GB with these blocks outside the heap. A trim causes
    page faults in the next update, so it is not done after every update.
    """

    GROWTH, SLACK = 2.0, 1e9

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] = _malloc_trim) -> None:
        """Set the functions that measure and trim; the first call sets the level."""
        self._resident, self._trim, self._limit = resident, trim, 0.0

    def __call__(self) -> None:
        """Trim the heap if the process has grown; call this between updates."""
        if self._resident() > self._limit:
            self._trim()
            size = self._resident()
            self._limit = min(self.GROWTH * size, size + self.SLACK)
