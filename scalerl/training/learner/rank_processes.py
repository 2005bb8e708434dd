"""Trainer ranks as processes on this machine, connected by pipes: the loop's side and the rank's side.

Messages are pickled by value, so that tensors need no file descriptors. When one rank ends, all are ended, because the
others would wait in a collective forever.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ChildContext, fault
from scalerl.rollouts.weights import WeightChannel
from scalerl.training.learner.base import BadGradient, Learner
from scalerl.training.learner.ranks import RAISED_S, LearnerDied, RankSpec, build_rank, perform

BuildLearner = Callable[[], Learner]
"""Creates a rank's learner inside its process; must be picklable."""


class RankProcesses:
    """The loop's side, with one process per rank."""

    def __init__(
        self,
        builds: Sequence[BuildLearner],
        channels: Sequence[WeightChannel] = (),
        *,
        timeout_s: float = 3600.0,
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Start the processes and wait until all are ready.

        Args:
            builds: One function per rank.
            channels: Weight channels. The ranks get their ends now, because some can only be passed to a new process.
            timeout_s: Time limit for building the learners, seconds.
            environments: Additional environment variables of each rank.

        Raises:
            ConfigError: From building the learners.
            LearnerDied: A rank ended, failed or took too long.
        """
        context = ChildContext()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._death: str | None = None
        for rank, build in enumerate(builds):
            parent_end, child_end = context.Pipe()
            process = context.Process(
                target=serve_rank,
                args=(child_end, build, tuple(channels)),
                name=f"trainer rank {rank} of {len(builds)}",
                daemon=True,
            )
            process.environment = environments[rank] if environments else {}
            process.start()
            atexit.register(process.kill)  # runs before multiprocessing's handler, which would wait forever
            child_end.close()  # otherwise the end of the process would not close the pipe
            self._connections.append(parent_end)
            self._processes.append(process)
        self._answers("start", timeout_s)

    @classmethod
    def of(
        cls,
        environments: Sequence[Mapping[str, str]],
        config: RunConfig,
        model_path: str,
        channels: Sequence[WeightChannel],
    ) -> RankProcesses:
        """Start the ranks of a run; they meet in a temporary file.

        Args:
            environments: Additional environment variables of each rank.
            config: The resolved configuration.
            model_path: Directory or name on the hub.
            channels: Channels over which weights will be sent.
        """
        ranks, meeting = config.placement.trainer_ranks, Path(tempfile.mkdtemp(prefix="scalerl-ranks-"))
        specs = [RankSpec(config, model_path, rank, ranks, f"file://{meeting}/meet") for rank in range(ranks)]
        builds = [partial(build_rank, spec) for spec in specs]
        limit_s = config.placement.step_timeout_s
        try:
            return cls(builds, channels, timeout_s=limit_s, environments=environments)
        finally:
            shutil.rmtree(meeting)

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Make one call on every rank and return the answers by rank.

        Consumes: nothing. Produces: one message to each rank. Waits for: an answer of every rank.
        Unblocked by: the answers, the death of a rank, or the time limit.

        Raises:
            BadGradient, ConfigError, PluginError: As raised by the ranks.
            LearnerDied: A rank ended, failed or took longer than `timeout_s` seconds; all ranks were ended.
        """
        if self._death is not None:
            raise LearnerDied(self._death)
        message = pickle.dumps((method, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the process has ended, which `_answers` will report
                connection.send_bytes(message)
        return self._answers(method, timeout_s)

    def watch(self) -> None:
        """Raise LearnerDied if a process has ended."""
        for rank, process in enumerate(self._processes):
            if process.exitcode is not None:
                raise self._died(rank, "generation", "ended", {})

    def close(self) -> None:
        """Kill the processes. They hold no unsaved state, because calls that write have returned."""
        self._death = self._death or "the trainer ranks have ended"
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.kill()
            process.join()
            atexit.unregister(process.kill)
            connection.close()
        self._processes, self._connections = [], []

    def _answers(self, method: str, timeout_s: float) -> list[Any]:
        until, answers, raised = time.monotonic() + timeout_s, dict[int, Any](), dict[int, Exception]()
        while len(answers) < len(self._connections):
            waiting = [c for rank, c in enumerate(self._connections) if rank not in answers]
            ready = wait(waiting, timeout=max(0.0, until - time.monotonic()))
            if not ready and raised:  # one rank has raised, and the others wait for it
                self.close()
                break
            if not ready:
                late = next(rank for rank in range(len(self._connections)) if rank not in answers)
                raise self._died(late, method, f"did not answer within {timeout_s:g} s", {})
            for connection in ready:
                rank = self._connections.index(connection)  # type: ignore[arg-type]
                kind, content = self._receive(rank)
                if kind in ("failed", "ended"):
                    raise self._died(rank, method, kind, {rank: content} if kind == "failed" else {})
                answers[rank] = content
                if kind == "raised":
                    raised[rank], until = content, min(until, time.monotonic() + RAISED_S)
        if raised:
            raise raised[min(raised)]
        return [answers[rank] for rank in range(len(answers))]

    def _receive(self, rank: int) -> tuple[str, Any]:
        try:
            kind, content = pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, OSError):
            return "ended", ""
        return kind, content

    def _died(self, rank: int, method: str, how: str, faults: dict[int, tuple[str, str]]) -> LearnerDied:
        """End all ranks and return the error that names the cause: a killed rank before ranks that failed after it."""
        if how == "ended":
            self._processes[rank].join(timeout=2)
        else:  # another rank may have been killed, which this one noticed first
            wait([process.sentinel for number, process in enumerate(self._processes) if number != rank], timeout=1)
        names = [f"{process.name} (process {process.pid})" for process in self._processes]
        killed = [
            number
            for number, process in enumerate(self._processes)
            if process.exitcode and number not in faults  # a failed rank may also end with an exit code
        ]
        trace = ""
        if killed:
            rank = killed[0]
            code = self._processes[rank].exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            text = f"{names[rank]} {how} during `{method}`"
        elif how == "failed":
            reason, trace = faults[rank]
            text = f"{names[rank]} failed during `{method}`: {reason}"
        else:
            text = f"{names[rank]} {'closed its pipe' if how == 'ended' else how} during `{method}`"
        self._death = text
        self.close()
        return LearnerDied(text, trace)


def serve_rank(connection: Connection, build: BuildLearner, channels: Sequence[WeightChannel]) -> None:
    """Run one rank until the loop's process ends.

    Consumes: calls. Produces: one answer when the rank is ready, and one for each call. Waits for: a call, and the
    other ranks in collectives. Unblocked by: a call, or the end of the loop's process, which ends this process.
    """
    try:
        learner = _answered(connection, build)
        while learner is not None:
            try:
                method, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return  # the loop's process has ended
            _answered(connection, partial(perform, learner, channels, method, arguments), tell=True)
    except BrokenPipeError:
        return  # the loop's process ended during an answer
    except Exception as error:  # reported to the loop's process, which raises LearnerDied
        with contextlib.suppress(OSError):
            _answer(connection, "failed", fault(error))


def _answered(connection: Connection, action: Callable[[], Any], tell: bool = False) -> Any:
    """Run an action, send its result, and return it; None after an error that the loop raises unchanged."""
    try:
        content = action()
    except (BadGradient, ConfigError, PluginError) as error:
        _answer(connection, "raised", error)
        return None
    _answer(connection, "done", content if tell else None)
    return content


def _answer(connection: Connection, kind: str, content: Any) -> None:
    connection.send_bytes(pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL))
