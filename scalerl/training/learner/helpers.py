"""Threads that compute micro-batches on cores which the generator leaves idle; results come in a fixed order.

The trainer of a run on CPU often has more to do than the generator, whose core is then idle between batches. A second
thread of OpenMP is a poor use of that core: every operation would wait for the half that the generator holds up. A
helper takes whole micro-batches instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from scalerl.config.hardware import Hardware

Result = TypeVar("Result")

AHEAD = 2
"""Results that each helper may hold back until their turn; each is as large as the gradient."""

MOST = 3
"""Helpers that `auto` chooses at most: each holds the activations of a micro-batch and gradients."""


def helpers_of(hardware: Hardware) -> int:
    """Return how many threads help the trainer: as asked for, or as many as there are cores for."""
    if hardware.trainer_helpers != "auto":
        return hardware.trainer_helpers
    return max(0, min(MOST, (os.cpu_count() or 1) // hardware.trainer_threads - 1))


class Helpers:
    """Computes a list of tasks by the calling thread and some helpers."""

    def __init__(self, count: int) -> None:
        """Start no thread yet.

        Args:
            count: helpers; 0 leaves everything to the caller.
        """
        self.count = count
        self._pool = ThreadPoolExecutor(count, "helper") if count else None

    def in_order(self, tasks: Sequence[Callable[[], Result]], helped: bool = True) -> Iterator[Result]:
        """Yield the results of all tasks in their order, whichever thread computed them.

        Args:
            tasks: in the order of the results; any of them may run at a time.
            helped: whether helpers take part.

        Consumes: the tasks, the next one by whoever is free.
        Produces: results, from the calling thread.
        Waits for: helpers, once no task is left; at the end also for those whose result is not wanted any more.
        Unblocked by: the end of their tasks.

        Raises:
            BaseException: what a task raised, at its turn.
        """
        shared = _Shared(tasks, AHEAD * self.count)
        helpers = min(self.count, len(tasks) - 1) if helped and self._pool else 0
        helping = [self._pool.submit(shared.help) for _ in range(helpers)] if self._pool else []
        try:
            for number in range(len(tasks)):
                while not shared.results[number].done() and shared.compute_next():
                    pass
                yield shared.results[number].result()
                shared.give_out()
        finally:
            shared.close()
            for one in helping:
                one.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


class _Shared(Generic[Result]):
    """What the threads of one call have in common."""

    def __init__(self, tasks: Sequence[Callable[[], Result]], ahead: int) -> None:
        self._tasks, self._ahead = tasks, ahead
        self.results: list[Future[Result]] = [Future() for _ in tasks]
        self._taken = self._given = 0
        self._changed = threading.Condition()

    def help(self) -> None:
        """Compute tasks until none is left, not too far before the results that were given out."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._taken - self._given <= self._ahead or self._none_left())
            if not self.compute_next():
                return

    def compute_next(self) -> bool:
        """Compute the first task that nobody has taken; return False if there is none."""
        with self._changed:
            if self._none_left():
                return False
            number, self._taken = self._taken, self._taken + 1
        try:
            self.results[number].set_result(self._tasks[number]())
        except BaseException as error:  # raised again by `result`, in the calling thread
            self.results[number].set_exception(error)
        return True

    def give_out(self) -> None:
        """Count one more result as given out."""
        with self._changed:
            self._given += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody take another task."""
        with self._changed:
            self._taken = len(self._tasks)
            self._changed.notify_all()

    def _none_left(self) -> bool:
        return self._taken >= len(self._tasks)
