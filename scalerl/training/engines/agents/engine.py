"""Adds programs of agents to an engine: every turn that a program asks for is a request, as in turns.py.

A program takes wall-clock time, so this engine is not exact, whatever the inner one is. After a resume, the programs of
rollouts that were under way start again, and nothing of their first attempt is trained on.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from scalerl.core.printable import encodable
from scalerl.core.rng import stream_key
from scalerl.core.types import AGENT, Outcome, Prompt, Rollout
from scalerl.training.engines.agents.connections import EndpointServer
from scalerl.training.engines.agents.conversations import Conversations
from scalerl.training.engines.agents.endpoint import Endpoint, Session
from scalerl.training.engines.engine import Engine, ExactEngine, Finished, Occupancy, OuterEngine, Request
from scalerl.training.engines.turns import ended
from scalerl.training.models.text import TokenText
from scalerl.training.rewards.agents import harness
from scalerl.training.rewards.agents.harness import ProgramEnd

RunProgram = Callable[..., ProgramEnd]
"""Runs a program (`tasks.agents.harness.run`)."""

EngineEvent = Callable[[], None]
"""What another thread wants done in the engine's thread."""


@dataclass(eq=False)
class RolloutJob:
    """A rollout under way."""

    request: Request
    prompt: Prompt
    session: Session
    key: str = ""
    """Key for the endpoint; empty before its program starts."""
    turns: int = 0
    """Turns that were asked for; each has a random stream."""
    dropped: bool = False
    report: ProgramEnd | None = None


class Endpoints:
    """The endpoints of a process, one for each address, which start when they are needed."""

    def __init__(self, text: TokenText) -> None:
        """Prepare; `text` decodes the policy's tokens."""
        self.text, self._by_host = text, dict[str, Endpoint]()
        self._server: EndpointServer | None = None

    def of(self, settings: Mapping[str, Any]) -> Endpoint:
        """Return the endpoint of a task."""
        host = settings["host"]
        if host not in self._by_host:
            self._server = self._server or EndpointServer()
            self._by_host[host] = Endpoint(host, self.text, self._server)
        return self._by_host[host]

    def close(self) -> None:
        """Stop all."""
        if self._server is not None:
            self._server.close()


