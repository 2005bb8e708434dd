"""The generator's process: it drains messages, ticks, and sends what it completes. It decides nothing itself.

Messages in (a tuple, its name first): update, evaluate, snapshot, stop. Messages out: ready, batch, evaluated,
snapshot, released, failed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.rollouts.coordinator import Generator, Update, generate
from scalerl.rollouts.engine import Engine
from scalerl.rollouts.weights.shared_memory import WeightSlots
from scalerl.types import Visit

SaveState = Callable[[Path, dict[str, Any]], None]


class WorkerParts:
    """What a build function makes inside the process: a generator, an engine for evaluation, a way to save state."""

    def __init__(
        self, generator: Generator, evaluation: Engine, seed: int, save: SaveState, weights: Any = None
    ) -> None:
        self.generator, self.evaluation, self.seed, self.save = generator, evaluation, seed, save
        self.weights = weights
        """Restored weights, where the generator samples with others than the trainer has reached."""


Build = Callable[[], WorkerParts]


def run_worker(
    connection: Connection, slots: WeightSlots, build: Build, first: tuple[int, int, tuple[Visit, ...]]
) -> None:
    """Run until told to stop.

    Consumes: messages of the pipeline, and weights in shared slots.
    Produces: batches, evaluations and snapshots, each as one message.
    Waits for: a message, when the generator is blocked.
    Unblocked by: a message, or the death of the parent, which ends this process.
    """
    for name in ("SIGINT", "SIGTERM"):  # the parent gets them too, and ends this process in order
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        parts = build()
        slot, version, visits = first
        generator = parts.generator
        weights = slots[slot] if parts.weights is None else parts.weights
        generator.begin(weights, version if parts.weights is None else generator.engine.version, visits)
        connection.send(("ready", len(parts.generator.untrained())))
        for batch in parts.generator.untrained():
            connection.send(("batch", batch))
        _Loop(connection, slots, parts, slot).run()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        return  # the parent is gone
    except Exception:  # the one place where a worker may die: the parent is told, and raises
        connection.send(("failed", traceback.format_exc()))


class _Loop:
    """The state of the message loop: which slot holds which weights."""

    def __init__(self, connection: Connection, slots: WeightSlots, parts: WorkerParts, slot: int) -> None:
        self.connection, self.slots, self.parts = connection, slots, parts
        self.active_slot = slot
        self.waiting_slots: dict[int, int | None] = {}
        self.snapshots: list[tuple[int, Path]] = []

    def run(self) -> None:
        generator = self.parts.generator
        while True:
            blocked = generator.blocked()
            while blocked or self.connection.poll(0):
                if generator.stuck():
                    raise RuntimeError(f"the schedule is stuck, which is a bug of scalerl: {generator.schedule}")
                began = time.perf_counter()
                message = self.connection.recv()
                if blocked:
                    generator.clock.idle_s += time.perf_counter() - began
                if message[0] == "stop":
                    return
                getattr(self, f"_on_{message[0]}")(*message[1:])
                blocked = generator.blocked()
            for batch in generator.step(self._take_snapshots):
                self.connection.send(("batch", batch))
            self._release_slots()

    def _on_update(self, update: Update, slot: int | None) -> None:
        self.waiting_slots[update.version] = slot
        weights = None if slot is None else self.slots[slot]
        self.parts.generator.receive(replace(update, weights=weights))

    def _on_evaluate(self, slot: int, visits: tuple[Visit, ...], samples: int) -> None:
        generator, engine = self.parts.generator, self.parts.evaluation
        engine.load_weights(generator.schedule.active, self.slots[slot])
        groups = generate(engine, visits, samples, self.parts.seed, "evaluate")
        engine.load_weights(generator.schedule.active, generator.active_weights())
        self.connection.send(("released", slot))
        self.connection.send(("evaluated", groups))

    def _on_snapshot(self, version: int, path: Path) -> None:
        self.snapshots.append((version, path))
        self._take_snapshots()

    def _release_slots(self) -> None:
        """Hand back the slots of versions that are no longer in use."""
        active = self.parts.generator.schedule.active
        for version in sorted(v for v in self.waiting_slots if v <= active):
            slot = self.waiting_slots.pop(version)
            if slot is not None:
                self.connection.send(("released", self.active_slot))
                self.active_slot = slot

    def _take_snapshots(self) -> None:
        """Save the state once the version is active and before the next one is, which may be before the same tick."""
        generator = self.parts.generator
        for version, path in [s for s in self.snapshots if s[0] == generator.schedule.active]:
            self.snapshots.remove((version, path))
            state = generator.state()
            if generator.engine.version != version:  # a frozen round goes on with weights the trainer has left behind
                state["weights"] = np.array(generator.active_weights())
            self.parts.save(path, state)
            self.connection.send(("snapshot", version))


def _die_with_parent() -> None:
    """Consumes nothing; produces nothing; waits for the parent's death; unblocked by it, and ends this process."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
