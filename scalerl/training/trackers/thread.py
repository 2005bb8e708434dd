"""A thread that calls external code without slowing down a run, and what it has logged: loggers.json."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerl.core.errors import outcome
from scalerl.core.files import read_json, write_whole

MOST_JOBS = 1000
"""Maximum number of waiting jobs; further jobs are dropped and counted."""


class Worker:
    """Runs jobs, calls of external code, one after the other in a thread; a run waits for it only in `close`."""

    def __init__(self, name: str) -> None:
        """Start the thread; the name of the logger or command is used in messages."""
        self.name = name
        self.dropped = 0
        """Number of jobs that were dropped because the queue was full."""
        self.failed = 0
        """Number of jobs that raised an error."""
        self._news: list[str] = []
        self._dead = False
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_JOBS)
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Put a job in the queue; it is dropped if the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                words = f"{MOST_JOBS} rows are waiting, and further rows are dropped; the run continues"
                self._news.append(f"{self.name} is too slow: {words}")

    def give_up(self) -> None:
        """Count all further jobs as failed without calling them; called by a job."""
        self._dead = True

    def news(self) -> list[str]:
        """Return messages for the user: the first failure and the first drop, each once."""
        return [self._news.pop(0) for _ in range(len(self._news))]  # the thread may append at any time

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
        lines, unmade = self.news(), 0
        if self._thread.is_alive():
            unmade = self._jobs.qsize()
            lines.append(f"{self.name} has not ended in time; the run ends without it")
        if self.dropped + self.failed + unmade:
            lines.append(
                f"{self.name}: {self.dropped} calls were dropped, {self.failed} failed, {unmade} were not made; the "
                "files in the run directory are complete"
            )
        return lines

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._dead:
                self.failed += 1
                continue
            if error := outcome(job).exception():  # external code; failures are counted, and the first is reported
                self.failed += 1
                if self.failed == 1:
                    words = "the run continues, and the data of failed calls are lost"
                    self._news.append(f"{self.name}: {type(error).__name__}: {str(error)[:300]}; {words}")


STATE_NAME = "loggers.json"


class Record:
    """Ids of logged runs and the last logged steps, so that a resumed run continues them.

    Example of the file: {"wandb": {"id": "3f2a9c1b", "row": 120, "evaluation": 100}}
    """

    def __init__(self, directory: Path) -> None:
        """Read the file of a run directory; a missing or unreadable file counts as empty."""
        self._path = directory / STATE_NAME
        self._lock = threading.Lock()
        try:
            content = read_json(self._path)
        except (OSError, ValueError):
            content = {}
        entries = content if isinstance(content, dict) else {}
        self._entries: dict[str, dict[str, Any]] = {k: v for k, v in entries.items() if isinstance(v, dict)}

    def get(self, name: str, key: str, default: Any) -> Any:
        """Return a value of a logger if it has the type of the default, else the default."""
        value = self._entries.get(name, {}).get(key, default)
        return value if isinstance(value, type(default)) else default

    def put(self, name: str, **values: Any) -> None:
        """Store values of a logger. The file is replaced atomically, but not forced to disk, to save time at each step.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            self._entries.setdefault(name, {}).update(values)
            write_whole(self._path, json.dumps(self._entries) + "\n")
