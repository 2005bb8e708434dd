"""Engines that sample on their own, each pair behind a handle: a vLLM server, an actor of Ray, a user's other engine.

The open requests, how full an engine is, the time limits and the restarts are kept here, once for all handles. An
engine that died is started again, gets the latest weights and samples its open requests again, while the others run on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.limits import MOST_DEATHS
from scalerl.core.plugins import PluginError
from scalerl.training.config.placement import Placement
from scalerl.training.engines.engine import NO_WEIGHTS, EnginePair, Finished, Lane, Occupancy, Request, Work
from scalerl.training.engines.process_engine import EngineDied


@dataclass(frozen=True, slots=True)
class Submit:
    """Sample sequences.

    Example: Submit(lane=Lane.TRAINING, requests=(Request(...), ...))
    """

    lane: Lane
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop unfinished sequences. Their ids are not used again.

    Example: Cancel(lane=Lane.TRAINING, ids=frozenset({(17, 3)}))
    """

    lane: Lane
    ids: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Swap:
    """Receive the weights of a version and use them; sequences under way keep their cache.

    Example: Swap(version=7)
    """

    version: int


EngineCommand = Submit | Cancel | Swap


@dataclass(frozen=True, slots=True)
class Report:
    """Results of the engines over one model since the last report.

    Example: Report(finished=((Finished(...), ...), ()), works=(Work(steps=120, ...), Work()), version=7)
    """

    finished: tuple[tuple[Finished, ...], ...]
    """Finished sequences by lane."""
    works: tuple[Work, ...]
    """Work by lane since the start."""
    version: int
    """Version of the weights in use; `NO_WEIGHTS` before the first swap."""


class EngineHandle:
    """A running pair of engines over one model, for training and for evaluations, until it ends."""

    def post(self, command: EngineCommand) -> None:
        """Queue a command and return at once; commands are executed in order.

        Raises:
            EngineDied: The engines have ended.
        """
        raise NotImplementedError

    def report(self, wait_s: float) -> Report | None:
        """Return the results since the last report; wait up to `wait_s` seconds for some.

        None: no answer came in time, which a process that hangs does not give.

        Raises:
            EngineDied: The engines ended or failed.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the engines in any state, and what was started for them."""
        raise NotImplementedError