class AgentEngine(OuterEngine):
    """Requests for an agent's rollout start its program, whose turns the inner engine samples; others pass through."""

    def __init__(self, inner: Engine, endpoints: Endpoints, share: int = 1, run: RunProgram = harness.run) -> None:
        """Wrap an engine.

        Args:
            inner: Engine that samples the turns.
            endpoints: The endpoints of this process.
            share: Number of engines among which the processes are divided.
            run: Function that runs a program.
        """
        super().__init__(inner)
        self._endpoints, self._share, self._run = endpoints, share, run
        self._jobs: dict[tuple[int, int], RolloutJob] = {}
        self._queued: deque[RolloutJob] = deque()
        self._running = 0
        self._calls: dict[tuple[int, int], tuple[RolloutJob, Future[Rollout]]] = {}
        """Turns that are being sampled, by the ids of their requests."""
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._done: list[Finished] = []
        self._requested = 0

    def occupancy(self) -> Occupancy:
        """Return how full the engine is; rollouts whose program has not started take the room of others."""
        inner, queued = self.inner.occupancy(), len(self._queued)
        idle = len(self._jobs) - len({job.request.id for job, _ in self._calls.values()})
        return replace(inner, waiting=inner.waiting + idle, room=inner.room - queued, parked=idle - queued)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue rollouts."""
        others = []
        for request in requests:
            if request.source is None or AGENT not in request.source.columns:
                others.append(request)
                continue
            conversations = Conversations(request.source.columns[AGENT], self._endpoints.text)
            request_turn = partial(self._request_turn, request.id)
            job = RolloutJob(request, request.source, Session(conversations, request_turn, self._take_back))
            self._jobs[request.id] = job
            self._queued.append(job)
        self.inner.submit(others)
        self._start()

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished rollouts, and end their programs."""
        for id in ids:
            if (job := self._jobs.pop(id, None)) is not None:
                job.dropped = True
        self._queued = deque(job for job in self._queued if not job.dropped)
        self._drop_calls(lambda job, _: job.dropped)
        self.inner.cancel([id for id in ids if id not in self._jobs])

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Do what programs asked for, let the inner engine work, and return the rollouts that ended.

        Consumes: turns that programs ask for, and their ends. Produces: requests, turns and rollouts. Waits for: an
        event, at most `timeout_s` and only while the inner engine is idle. Unblocked by: a program.
        """
        idle = not self.inner.occupancy().busy
        self._handle(timeout_s if idle and not self._done else 0.0)
        if isinstance(self.inner, ExactEngine):
            self.inner.begin()
        for finished in self.inner.poll(0.0 if idle else timeout_s):
            if finished.id not in self._calls:
                self._done.append(finished)
                continue
            _, future = self._calls.pop(finished.id)
            if future.set_running_or_notify_cancel():
                future.set_result(finished.rollout)
        done, self._done = self._done, []
        return done

    def _handle(self, timeout_s: float) -> None:
        """Handle all events; wait at most `timeout_s` for the first."""
        try:
            event = self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait()
            while True:
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            return

    # ------------------------------------------------------------------------------------------------------- programs

    def _start(self) -> None:
        """Start programs of queued rollouts, as many as may run."""
        while self._queued and self._running < -(-self._queued[0].session.settings["processes"] // self._share):
            job = self._queued.popleft()
            job.session.start()
            endpoint = self._endpoints.of(job.session.settings)
            job.key = endpoint.open(job.session)
            self._running += 1
            # a daemon, because the process may end while a program runs, which the launcher then kills
            threading.Thread(target=self._follow, args=(job, endpoint), name="agent", daemon=True).start()

    def _follow(self, job: RolloutJob, endpoint: Endpoint) -> None:
        """RunProgram the program of a rollout.

        Consumes: a rollout. Produces: its end. Waits for: the program. Unblocked by: its end, or its time limit.
        """
        session, row = job.session, job.prompt.columns["row"]
        try:
            report = self._run(session.settings, row, endpoint.base_url, job.key, session.own_s, lambda: job.dropped)
        except Exception as error:  # a thread that dies would leave its rollout open for ever
            report = ProgramEnd(problem=encodable(f"the program of the agent: {type(error).__name__}: {error}"))
        endpoint.end(job.key)
        job.report = report
        self._events.put(partial(self._ended, job, endpoint))

    def _request_turn(self, id: tuple[int, int], tokens: tuple[int, ...], call: Future[Rollout]) -> None:
        self._events.put(partial(self._sample, id, tokens, call))

    def _sample(self, rollout: tuple[int, int], tokens: tuple[int, ...], call: Future[Rollout]) -> None:
        job = self._jobs.get(rollout)
        if job is None or job.report is not None:
            call.cancel()
            return
        key = stream_key(job.request.key, "turn", job.turns) if job.turns else job.request.key
        job.turns += 1
        self._requested += 1
        id = (job.request.id[0], -self._requested)  # samples have numbers from 0, so no other request has this id
        self._calls[id] = job, call
        self.inner.submit([Request(id, tokens, key)])

    def _take_back(self, call: Future[Rollout]) -> None:
        self._events.put(partial(self._cancel, call))

    def _cancel(self, call: Future[Rollout]) -> None:
        self._drop_calls(lambda _, future: future is call)
        call.cancel()

    def _drop_calls(self, chosen: Callable[[RolloutJob, Future[Rollout]], bool]) -> None:
        """Drop turns that are being sampled."""
        for id, (job, future) in list(self._calls.items()):
            if chosen(job, future):
                self.inner.cancel([id])
                del self._calls[id]
                future.cancel()

    def _ended(self, job: RolloutJob, endpoint: Endpoint) -> None:
        """Return the rollout of a program that has ended."""
        self._running -= 1
        self._drop_calls(lambda other, _: other is job)
        if not job.dropped:
            del self._jobs[job.request.id]
            assert job.report is not None
            rollout = rollout_of(job.prompt, job.session, job.report, endpoint.late_calls(), self.inner.version)
            self._done.append(Finished(job.request.id, rollout))
        self._start()


def rollout_of(prompt: Prompt, session: Session, report: ProgramEnd, late: int, version: int) -> Rollout:
    """Return a rollout with all sequences of its conversations.

    Args:
        prompt: Prompt of the rollout.
        session: The rollout, which has ended.
        report: How its program ended.
        late: Calls after the end of other rollouts.
        version: Version of the weights in use, for a rollout without a turn.
    """
    conversations = session.conversations
    problem, rewards = report.problem, tuple[float, ...]()
    if not problem and not conversations.turns:
        problem = NEVER_CALLED.format(report.reward)
    if not problem:
        try:
            rewards = harness.rewards_of(report, conversations.turns)
        except ValueError as error:
            problem = str(error)
    counts = {
        "conversations": len(conversations.sequences),
        "forks": conversations.forks,
        "refused": session.refused,
        "disconnects": session.disconnects,
        "late_calls": late,
    }
    end: dict[str, Any] = {
        "ended": "problem" if problem else "environment",
        "score": 0.0 if problem else report.reward,
        "problem": problem,
        "metrics": {**report.metrics, **{name: float(count) for name, count in counts.items()}},
        "calls": conversations.calls,
        "waited_s": session.own_s(),
        "rewards": rewards,
    }
    if conversations.turns:
        return ended(prompt, conversations.sequences, **end)
    # one token that carries no loss, because a rollout has tokens
    sequence, zero = np.full(1, prompt.tokens[-1], np.int32), np.zeros(1, np.float32)
    return Rollout(
        sequence, zero, np.full(1, version, np.int32), np.zeros(1, np.bool_), False, False, Outcome(0, **end)
    )


NEVER_CALLED = "the program returned the reward {:g} and never called the policy at OPENAI_BASE_URL"


def with_agents(text: TokenText, share: int) -> Callable[[Engine], Engine]:
    """Return a function that adds programs of agents to engines, which share the endpoints."""
    return partial(AgentEngine, endpoints=Endpoints(text), share=share)
