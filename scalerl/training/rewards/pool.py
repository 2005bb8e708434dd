"""A pool of processes that score completions, whose results do not depend on killed processes or the wall clock."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from scalerl.core.errors import ConfigError, ProcessFailure
from scalerl.core.limits import MOST_DEATHS
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied, fault
from scalerl.core.remote import LocalRemote, Supervisor, serve
from scalerl.training.config.run import Scoring

Prepare = Callable[[Scoring], None]


class ProcessEnded(ProcessFailure):
    """The process of a call failed, or ended at every attempt. Example: "3 times (exit code 7)"."""


class ScoringPool:
    """Processes that call functions, with a time limit. If a process dies, it is replaced and its call is repeated."""

    def __init__(self, workers: int, prepare: Prepare | None, settings: Scoring) -> None:
        """Prepare the pool; its processes start at the first calls.

        Args:
            workers: Number of processes.
            prepare: Function called at the start of each process; None: nothing is called.
            settings: Argument of `prepare`.
        """
        run = partial(serve, partial(_Caller, prepare, settings), (Exception,))
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="scoring process")
        self._processes = [Supervisor(partial(LocalRemote, run, "it")) for _ in range(workers)]  # as many as threads
        self._idle = self._processes.copy()

    def schedule(self, function: Callable[..., Any], *words: Any, limit_s: float) -> Future[Any]:
        """Queue a call. If its process dies, it is repeated in another process.

        Args:
            function: Function of a module.
            words: Arguments.
            limit_s: Time limit in seconds, measured from the start of the call in a process.

        Returns:
            A future. It raises TimeoutError if the call took longer than its limit (its process was killed), and
            ProcessEnded if the process failed, or ended `MOST_DEATHS` times (`Supervisor`).
        """
        return self._threads.submit(self._call, function, words, limit_s)

    def close(self) -> None:
        """Kill the processes and cancel calls that have not started."""
        for process in self._processes:
            process.close()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.end()

    def _call(self, function: Callable[..., Any], words: tuple[Any, ...], limit_s: float) -> Any:
        """Make one call in an idle process.

        The result, the time limit, the end of the process, or `close` ends the wait.
        """
        process = self._idle.pop()
        try:
            return process.call("call", function, words, limit_s=limit_s)
        except ProcessDied as error:
            times = "once" if error.trace else f"{MOST_DEATHS} times"
            raise ProcessEnded(f"{times} ({str(error).removeprefix('it ended with ')})") from None
        finally:
            self._idle.append(process)


class Step(Protocol):
    """Calls a function of a module, as a step of the start of user code; `what` describes it in messages."""

    def __call__(self, what: str, function: Callable[..., Any], /, *words: Any) -> Any:
        """Return function(*words)."""


def in_this_process(what: str, function: Callable[..., Any], /, *words: Any) -> Any:
    """Return function(*words)."""
    return function(*words)


class Trial:
    """A process in which user code starts, step by step, so that no step can hang the start of a run."""

    def __init__(self, settings: Scoring, limit_s: float) -> None:
        """Prepare the process.

        Args:
            settings: Settings of the sandbox, for tools that run programs.
            limit_s: Time limit of each step, seconds.
        """
        from scalerl.training.rewards.code import prepare

        self._pool, self._limit_s = ScoringPool(1, prepare, settings), limit_s

    def __enter__(self) -> Trial:
        """Return the trial."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._pool.close()

    def step(self, what: str, function: Callable[..., Any], /, *words: Any) -> Any:
        """Make one step; see `Step`.

        Raises:
            ConfigError: The step took too long, or ended the process.
        """
        try:
            return self._pool.schedule(function, *words, limit_s=self._limit_s).result()
        except TimeoutError:
            raise ConfigError(
                f"data.start_s: {what} took longer than {self._limit_s:g} s at the start of the run; find out what it "
                "waits for, or raise data.start_s if it needs more time"
            ) from None
        except ProcessEnded as error:
            raise ConfigError(f"data.function: {what} ended its process {error}") from None


class _Caller:
    """The object in a process."""

    def __init__(self, prepare: Prepare | None, settings: Scoring) -> None:
        sys.stdout = sys.stderr  # a function that prints must not change the output of --json
        os.setpgid(0, 0)  # `timeout` sends SIGTERM to the run's process group, which must not end a verifier
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # programs that a reward function starts inherit it
        if prepare is not None:
            prepare(settings)

    def call(self, function: Callable[..., Any], words: tuple[Any, ...]) -> Any:
        try:
            return function(*words)
        except Exception:
            raise
        except BaseException as error:  # of the code of an environment: it must not end this process
            raise PluginError(*fault(error)) from None
