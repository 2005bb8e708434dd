"""A generator process over scripted engines, for tests of the pipeline."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.config.recipe import OffPolicy
from scalerl.rollouts.coordinator import Generator
from scalerl.rollouts.local.scripted import scripted_engine
from scalerl.rollouts.schedule import Schedule
from scalerl.rollouts.worker import WorkerParts
from scalerl.types import Prompt, Visit


@dataclass(frozen=True)
class ScriptedSpec:
    """How to make it; each token is the version that sampled it."""

    off_policy: OffPolicy
    per_batch: int = 3
    group_size: int = 2
    slots: int = 8
    lag_ticks: int = 6
    eager: bool = False
    mean_tokens: float = 6.0
    max_tokens: int = 25
    delay_s: float = 0.0
    fail_at_tick: int = -1
    kill_at_tick: int = -1

    def __call__(self) -> WorkerParts:
        engine = scripted_engine(self.slots, self.mean_tokens, self.max_tokens, self.delay_s)
        schedule = Schedule(self.off_policy, self.per_batch, self.lag_ticks, eager=self.eager)
        generator = Generator(engine, schedule, self.group_size, seed=0)
        if self.fail_at_tick >= 0 or self.kill_at_tick >= 0:
            generator = _Faulty(generator, self)
        return WorkerParts(generator, scripted_engine(8, 5, 20), 0, _ignore)


class _Faulty:
    """A generator that fails or is killed at a tick."""

    def __init__(self, inner: Generator, spec: ScriptedSpec) -> None:
        self._inner, self._spec = inner, spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, on_activation: Any) -> Any:
        if self._inner.ticks == self._spec.fail_at_tick:
            raise ValueError("the engine broke")
        if self._inner.ticks == self._spec.kill_at_tick:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.step(on_activation)


def _ignore(path: Path, state: dict[str, Any]) -> None:
    pass


def visits(first: int, count: int) -> tuple[Visit, ...]:
    return tuple(Visit(Prompt(f"{i:016x}", "q", (1, 2), "a", "test"), 0, i) for i in range(first, first + count))


def write_version(version: int) -> Any:
    """Return how to fill a block with 'weights': the version in its first four bytes."""

    def write(block: np.ndarray[Any, Any]) -> None:
        block[:4].view(np.int32)[0] = version

    return write
