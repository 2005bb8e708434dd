"""The trainer's side of generation: `take` returns the next batch, for PipelineRL-k and PPO-off-policy-k.

The coordinator runs in a separate process. Groups are scored as soon as they finish; weights are sent through a
channel. coordinator.py and schedule.py determine what a run computes; this module handles waiting,
failures and messages.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.limits import GENERATOR_END_S, STOP_ANSWER_S, STOP_PATIENCE_S, STOP_SUSPENDED_S, THREAD_END_S
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied, stopped_process
from scalerl.core.remote import Body, LocalRemote, Remote
from scalerl.core.types import GeneratorStats, Group, ScoredGroup, Visit
from scalerl.training.engines.coordinator import NewVersion
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.engines.worker import Build, generate_until_stopped

SendWeights = Callable[[int, WeightChannel], None]
"""(version, channel): sends the weights over the channel; a learner's `send`."""


class WorkerDied(ProcessDied):
    """The generator process ended or failed; the message includes its name."""


Launch = Callable[[Body], Remote]
"""Starts the generator process; on Ray it waits until the actor has a place."""


spawn_generator = partial(LocalRemote, name="the generator process ({})", died=WorkerDied)
"""Starts the generator process on this machine, with additional environment variables and a cure."""


MOST_PENDING = 512
"""Groups of an evaluation whose scores are computed together; with more, the next ones wait."""


class Interrupted(RuntimeError):
    """A stop was requested while the run waited."""


class NoAnswer(Interrupted):
    """A stop was requested, but a process of the run did not answer: no checkpoint can be written."""


class PendingScores(Protocol):
    """A group that is being scored."""

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether scoring has finished or failed."""

    def result(self) -> ScoredGroup:
        """Return the group with its scores."""


Score = Callable[[Group], PendingScores]
"""Starts to score a group and returns immediately."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The scored groups that one update trains on.

    Example: RolloutBatch(number=7, groups=(ScoredGroup(...), ...), stats=GeneratorStats(...), dropped=())
    """

    number: int
    """Number of the update that trains on it, from 0; also the version of the weights before that update."""
    groups: tuple[ScoredGroup, ...]
    stats: GeneratorStats
    """The generators' counters when the batch was complete."""
    dropped: tuple[Visit, ...] = ()
    """Visits dropped since the previous batch."""
    waited_s: float = 0.0
    """Seconds that the trainer waited for the batch and its scores."""
    scoring_s: float = 0.0
    """Part of `waited_s` that was spent waiting for the scores of the complete batch."""


def scored_groups(
    groups: Iterable[tuple[int, Group]],
    score: Score,
    result: Callable[[PendingScores], ScoredGroup] = lambda scores: scores.result(),
) -> Iterator[tuple[int, ScoredGroup]]:
    """Score groups while others are sampled; yield them with their index, in the order in which they arrived.

    Args:
        groups: Groups as they are complete, with their index.
        score: Function that starts to score a group.
        result: Function that waits for the scores of a group.
    """
    pending = deque[tuple[int, PendingScores]]()
    for index, group in groups:
        pending.append((index, score(group)))
        while pending and (len(pending) > MOST_PENDING or pending[0][1].wait(0.0)):
            first, scores = pending.popleft()
            yield first, result(scores)
    for index, scores in pending:
        yield index, result(scores)


class _Clock:
    """Seconds since the first reading."""

    def __init__(self) -> None:
        self._began: float | None = None

    def seconds(self) -> float:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        return now - self._began


