"""The generator process: receives messages, steps the coordinator, and sends completed groups and batches.

Incoming messages: publish, evaluate, snapshot, mark, settle, stop. Outgoing messages: ready, group, dropped, batch,
held_out, snapshot, mark, released, note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.core.remote import End
from scalerl.core.types import Visit
from scalerl.training.engines.coordinator import Coordinator, Formed, NewVersion
from scalerl.training.engines.engine import WaitEnded
from scalerl.training.engines.weights import WeightChannel

SaveState = Callable[[Path, str, dict[str, Any]], None]
"""(directory, name of the part, state): writes a part of a checkpoint."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Parts that a build function makes inside the process."""

    coordinator: Coordinator
    save: SaveState
    notes: list[str] = field(default_factory=list)
    """Messages for the user, for example about a restarted engine; the process empties the list."""


Build = Callable[[WeightChannel], WorkerParts]
"""Makes the parts, given the engines' end of the weight channel; must be picklable."""


def generate_until_stopped(
    channel: WeightChannel, build: Build, version: int, visits: tuple[Visit, ...], end: End
) -> None:
    """Run the message loop until a stop message; every answer is a pair of its name and its content.

    Consumes: messages of the pipeline, and weights of the channel.
    Produces: groups, batches, held-out groups and snapshots, each as one answer.
    Waits for: a message, when the coordinator is blocked.
    Unblocked by: a message, or the death of the caller, which ends this process.

    Args:
        channel: The engines' end of the channel.
        build: Function that makes the coordinator.
        version: Version of the first weights, which have been sent.
        visits: First prompts.
        end: End of the carrier.
    """
    parts = build(channel)
    parts.coordinator.begin(version, visits)
    loop = _Loop(end, channel, parts, version)
    loop.say("ready", not parts.coordinator.lockstep)
    loop.run()


class _Loop:
    """The message loop, with evaluations and snapshots that wait for a version."""

    def __init__(self, end: End, channel: WeightChannel, parts: WorkerParts, version: int) -> None:
        self.end, self.channel, self.parts = end, channel, parts
        self.coordinator = parts.coordinator
        self.stored = {version}  # versions that the channel keeps for this process
        self.evaluations: dict[int, tuple[tuple[Visit, ...], int | Sequence[int]]] = {}
        self.snapshots: dict[int, Path] = {}
        self.settled = False

    def say(self, name: str, content: Any) -> None:
        self.end.answer("done", (name, content))

    def run(self) -> None:
        self._send_finished(self.coordinator.untrained())  # from a restored state
        while True:
            blocked = self.settled or self.coordinator.blocked()
            while blocked or self.end.has_message():
                if not self.settled and self.coordinator.stuck():
                    raise RuntimeError(f"the schedule is stuck, which is a bug of scalerl: {self.coordinator.schedule}")
                start = time.perf_counter()
                method, arguments = self.end.next()
                if blocked:
                    self.coordinator.seconds.idle += time.perf_counter() - start
                if method == "stop":
                    return
                getattr(self, method)(*arguments)
                if self.settled:
                    self.coordinator.settle(self._serve_version)
                self._release()  # the learner may be waiting for room in the channel
                blocked = self.settled or self.coordinator.blocked()
            self._send_finished(self.coordinator.step(self._serve_version))
            self._release()

    def _send_finished(self, batches: list[Formed]) -> None:
        for index, group in self.coordinator.fresh:
            self.say("group", (index, group))
        self.coordinator.fresh.clear()
        for batch in batches:
            self.say("batch", (batch.number, list(batch.groups), batch.stats, batch.dropped))
        for note in self.parts.notes:
            self.say("note", note)
        self.parts.notes.clear()
        if self.coordinator.late:
            self.say("dropped", tuple(self.coordinator.late))
            self.coordinator.late.clear()

    def publish(self, new: NewVersion) -> None:
        if new.weights:
            self.stored.add(new.version)
        self.coordinator.receive(new)

    def evaluate(self, version: int, visits: tuple[Visit, ...], samples: int | Sequence[int]) -> None:
        self.stored.add(version)
        self.evaluations[version] = (visits, samples)
        self._serve_version()

    def snapshot(self, version: int, path: Path) -> None:
        self.snapshots[version] = path
        self._serve_version()

    def settle(self) -> None:
        """End sampling, because the run stops and its engines may hang; updates and snapshots do without them."""
        self.settled = True

    def mark(self, number: int) -> None:
        self.say("mark", (number, self.coordinator.seconds.busy))

    def _serve_version(self) -> None:
        """Run the evaluation and the snapshot of the active version, before the next version becomes active."""
        version = self.coordinator.schedule.active
        if version in self.evaluations:
            visits, samples = self.evaluations.pop(version)
            start, busy_s = time.perf_counter(), self.coordinator.seconds.busy
            try:
                if self.settled:
                    raise WaitEnded
                for index, group in self.coordinator.evaluate(version, visits, samples, self._evaluation_ends):
                    self.say("held_out", (index, (group.rollouts, group.oldest_version)))
            except WaitEnded:
                self.say("held_out", (None, None))
            else:
                self.say("held_out", (None, (time.perf_counter() - start, busy_s)))
        if version in self.snapshots:
            path = self.snapshots.pop(version)
            self.parts.save(path, "generator", self.coordinator.state())
            sampling = self.coordinator.sampling_version
            if sampling != version:  # a frozen round still samples with older weights
                self.parts.save(path, "round_weights", dict(self.channel.receive(sampling)))
            self.say("snapshot", version)

    def _evaluation_ends(self) -> bool:
        """Return whether the run stops: it sends nothing else while it waits for an evaluation."""
        return not self.coordinator.lockstep and self.end.has_message()

    def _release(self) -> None:
        """Tell the learner which versions are no longer needed."""
        for version in sorted(self.stored - self.coordinator.needed_versions() - self.evaluations.keys()):
            self.stored.discard(version)
            self.say("released", version)
