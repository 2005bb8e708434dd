"""Trainer ranks as processes of this machine, over pipes: the loop's side and the rank's side.

Messages are pickled by value, so that tensors need no file descriptors. Whatever ends one rank ends all: a rank alone
would wait in a collective for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scalerl.config.base import ConfigError
from scalerl.config.run import RunConfig
from scalerl.processes import ChildContext
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.training.learner.base import BadGradient, Learner
from scalerl.training.learner.ranks import RAISED_S, LearnerDied, RankSpec, build_rank, perform

BuildLearner = Callable[[], Learner]
"""Makes a rank's learner inside its process; must be picklable."""


class RankProcesses:
    """The loop's side: one process a rank."""

    def __init__(
        self, builds: Sequence[BuildLearner], channels: Sequence[WeightChannel] = (), *, timeout_s: float = 3600.0
    ) -> None:
        """Start the processes and wait until all are ready.

        Args:
            builds: one a rank.
            channels: the ranks get an end of each; some can only be handed over while a process starts.
            timeout_s: seconds that building may take.

        Raises:
            ConfigError: from building.
            LearnerDied: a rank ended, failed or took too long.
        """
        context = ChildContext()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._death: str | None = None
        for rank, build in enumerate(builds):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve_rank,
                args=(theirs, build, tuple(channels)),
                name=f"trainer rank {rank} of {len(builds)}",
                daemon=True,
            )
            process.start()
            atexit.register(process.kill)  # before multiprocessing's own handler, which would wait for ever
            theirs.close()  # else the end of the process would not end the pipe
            self._connections.append(ours)
            self._processes.append(process)
        self._answers("start", timeout_s)

    @classmethod
    def of(cls, config: RunConfig, model_path: str, channels: Sequence[WeightChannel]) -> RankProcesses:
        """Start the ranks that a run asks for; they meet in a file that is removed at once.

        Args:
            config: resolved.
            model_path: a directory or a name on the hub.
            channels: those that weights will be sent over.
        """
        ranks, meeting = config.placement.trainer_ranks, Path(tempfile.mkdtemp(prefix="scalerl-ranks-"))
        specs = [RankSpec(config, model_path, rank, ranks, f"file://{meeting}/meet", gpu=rank) for rank in range(ranks)]
        try:
            return cls(
                [partial(build_rank, spec) for spec in specs], channels, timeout_s=config.placement.step_timeout_s
            )
        finally:
            shutil.rmtree(meeting)

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Let every rank do one call; return their answers by rank.

        Consumes: nothing. Produces: one message to every rank.
        Waits for: an answer of every rank. Unblocked by: the answers, the death of a rank, or the time limit.

        Raises:
            BadGradient, ConfigError: as the ranks raised them.
            LearnerDied: a rank ended, failed or took longer than `timeout_s` seconds; no rank is left then.
        """
        if self._death is not None:
            raise LearnerDied(self._death)
        message = pickle.dumps((method, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it is gone, which its answer will tell
                connection.send_bytes(message)
        return self._answers(method, timeout_s)

    def close(self) -> None:
        """Kill the processes: what they hold is on disk by the time a call has returned, or was not to be kept."""
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
            if not ready and raised:  # what one rank has raised, and the others are waiting for it
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

    def _died(self, rank: int, method: str, how: str, tracebacks: dict[int, str]) -> LearnerDied:
        """End all ranks; return the error that names the one to blame: killed ones before those that miss them."""
        if how == "ended":
            self._processes[rank].join(timeout=2)
        else:  # another one may have been killed, and this one be the first to miss it
            wait([process.sentinel for number, process in enumerate(self._processes) if number != rank], timeout=1)
        names = [f"{process.name} (process {process.pid})" for process in self._processes]
        killed = [
            number
            for number, process in enumerate(self._processes)
            if process.exitcode and number not in tracebacks  # one that has failed may stumble on its way out
        ]
        if killed:
            rank = killed[0]
            code = self._processes[rank].exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            text = f"{names[rank]} {how} during `{method}`"
        elif how == "failed":
            trace = tracebacks[rank].strip()
            text = f"{names[rank]} failed during `{method}`: {trace.splitlines()[-1]}\n{trace}"
        else:
            text = f"{names[rank]} {'closed its pipe' if how == 'ended' else how} during `{method}`"
        self._death = text
        self.close()
        return LearnerDied(text)


def serve_rank(connection: Connection, build: BuildLearner, channels: Sequence[WeightChannel]) -> None:
    """Run one rank until the loop's process is gone.

    Consumes: calls. Produces: one answer to each, and one when the rank is ready.
    Waits for: a call, and inside a call for the other ranks.
    Unblocked by: a call, or the death of the loop's process, which ends this one.
    """
    try:
        learner = _answered(connection, build)
        while learner is not None:
            try:
                method, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return  # the loop's process is gone
            _answered(connection, partial(perform, learner, channels, method, arguments), tell=True)
    except BrokenPipeError:
        return  # the same, while answering
    except Exception:  # a rank may die here: the loop is told, and raises
        with contextlib.suppress(OSError):
            _answer(connection, "failed", traceback.format_exc())


def _answered(connection: Connection, action: Callable[[], Any], tell: bool = False) -> Any:
    """Do something, answer, and return what came of it; None after an error that passes to the loop as itself."""
    try:
        content = action()
    except (BadGradient, ConfigError) as error:
        _answer(connection, "raised", error)
        return None
    _answer(connection, "done", content if tell else None)
    return content


def _answer(connection: Connection, kind: str, content: Any) -> None:
    connection.send_bytes(pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL))