class Restarter:
    """Watches over the training engine and the evaluation engine over one model, across restarts.

    Example:
        restarter = Restarter(make, "generator 1 of 2", 64, Placement(engine="vllm"), print)
        training, evaluation = restarter.pair()
    """

    def __init__(
        self,
        make: Callable[[], EngineHandle],
        name: str,
        slots: int,
        placement: Placement,
        note: Callable[[str], None],
        sending: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start the engines.

        Args:
            make: Function that starts the engines or raises EngineDied; called in a thread, as it may take minutes.
            name: Name in messages.
            slots: Sequences that each engine decodes together.
            placement: Configuration with the seconds of silence, and of a swap, after which the engines count as dead.
            note: Function that gets a message about every death.
            sending: Function that returns whether weights that were requested are on their way; only then does the time
                limit of a transfer run.
        """
        self.name, self._make, self._note, self._sending = name, make, note, sending
        self._silence_s, self._transfer_s = placement.silence_timeout_s, placement.transfer_timeout_s
        self.engines = tuple(ServedEngine(self, lane, slots) for lane in Lane)
        self.version = NO_WEIGHTS
        """Version that new tokens are sampled with, as the engines have reported it."""
        self._handle: EngineHandle | None = None
        self._target, self._caught_up, self._in_a_row = -1, False, 0
        self._asked_at = self._heard_at = self._moved_at = time.monotonic()
        self._future = self._begin()

    def pair(self) -> EnginePair:
        """Wait until the first start has finished; its exception is raised here, because no work is lost yet."""
        self._future.result()
        return EnginePair(*self.engines)

    # ------------------------------------------------------------------------------------------------- for the engines

    def post(self, command: Submit | Cancel) -> None:
        """Forward a command to engines that run; otherwise the open requests are submitted after the restart.

        Raises:
            EngineDied: The engines died too often.
        """
        if self._caught_up:
            self._call(command)

    def swap(self, version: int) -> None:
        """Request new weights.

        Raises:
            EngineDied: The engines died too often.
        """
        self._target, self._asked_at = version, time.monotonic()
        self._call(Swap(version))

    def pump(self, wait_s: float) -> None:
        """Process the engines' report; finish a restart if they died.

        Raises:
            EngineDied: The engines died too often.
        """
        if self._handle is None and not self._has_started(wait_s):
            return
        assert self._handle is not None
        try:
            report = self._handle.report(wait_s)
            if report is not None:
                self._receive_report(report)
            if self._handle is not None:
                self._check_time()
        except EngineDied as error:
            self._handle_failure(error)

    # --------------------------------------------------------------------------------------------- starts and failures

    def _begin(self) -> Future[EngineHandle]:
        """Start the engines in a daemon thread, because a start that hangs must not keep the process alive."""
        future: Future[EngineHandle] = Future()

        Thread(target=outcome, args=(self._make, future), name=f"begin {self.name}", daemon=True).start()
        return future

    def _has_started(self, wait_s: float) -> bool:
        if not self._future.done():
            time.sleep(wait_s)
            return False
        try:
            self._handle = self._future.result()
        except (EngineDied, ConfigError, PluginError) as error:  # no user's error: the configuration has worked before
            self._handle_failure(EngineDied(str(error), error.trace if isinstance(error, EngineDied) else ""))
            return False
        self._asked_at = self._heard_at = self._moved_at = time.monotonic()
        if self._target >= 0:
            self._call(Swap(self._target))
        return self._handle is not None

    def _call(self, command: EngineCommand) -> None:
        """Pass a command to the engines, if they run; replace them if they have ended since their last report."""
        try:
            if self._handle is not None:
                self._handle.post(command)
        except EngineDied as error:
            self._handle_failure(error)

    def _receive_report(self, report: Report) -> None:
        now = self._heard_at = time.monotonic()
        moved = [engine.receive_work(work) for engine, work in zip(self.engines, report.works, strict=True)]
        idle = not any(engine.requests for engine in self.engines)
        if idle or not self._caught_up or self.version != self._target or any(moved):  # a swap may take longer
            self._moved_at = now
        for engine, finished in zip(self.engines, report.finished, strict=True):
            self._in_a_row = 0 if finished else self._in_a_row
            engine.take(finished)
        self.version = report.version
        if not self._caught_up and report.version == self._target >= 0:
            self._caught_up = True
            for engine in self.engines:
                if engine.requests:
                    self.post(Submit(engine.lane, tuple(engine.requests.values())))

    def _check_time(self) -> None:
        now, swapping = time.monotonic(), self.version != self._target
        if swapping and not self._sending():
            self._asked_at = now
        if swapping and self._target >= 0 and now - self._asked_at > self._transfer_s:
            state = f"still uses version {self.version}" if self.version != NO_WEIGHTS else "has no weights yet"
            raise EngineDied(
                f"{self.name}: the transfer of version {self._target} of the weights took more than "
                f"{self._transfer_s:g} s (placement.transfer_timeout_s); it {state}"
            )
        if now - self._heard_at > (self._transfer_s if swapping else self._silence_s):
            raise EngineDied(
                f"{self.name} has not answered for {now - self._heard_at:.0f} s (placement.silence_timeout_s)"
            )
        if not swapping and now - self._moved_at > self._silence_s:
            raise EngineDied(
                f"{self.name} has sampled no token for {now - self._moved_at:.0f} s (placement.silence_timeout_s), "
                "although it has sequences"
            )

    def _handle_failure(self, error: EngineDied) -> None:
        if self._handle is not None:
            self._handle.stop()
        self._handle, self._caught_up, self.version = None, False, NO_WEIGHTS
        self._in_a_row += 1
        again = sum(engine.fail() for engine in self.engines)
        if self._in_a_row >= MOST_DEATHS:
            raise EngineDied(
                f"{self.name} died {self._in_a_row} times without finishing a sequence; the last: {error}", error.trace
            )
        self._note(
            f"{error}\nThe engine is restarted; its {again} unfinished sequences are sampled again from their prompts"
        )
        self._future = self._begin()


class ServedEngine:
    """One engine of a handle, behind the engine contract."""

    def __init__(self, restarter: Restarter, lane: Lane, slots: int) -> None:
        self._restarter, self.lane, self._slots = restarter, lane, slots
        self.requests: dict[tuple[int, int], Request] = {}
        """Unfinished requests by id."""
        self._inbox: list[Finished] = []
        self._before, self._now = Work(), Work()

    @property
    def work(self) -> Work:
        """Work of all starts."""
        return self._before + self._now

    @property
    def version(self) -> int:
        """Version of the weights in use; `NO_WEIGHTS` from a death until the new engine has loaded the latest."""
        return self._restarter.version

    def occupancy(self) -> Occupancy:
        """Return how full the engine is; it accepts 1/8 more than its slots, because answers are delayed."""
        count = len(self.requests)
        running = min(count, self._slots)
        return Occupancy(self._slots, running, count - running, self._slots + max(1, self._slots // 8) - count)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences."""
        self.requests |= {request.id: request for request in requests}
        self._restarter.post(Submit(self.lane, tuple(requests)))

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        gone = {id for id in ids if self.requests.pop(id, None)}
        self._inbox = [finished for finished in self._inbox if finished.id not in ids]
        if gone:
            self._restarter.post(Cancel(self.lane, frozenset(gone)))

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished, each exactly once, also after a restart."""
        self._restarter.pump(0.0 if self._inbox else timeout_s)
        out, self._inbox = self._inbox, []
        return out

    def swap(self, version: int) -> None:
        """Request new weights; `version` changes when they are in use."""
        self._restarter.swap(version)

    # ------------------------------------------------------------------------------------------------ the restarter's

    def receive_work(self, work: Work) -> bool:
        """Record the work since the last start; return whether it sampled a token since the last report."""
        moved, self._now = work.tokens != self._now.tokens, work
        return moved

    def take(self, finished: Collection[Finished]) -> None:
        """Keep finished sequences for the next poll, unless they were canceled."""
        self._inbox += [sequence for sequence in finished if self.requests.pop(sequence.id, None)]

    def fail(self) -> int:
        """Keep the work until the engine failed; return how many sequences must be sampled again."""
        self._before += self._now + Work(restarts=self.lane == Lane.TRAINING, resampled=len(self.requests))
        self._now = Work()
        return len(self.requests)
