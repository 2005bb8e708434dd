"""Objects in Ray actors: the carrier of a `Remote` (core/remote.py) on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from queue import Queue, SimpleQueue
from typing import Any

from scalerl.core.limits import ACTOR_LAST_ANSWER_S
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import Body, Remote, host
from scalerl.training.machines.connect import last_line


class Actor:
    """A Ray process with its end of the carrier. Subclasses name the process in Ray's tools."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._outbox: Queue[Any] = Queue(1)  # so that at most two answers are older than the caller's last look

    # methods of the actor, each in a separate thread

    def run(self, function: Body) -> None:
        """Run a function until it ends."""
        host(self, function)

    def put(self, message: Any) -> None:
        """Store a message for the function."""
        self._inbox.put(message)

    def take(self) -> Any:
        """Wait for an answer of the function and return it."""
        return self._outbox.get()

    # the function's end

    def has_message(self) -> bool:
        """Return whether a message is waiting."""
        return not self._inbox.empty()

    def next(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for a message."""
        method, arguments = self._inbox.get()
        return method, arguments

    def answer(self, kind: str, content: Any) -> None:
        """Pass on an answer; waits while an earlier one has not been taken."""
        self._outbox.put((kind, content))


class CoordinatorActor(Actor):
    """The generator process of a run."""


class EvaluationActor(Actor):
    """The evaluation process of a run."""


class RayRemote(Remote):
    """The caller's side of an actor."""

    def __init__(
        self, ray: Any, kind: type[Actor], run: Body, name: str, died: type[ProcessDied], options: Mapping[str, Any]
    ) -> None:
        """Start an actor and return at once.

        Args:
            ray: The module `ray`, connected.
            kind: Class of the actor.
            run: Function that the actor runs.
            name: Name in messages.
            died: Exception that reports its death.
            options: Options of the actor, such as num_cpus and num_gpus.
        """
        self._ray, self.name, self.died = ray, name, died
        actor_class = ray.remote(concurrency_groups={"in": 1, "out": 1})(kind)  # each keeps the order of its calls
        self.actor = actor_class.options(**options, max_restarts=0).remote()
        self.kill = partial(ray.kill, self.actor)
        self._put = self.actor.put.options(concurrency_group="in")
        self._take = self.actor.take.options(concurrency_group="out")
        self._placed = self.actor.__ray_ready__.remote()
        self._run = self.actor.run.remote(run)  # ends with the actor
        self._answer = self._take.remote()

    def placed(self, within_s: float, setting: str = "") -> None:
        """Wait until the actor has started.

        Args:
            within_s: Time limit in seconds.
            setting: Name of the limit, for messages.

        Raises:
            ProcessDied: `died`: It has not started in time, or has ended.
        """
        try:
            self._ray.get(self._placed, timeout=within_s)
        except self._ray.exceptions.GetTimeoutError:
            late = f"after {within_s:g} s{setting and f' ({setting})'} it was not placed"
            raise self.died(f"{self.name}: {late}; is the cluster full? see `ray status`") from None
        except self._ray.exceptions.RayError as error:
            raise self.died(f"{self.name} ended: {last_line(error)}") from None

    def pack(self, message: Any) -> Any:
        """Put a message into the object store once; each node fetches it once."""
        return self._ray.put(message)

    def send(self, packed: Any) -> None:
        """Request a call of `put`."""
        self._put.remote(packed)

    def poll(self, wait_s: float | None = 0.0) -> bool:
        """Wait for the call of `take`, or the end of the function."""
        return bool(self._ray.wait([self._answer, self._run], timeout=wait_s)[0])

    def read(self) -> tuple[str, Any]:
        """Return the result of the call of `take`, and request the next one."""
        try:
            kind, content = self._ray.get(self._answer, timeout=ACTOR_LAST_ANSWER_S)
        except self._ray.exceptions.RayError:  # it has ended, or has given its last answer
            return "ended", self.ended(ACTOR_LAST_ANSWER_S) or "ended"
        self._answer = self._take.remote()
        return kind, content

    def ended(self, wait_s: float = 0.0) -> str:
        """Return Ray's reason."""
        if not self._ray.wait([self._run], timeout=wait_s)[0]:
            return ""
        try:
            self._ray.get(self._run)
        except self._ray.exceptions.RayError as error:
            return f"ended: {last_line(error)}"
        return "ended"

    def end(self, wait_s: float = 0.0) -> None:
        """Wait for the end of the function, then end the actor's process."""
        self.ended(wait_s)
        self.kill()
