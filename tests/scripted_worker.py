"""A generator process over scripted engines, for tests of the pipeline."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scripted_engine import STOP, ScriptedDecoder

from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config.recipe import OffPolicy
from scalerl.training.engines.activation import AtTick, OnArrival
from scalerl.training.engines.coordinator import Coordinator
from scalerl.training.engines.engine import OuterEngine, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.slot_engine import SlotEngine
from scalerl.training.engines.schedule import SCHEDULES
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.engines.worker import WorkerParts


@dataclass(frozen=True)
class ScriptedSpec:
    """Makes the generator; each token equals the version that sampled it."""

    off_policy: OffPolicy
    per_batch: int = 3
    group_size: int = 2
    slots: int = 8
    lag_ticks: int = 6
    eager: bool = False
    mean_tokens: float = 6.0
    max_tokens: int = 25
    max_evaluated: int = 20
    delay_s: float = 0.0
    fail_at_tick: int = -1
    kill_at_tick: int = -1
    hangs_at: int = -1
    """Version that asynchronous engines never take, like a server that hangs; -1: the engines step in lockstep."""
    state: Path | None = None
    """Directory of a state to resume from."""

    def __call__(self, channel: WeightChannel) -> WorkerParts:
        decoder = ScriptedDecoder(self.mean_tokens, self.delay_s)
        engine, evaluator = (
            SlotEngine(decoder, slots, LengthRule(None, NEVER, tokens), (STOP,), refill=1, receive=channel.receive)
            for slots, tokens in ((self.slots, self.max_tokens), (8, self.max_evaluated))
        )
        activation = OnArrival() if self.eager else AtTick(self.lag_ticks)
        schedule = SCHEDULES[self.off_policy.kind](self.off_policy, self.per_batch, activation)
        if self.hangs_at >= 0:
            engine, evaluator = Hanging(engine, self.hangs_at), Hanging(evaluator, self.hangs_at)
        coordinator: Any = Coordinator([engine], schedule, self.group_size, seed=0, evaluators=[evaluator])
        if self.state is not None:
            coordinator.load_state(pickle.loads((self.state / "generator").read_bytes()))
        if self.fail_at_tick >= 0 or self.kill_at_tick >= 0:
            coordinator = _Faulty(coordinator, self)
        return WorkerParts(coordinator, _save)


class _Faulty:
    """A coordinator that fails or is killed at a tick."""

    def __init__(self, inner: Coordinator, spec: ScriptedSpec) -> None:
        self._inner, self._spec = inner, spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, on_activation: Any) -> Any:
        if self._inner.ticks == self._spec.fail_at_tick:
            raise ValueError("the engine broke")
        if self._inner.ticks == self._spec.kill_at_tick:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.step(on_activation)


class Hanging(OuterEngine):
    """An engine that samples on its own, also while it never takes a version or a newer one."""

    def __init__(self, inner: SlotEngine, at: int) -> None:
        super().__init__(inner)
        self._at, self.occupancy, self.submit, self.cancel = at, inner.occupancy, inner.submit, inner.cancel

    def swap(self, version: int) -> None:
        if version < self._at:
            super().swap(version)

    def poll(self, timeout_s: float = 0.0) -> Any:
        time.sleep(0.001)
        return step(self.inner)


def _save(path: Path, name: str, state: dict[str, Any]) -> None:
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(pickle.dumps(state))


class NumberChannel(WeightChannel):
    """A weight channel whose weights are one number, so that a process does not need torch."""

    capacity = 4

    def __init__(self) -> None:
        self._slots = get_context("spawn").RawArray("q", [-1] * 2 * self.capacity)  # versions, then their weights

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        slot = list(self._slots[: self.capacity]).index(-1)  # fails if the channel is full
        self._slots[self.capacity + slot] = dict(weights)["version"]
        self._slots[slot] = version

    def receive(self, version: int) -> Mapping[str, Any]:
        return {"version": self._slots[self.capacity + self._slot(version)]}

    def drop(self, version: int) -> None:
        self._slots[self._slot(version)] = -1

    def _slot(self, version: int) -> int:
        return list(self._slots[: self.capacity]).index(version)


class LosingChannel(NumberChannel):
    """A channel that loses the weights once, when it is asked the second time."""

    asked = 0

    def lost(self) -> str:
        self.asked += 1
        return "an engine was restarted" if self.asked == 2 else ""


def weights(version: int, channel: WeightChannel) -> None:
    """Send the 'weights' of a version."""
    channel.send(version, [("version", version)])


@dataclass(frozen=True)
class Scored:
    """Return a group that is scored at once: 0 for every rollout."""

    group: Group

    def wait(self, seconds: float) -> bool:
        return True

    def result(self) -> ScoredGroup:
        return ScoredGroup(self.group, (Score(0.0, False),) * len(self.group.rollouts))


def visits(first: int, count: int) -> tuple[Visit, ...]:
    return tuple(Visit(Prompt(f"{i:016x}", "q", (1, 2), "a", "test"), 0, i) for i in range(first, first + count))


def evaluated(pipeline, version, held_out, samples):
    """Evaluate held-out prompts; return their scored groups in order, and the seconds."""
    groups = {}
    seconds = pipeline.evaluate(version, weights, held_out, samples, groups.__setitem__)
    return [groups[index] for index in range(len(held_out))], seconds
