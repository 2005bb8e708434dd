"""A thread that calls external code, such as a tracker's library, without stopping or slowing down a run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scalerl.core.errors import outcome

MOST = 1000
"""Maximum number of waiting jobs; further jobs are dropped and counted."""


class Worker:
    """Runs jobs one after the other in a thread; a run waits for the thread only at its end.

    Consumes / Produces: jobs of `put` / calls of external code, and `news` for the user.
    Waits for / Unblocked by: a job / `put` or `close`.
    """

    def __init__(self, name: str, most: int = MOST) -> None:
        """Start the thread.

        Args:
            name: Name of the logger or command, for messages.
            most: Maximum number of waiting jobs.
        """
        self.name = name
        self.dropped = 0
        """Number of jobs that were dropped because the queue was full."""
        self.failed = 0
        """Number of jobs that raised an error."""
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
        """Count all further jobs as failed without calling them; called by a job."""
        self._dead = True

    def news(self) -> list[str]:
        """Return messages for the user: the first failure and the first drop, each once."""
        found = []
        if self.failed and "failed" not in self._told:
            self._told.add("failed")
            found.append(f"{self.name}: {self._problem}; the run continues, and the data of failed calls are lost")
        if self.dropped and "dropped" not in self._told:
            self._told.add("dropped")
            found.append(
                f"{self.name} is too slow: {MOST} rows are waiting, and further rows are dropped; the run continues"
            )
        return found

    def close(self, until: float, last: Callable[[], None]) -> list[str]:
        """Run a last job after all others, and wait for them.

        Args:
            until: Time at which to stop waiting, by the clock of `time.monotonic`.
            last: Last job; a full queue does not drop it before `until`.

        Returns:
            The messages of `news`, and a message about lost calls.
        """
        with suppress(queue.Full):
            for job in (last, None):
                self._jobs.put(job, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        lines, left = self.news(), 0
        if self._thread.is_alive():
            left = self._jobs.qsize()
            lines.append(f"{self.name} has not ended in time; the run ends without it")
        if self.dropped + self.failed + left:
            lines.append(
                f"{self.name}: {self.dropped} calls were dropped, {self.failed} failed, {left} were not made; the "
                "files in the run directory are complete"
            )
        return lines

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._dead:
                self.failed += 1
                continue
            if error := outcome(job).exception():  # external code; failures are counted, and the first is reported
                self._problem = self._problem or f"{type(error).__name__}: {str(error)[:300]}"
                self.failed += 1
