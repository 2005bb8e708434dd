"""A thread that calls foreign code, a tracker's library or a command, without stopping or slowing a run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

MOST = 1000
"""Jobs that may wait; what comes then is dropped and counted."""


class Worker:
    """Does jobs one after the other in a thread; a run never waits for it, except at its end.

    Consumes / Produces: jobs of ``put`` / calls of foreign code, and ``news`` for the user.
    Waits for / Unblocked by: a job / ``put`` or ``close``.
    """

    def __init__(self, name: str, most: int = MOST) -> None:
        """Start the thread.

        Args:
            name: of what is called, for messages.
            most: jobs that may wait.
        """
        self.name = name
        self.dropped = 0
        """Jobs that were not taken, because too many waited."""
        self.failed = 0
        """Jobs that raised."""
        self._problem = ""
        self._told: set[str] = set()
        self._dead = False
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Put a job in the queue; it is dropped if the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1

    def give_up(self) -> None:
        """Count all jobs to come as failed, without calling them; for the thread itself."""
        self._dead = True

    def news(self) -> list[str]:
        """Return what the user should know: the first failure and the first drop, each once."""
        found = []
        if self.failed and "failed" not in self._told:
            self._told.add("failed")
            found.append(f"{self.name}: {self._problem}; the run continues without what it was given")
        if self.dropped and "dropped" not in self._told:
            self._told.add("dropped")
            found.append(
                f"{self.name} does not keep up: {MOST} rows wait for it, and others are dropped; the run continues"
            )
        return found

    def close(self, until: float, last: Callable[[], None]) -> list[str]:
        """Do one more job after those that were put, and wait for them.

        Args:
            until: when to stop waiting, on the clock of `time.monotonic`.
            last: this job is never dropped while there is time.

        Returns:
            ``news``, and what was lost in the end.
        """
        with suppress(queue.Full):
            for job in (last, None):
                self._jobs.put(job, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        lines, left = self.news(), 0
        if self._thread.is_alive():
            left = self._jobs.qsize()
            lines.append(f"{self.name} has not ended in time; it is left behind")
        if self.dropped + self.failed + left:
            lines.append(
                f"{self.name}: {self.dropped} calls were dropped, {self.failed} failed, {left} were not done; the "
                "files of the run directory are complete"
            )
        return lines

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._dead:
                self.failed += 1
                continue
            try:
                job()
            except (Exception, SystemExit) as error:  # foreign code: counted, and the first one is told
                self._problem = self._problem or f"{type(error).__name__}: {str(error)[:300]}"
                self.failed += 1
