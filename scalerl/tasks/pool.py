"""A pool of processes that score completions, whose results do not depend on killed processes or the wall clock.

pebble's pool measures time limits by the wall clock, does not notice a process that ends with exit code 0, and stops
working when an idle process is killed. The subclasses in this module correct this.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from pebble import ProcessExpired, ProcessPool
from pebble.pool.base_pool import Task
from pebble.pool.process import PoolManager, TaskManager, WorkerManager

from scalerl.config.run import Scoring
from scalerl.core.processes import PoolContext

ATTEMPTS = 3
"""Attempts to make a call, each in another process."""

MOST_DEATHS = 10
"""Number of consecutive deaths without a started call after which the pool is replaced."""

LOCK_S = 3.0
"""Seconds within which the pool's lock must be free after the death of a process, which may have held it."""

Prepare = Callable[[Scoring], None]


class ProcessEnded(RuntimeError):
    """The process of a call ended at every attempt. Example: "3 times (exit code 7)"."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a process of the pool.

    Example: Call(function=verify, words=("math", prompt, "4"), limit_s=10.0, future=Future())
    """

    function: Callable[..., Any]
    words: tuple[Any, ...]
    limit_s: float
    """Time limit in seconds, measured from the start of the call in a process."""
    future: Future[Any]


class ScoringPool:
    """Processes that call functions, with a time limit. If a process dies, it is replaced and its call is repeated."""

    def __init__(self, workers: int, prepare: Prepare | None, settings: Scoring) -> None:
        """Prepare the pool; its processes start at the first call.

        Args:
            workers: Number of processes.
            prepare: Function called at the start of each process; None: nothing is called.
            settings: Argument of `prepare`.
        """
        self._workers, self._words = workers, (prepare, settings)
        self._lock, self._closed, self._pool = threading.Lock(), False, self._new()

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new(self) -> _Pool:
        return _Pool(self._workers, context=PoolContext(), initializer=_prepare, initargs=self._words)

    def schedule(self, function: Callable[..., Any], *words: Any, limit_s: float) -> Call:
        """Queue a call; `result` returns its result."""
        with self._lock:
            try:
                future = self._pool.schedule(function, args=words, timeout=limit_s)
            except RuntimeError:  # all its processes died, or one of them held the lock
                if self._closed:
                    raise
                _stop(self._pool)
                self._pool = self._new()
                future = self._pool.schedule(function, args=words, timeout=limit_s)
        return Call(function, words, limit_s, future)

    def result(self, call: Call) -> Any:
        """Return the result of a call. If its process dies, the call is repeated in another process.

        Raises:
            TimeoutError: The call took longer than its limit; its process was killed.
            ProcessEnded: The process ended `ATTEMPTS` times, so the call itself is probably the cause.
        """
        how = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                call = self.schedule(call.function, *call.words, limit_s=call.limit_s)
            try:
                return call.future.result()
            except ProcessExpired as error:
                code = int(error.exitcode)
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            except BrokenProcessPool as error:
                how = str(error)
        raise ProcessEnded(f"{ATTEMPTS} times ({how})")

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            self._closed = True
            _stop(self._pool)


def _stop(pool: Any) -> None:
    pool.stop()
    pool.join()


def _prepare(prepare: Prepare | None, settings: Scoring) -> None:
    """Prepare a process."""
    sys.stdout = sys.stderr  # a function that prints must not change the output of --json
    os.setpgid(0, 0)  # `timeout` sends SIGTERM to the run's process group, which must not end a verifier
    if prepare is not None:
        prepare(settings)


class _Tasks(TaskManager):
    """Measures time limits by the monotonic clock, because a jump of the wall clock would end every running call."""

    begun = 0
    """Number of calls that processes have started."""

    def task_start(self, task_id: int, worker_id: int | None) -> None:
        super().task_start(task_id, worker_id)
        self.begun += 1
        if (task := self.tasks.get(task_id)) is not None:
            task.timestamp = time.monotonic()

    @staticmethod
    def timeout(task: Task) -> bool:
        return bool(task.timeout and task.started and time.monotonic() - task.timestamp > task.timeout)


class _Workers(WorkerManager):
    """Also reports a process that ended with exit code 0, for example by `exit` in a C library."""

    def inspect_workers(self) -> tuple[tuple[int | None, int | None], ...]:
        ended = [worker for worker in tuple(self.workers.values()) if not worker.is_alive()]
        for worker in ended:
            self.workers.pop(worker.pid)  # type: ignore[arg-type]
        return tuple((worker.pid, worker.exitcode) for worker in ended)


class _Manager(PoolManager):
    """Replaces idle processes that were killed, until MOST_DEATHS died in a row."""

    task_manager: _Tasks
    worker_manager: Any
    _deaths, _begun = 0, 0
    _lost_at: float | None = None

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._codes: dict[int | None, int | None] = {}

    def update_workers(self) -> None:
        for pid, code in self.worker_manager.inspect_workers():
            self._codes[pid], self._lost_at = code, time.monotonic()
            try:
                self.handle_worker_expiration((pid, code))
            except BrokenProcessPool:  # no process has a call
                self._count(code)
        # the start of a call can be reported after the death of its process
        for task in tuple(self.task_manager.tasks.values()):
            if task.started and task.worker_id in self._codes.keys() - self.worker_manager.workers.keys():
                self.handle_worker_expiration((task.worker_id, self._codes[task.worker_id]))
        self.worker_manager.create_workers()
        self._check_lock()

    def _count(self, code: int | None) -> None:
        begun = self.task_manager.begun
        self._deaths = self._deaths + 1 if begun == self._begun else 1
        self._begun = begun
        if self._deaths >= MOST_DEATHS:
            raise BrokenProcessPool(f"{MOST_DEATHS} processes ended at their start, the last with exit code {code}")

    def _check_lock(self) -> None:
        """Give up the pool if a killed process still holds its lock, because all others would wait for it forever."""
        if self._lost_at is None:
            return
        with self.worker_manager.workers_channel.lock(block=False) as free:
            if free:
                self._lost_at = None
            elif time.monotonic() - self._lost_at > LOCK_S:
                raise BrokenProcessPool("a process was killed while it held the lock of the pool")


class _Pool(ProcessPool):
    def __init__(self, workers: int, **options: Any) -> None:
        super().__init__(workers, **options)
        manager = _Manager(self._context, options["context"])
        manager.task_manager = _Tasks(self._context.task_queue.task_done)
        manager.worker_manager = _Workers(workers, self._context.worker_parameters, options["context"])
        self._pool_manager = manager