class Pipeline:
    """The trainer's side of the generator process."""

    def __init__(
        self,
        build: Build,
        channel: WeightChannel,
        score: Score,
        stop_requested: Callable[[], bool] = lambda: False,
        launch: Launch = spawn_generator,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the pipeline; `start` starts the process.

        Args:
            build: Function that makes the coordinator and its engines inside the process; must be picklable.
            channel: Channel that carries weights.
            score: Function that starts to score a group.
            stop_requested: Function called while waiting; if it returns True, `take` raises Interrupted.
            launch: Function that starts the process.
            watch: Function called while waiting, which raises if a process that the run needs has ended.
        """
        self._launch, self._watch = launch, watch
        self._worker: Remote | None = None
        self._build, self._channel, self._score, self._stop_requested = build, channel, score, stop_requested
        self._first: Callable[[], None] = lambda: None
        self._latest: Callable[[], None] = lambda: None
        self._stored: set[int] = set()
        self._pending: dict[int, PendingScores] = {}
        self._inbox: dict[str, queue.SimpleQueue[Any]] = {
            name: queue.SimpleQueue() for name in ("ready", "batch", "held_out", "snapshot", "released", "note", "mark")
        }
        self._threads: list[threading.Thread] = []
        self._outbox: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._death: WorkerDied | ConfigError | PluginError | None = None
        self._mark = 0
        self._busy_at: float | None = None
        self._may_hang = self._settled = False
        """Whether the engines may hang; whether the run stops, and its generator has been told to do without them."""

    def start(self, send: SendWeights, version: int = 0, visits: Sequence[Visit] = ()) -> None:
        """Start the process with weights and prompts; return immediately, before the process is ready.

        Args:
            send: Function that sends the first weights.
            version: Version of those weights.
            visits: Prompts that may be started with them.
        """
        if self._channel.into_engines:
            self._first = partial(self._send_weights, version, send)
        else:
            self._send_weights(version, send)
        self._worker = self._launch(partial(generate_until_stopped, self._channel, self._build, version, tuple(visits)))
        for work in (self._read, self._write):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait_ready(self) -> None:
        """Wait until the process has loaded everything and the engines can get the first weights."""
        self._get("ready")
        self._first()

    # ---------------------------------------------------------------------------------------------------- rollouts

    def take(self, n: int, now: int) -> RolloutBatch:
        """Return the next batch of scored groups.

        Args:
            n: Number of groups of a full batch; the last batch of an exhausted curriculum may hold fewer.
            now: Number of the update that will train on it.

        Raises:
            WorkerDied: The generator process ended or failed.
            Interrupted: A stop was requested.
            RewardError: Scoring failed.
        """
        start = time.perf_counter()
        number, indices, stats, dropped = self._get("batch")
        assert number == now and len(indices) <= n, (number, now, len(indices))
        formed = time.perf_counter()
        groups = tuple(self._result(self._pending.pop(index)) for index in indices)
        scored = time.perf_counter()
        return RolloutBatch(number, groups, stats, dropped, waited_s=scored - start, scoring_s=scored - formed)

    def evaluate(
        self,
        version: int,
        send: SendWeights,
        visits: Sequence[Visit],
        samples: int | Sequence[int],
        add: Callable[[int, ScoredGroup], None],
    ) -> float:
        """Sample held-out prompts on all engines with the weights of one version.

        Args:
            version: The learner's current version.
            send: Function that sends its weights; called only if they have not been published.
            visits: Held-out prompts.
            samples: Rollouts per prompt: one number, or one per visit.
            add: Function that gets index and scored group of each visit, in the order in which they were complete.

        Returns:
            Seconds spent on sampling and scoring, without the wait for the version. The generators' mark is set to the
            start of sampling.

        Raises:
            Interrupted: A stop was requested, and the engines did not finish the evaluation in `STOP_PATIENCE_S`.
        """
        seconds = ended = 0.0

        def sampled() -> Iterator[tuple[int, Group]]:
            nonlocal seconds, ended
            index, content = self._get("held_out", interruptible=False)
            while index is not None:
                yield index, Group(visits[index], *content)
                index, content = self._get("held_out", interruptible=False)
            if content is None:
                raise Interrupted
            (seconds, self._busy_at), ended = content, time.perf_counter()

        if version not in self._stored:
            self._send_weights(version, send)
        if self._settled:
            raise Interrupted
        self._send("evaluate", version, tuple(visits), samples)
        for index, scored in scored_groups(sampled(), self._score, partial(self._result, interruptible=False)):
            add(index, scored)
        return seconds + time.perf_counter() - ended

    # ------------------------------------------------------------------------------------------------------- compute

    def mark(self) -> None:
        """Set the generators' mark, now or after the current step; return immediately."""
        self._mark, self._busy_at = self._mark + 1, None
        self._send("mark", self._mark)

    def busy_since_mark(self) -> float:
        """Return the seconds of sampling for training since the mark, and set the mark; waits for the end of a step."""
        before = self._busy_at if self._busy_at is not None else self._marked()
        self.mark()
        self._busy_at = self._marked()
        return self._busy_at - before

    def _marked(self) -> float:
        while True:
            mark, busy_s = self._get("mark", interruptible=False)
            if mark == self._mark:  # an exception may have left earlier marks in the queue
                return float(busy_s)

    # ----------------------------------------------------------------------------------------------------- weights

    def publish(self, update: NewVersion, send: SendWeights) -> None:
        """Publish a new version; waits while the channel is full.

        If a stop is requested meanwhile, the engines get no weights, which the rest of the run does not need.

        Args:
            update: The message to the generators; `update.weights` is true if the weights will be used.
            send: Function that sends the weights; called only if they will be used.
        """
        if update.weights:
            self._send_weights(update.version, send)
        self._send("publish", update)

    def _send_weights(self, version: int, send: SendWeights) -> None:
        while len(self._stored) >= self._channel.capacity or not self._inbox["released"].empty():
            released = self._get("released", interruptible=False)
            if self._settled:
                return
            self._stored.discard(released)
            self._channel.drop(released)
        self._latest = partial(send, version, self._channel)
        self._transfer()
        self._stored.add(version)

    def _transfer(self) -> None:
        """Send the latest weights.

        Raises:
            NoAnswer: A stop was requested, and engines that get the weights directly do not take them.
        """
        if not self._channel.into_engines:
            return self._latest()
        done: Future[None] = Future()
        threading.Thread(target=outcome, args=(self._latest, done), daemon=True).start()
        stopping = _Clock()
        while not wait((done,), 0.2).done:
            if self._stop_requested() and stopping.seconds() > STOP_PATIENCE_S + STOP_ANSWER_S:
                raise NoAnswer
        return done.result()

    # --------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self, version: int, path: Path) -> None:
        """Tell the generator to save its state to `path` as soon as `version` is active."""
        self._send("snapshot", version, path)

    def snapshots_done(self, wait_for: Collection[int] = ()) -> list[int]:
        """Return the versions whose snapshots were saved since the last call; waits for those in `wait_for`."""
        done: list[int] = []
        while not set(wait_for) <= set(done):
            done.append(self._get("snapshot", interruptible=False))
        return done + self._rest("snapshot")

    # ----------------------------------------------------------------------------------------------------- process

    def notes(self) -> list[str]:
        """Return messages for the user since the last call, for example about engines that died."""
        return self._rest("note")

    def close(self) -> None:
        """End the process."""
        if self._worker is None:
            return
        self._send("stop")
        self._outbox.put(None)
        self._worker.end(wait_s=GENERATOR_END_S)
        for thread in self._threads:  # a signal may have interrupted `start`
            thread.join(timeout=THREAD_END_S)
        for version in self._stored:
            self._channel.drop(version)
        self._stored.clear()
        self._worker = None

    def _send(self, method: str, *arguments: Any) -> None:
        assert self._worker is not None, "the pipeline was not started"
        self._outbox.put((method, arguments))

    def _write(self) -> None:
        """Send messages to the generator process, whose pipe may be full: then a stop must not wait for it.

        Consumes: the outbox. Produces: messages. Waits for: the outbox, and the pipe. Unblocked by: a message, None as
        the last one, or the end of the process.
        """
        worker = self._worker
        assert worker is not None
        while (message := self._outbox.get()) is not None:
            worker.tell(message[0], *message[1])

    def _result(self, pending: PendingScores, interruptible: bool = True) -> ScoredGroup:
        stopping = _Clock()
        while not pending.wait(0.2):
            if self._stop_requested() and (interruptible or (self._may_hang and stopping.seconds() > STOP_PATIENCE_S)):
                raise Interrupted
        return pending.result()

    def _rest(self, name: str) -> list[Any]:
        """Return the messages of a kind that have arrived."""
        source = self._inbox[name]
        return [source.get() for _ in range(source.qsize())]

    def _get(self, name: str, interruptible: bool = True) -> Any:
        """Return the next message of a kind; send the latest weights again if engines have lost them.

        If a stop is requested and engines may hang, the generator gets `STOP_PATIENCE_S` before it is told to do
        without them. It then releases no version, and None is returned.

        Raises:
            Interrupted: A stop was requested, and nothing is lost if this message does not arrive.
            NoAnswer: A stop was requested, and the generator does not answer.
        """
        source, stopping = self._inbox[name], _Clock()
        while not (self._settled and name == "released"):
            try:
                return source.get(timeout=0.2)
            except queue.Empty:
                if self._death is not None and source.empty():
                    raise self._death from None
                self._watch()  # engines may wait for weights of a rank that has ended
                if self._stop_requested():
                    if interruptible:
                        raise Interrupted from None
                    self._settle(stopping.seconds())
                elif reason := self._channel.lost():
                    self._inbox["note"].put(f"the latest weights are sent again: {reason}")
                    self._transfer()
        return None

    def _settle(self, waited_s: float) -> None:
        """Let the generator do without engines that may hang, once a stop has waited long enough."""
        if self._may_hang and waited_s > STOP_PATIENCE_S and not self._settled:
            self._settled = True
            self._send("settle")
        if self._may_hang and waited_s > STOP_PATIENCE_S + STOP_ANSWER_S:
            raise NoAnswer
        if waited_s > STOP_SUSPENDED_S and (stopped := self._stopped()):
            raise NoAnswer(f"process {stopped} is stopped (SIGSTOP)")

    def _stopped(self) -> int | None:
        """Return the id of a stopped process that the generator waits for; None if there is none.

        A stopped engine that may hang is none: the generator does without it.
        """
        pid = None if self._worker is None else self._worker.pid
        return None if pid is None else stopped_process(pid, descendants=not self._may_hang)

    def _read(self) -> None:
        """Sort incoming messages into queues, and start to score groups.

        Consumes: messages of the generator process. Produces: queue entries and pending scores.
        Waits for: the pipe. Unblocked by: a message, or the end of the process, which is kept as the reason.
        """
        worker = self._worker
        assert worker is not None
        while True:
            try:
                name, content = worker.receive()
            except (WorkerDied, ConfigError, PluginError) as error:
                self._death = error
                return
            if name == "ready":
                self._may_hang = bool(content)
            if name == "group":
                index, group = content
                self._pending[index] = self._score(group)
            elif name == "dropped":
                for index in content:
                    self._pending.pop(index, None)
            else:
                self._inbox[name].put(content)
