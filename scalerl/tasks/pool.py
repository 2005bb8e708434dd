"""A pool of processes that score completions, whose results do not depend on killed processes or the wall clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from scalerl.config.run import Scoring
from scalerl.core.errors import outcome
from scalerl.core.processes import PoolContext, ProcessDied
from scalerl.core.remote import LocalRemote, Run, serve

ATTEMPTS = 3
"""Attempts to make a call, each in another process."""

Prepare = Callable[[Scoring], None]


class ProcessEnded(RuntimeError):
    """The process of a call ended at every attempt. Example: "3 times (exit code 7)"."""


class ScoringPool:
    """Processes that call functions, with a time limit. If a process dies, it is replaced and its call is repeated."""

    def __init__(self, workers: int, prepare: Prepare | None, settings: Scoring) -> None:
        """Prepare the pool; its processes start at the first calls.

        Args:
            workers: Number of processes.
            prepare: Function called at the start of each process; None: nothing is called.
            settings: Argument of `prepare`.
        """
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        run = partial(serve, partial(_Caller, partial(_prepare, prepare, settings)), (Exception,))
        self._workers = [_Worker(run, self._calls) for _ in range(workers)]

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def schedule(self, function: Callable[..., Any], *words: Any, limit_s: float) -> Future[Any]:
        """Queue a call. If its process dies, it is repeated in another process.

        Args:
            function: Function of a module.
            words: Arguments.
            limit_s: Time limit in seconds, measured from the start of the call in a process.

        Returns:
            A future. It raises TimeoutError if the call took longer than its limit (its process was killed), and
            ProcessEnded if the process ended `ATTEMPTS` times, so that the call itself is probably the cause.
        """
        future: Future[Any] = Future()
        self._calls.put((future, function, words, limit_s))
        return future

    def close(self) -> None:
        """Kill the processes and cancel calls that have not started."""
        for _ in self._workers:
            self._calls.put(None)
        for worker in self._workers:
            worker.close()


class _Worker:
    """One process of a pool, with the thread that makes its calls."""

    def __init__(self, run: Run, calls: SimpleQueue[tuple[Any, ...] | None]) -> None:
        self._run, self._calls, self._closed = run, calls, False
        self._process: LocalRemote | None = None
        self._thread = Thread(target=self._work, name="scoring process", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        self._thread.join()

    def _work(self) -> None:
        """Make calls until the pool is closed.

        Consumes: calls. Produces: their futures' results. Waits for: a call, and its process. Unblocked by: a call, its
        time limit, the death of the process, or `close`.
        """
        while (call := self._calls.get()) is not None:
            future, *rest = call
            if self._closed or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            outcome(partial(self._attempt, *rest), future)
        self._end()

    def _attempt(self, function: Callable[..., Any], words: tuple[Any, ...], limit_s: float) -> Any:
        how = ""
        for _ in range(ATTEMPTS):
            try:
                if self._process is not None and self._process.ended():  # killed while it had no call
                    self._end()
                if self._process is None:
                    self._process = LocalRemote(self._run, "it", context=PoolContext)
                    if self._closed:  # `close` may not have seen the process
                        self._process.kill()
                    self._process.receive()
                self._process.tell("call", function, words)
                if not self._process.poll(limit_s):
                    self._end()
                    raise TimeoutError
                return self._process.receive()
            except ProcessDied as error:
                how = str(error).removeprefix("it ended with ")
                self._end()
            if self._closed:
                break
        raise ProcessEnded(f"{ATTEMPTS} times ({how})")

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Caller:
    """The object in a process."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        prepare()

    def call(self, function: Callable[..., Any], words: tuple[Any, ...]) -> Any:
        return function(*words)


def _prepare(prepare: Prepare | None, settings: Scoring) -> None:
    """Prepare a process."""
    sys.stdout = sys.stderr  # a function that prints must not change the output of --json
    os.setpgid(0, 0)  # `timeout` sends SIGTERM to the run's process group, which must not end a verifier
    if prepare is not None:
        prepare(settings)
