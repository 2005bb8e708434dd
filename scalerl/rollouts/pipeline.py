"""PipelineRL-k and PPO-off-policy-k behind one call, `take`: the only concurrency of the project.

A generator runs in a process of its own; batches come back as messages, weights go out through shared memory. What a
run computes is decided in generator.py and schedule.py; here only waiting, dying and handing over happen.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.rollouts.coordinator import RolloutBatch, Update
from scalerl.rollouts.weights.shared_memory import WeightSlots
from scalerl.rollouts.worker import Build, run_worker
from scalerl.types import Group, Visit

WriteWeights = Callable[[npt.NDArray[np.uint8]], None]


class WorkerDied(RuntimeError):
    """The generator process ended or failed; the message names it."""


class Interrupted(RuntimeError):
    """Somebody asked the run to stop while it waited."""


class Pipeline:
    """The trainer's side of the generator process."""

    def __init__(self, build: Build, weights_size: int, stop_requested: Callable[[], bool] = lambda: False) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            build: makes the generator inside its process; must be picklable.
            weights_size: bytes of one set of weights.
            stop_requested: asked while waiting; when it returns True, `take` raises Interrupted.
        """
        self._build, self._stop_requested = build, stop_requested
        self._slots = WeightSlots(weights_size)
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._inbox: dict[str, queue.SimpleQueue[Any]] = {
            name: queue.SimpleQueue() for name in ("ready", "batch", "evaluated", "snapshot")
        }
        self._death: str | None = None
        self.waited_s = 0.0
        """Seconds `take` has waited so far."""

    def start(self, write: WriteWeights, version: int = 0, visits: Sequence[Visit] = ()) -> None:
        """Start the process with weights and prompts; returns at once, the process gets ready meanwhile.

        Args:
            write: fills a slot with the weights to sample with.
            version: of those weights.
            visits: prompts that may be started under them.
        """
        write(self._slots[0])
        for slot in range(1, self._slots.count):
            self._free.put(slot)
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(theirs, self._slots, self._build, (0, version, tuple(visits))), name="generator"
        )
        self._process.start()
        atexit.register(self._process.kill)  # before multiprocessing's own handler, which would wait for ever
        theirs.close()  # else the end of the process would not end the pipe
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self) -> None:
        """Wait until the process has loaded everything."""
        self._get("ready")

    def take(self, n: int, now: int, max_lag: int) -> RolloutBatch:
        """Return the next batch of groups.

        Args:
            n: groups of a full batch; the last batch of an exhausted curriculum may hold fewer.
            now: number of the update that will train it.
            max_lag: no token of it is older than this many updates.

        Raises:
            WorkerDied: the generator process ended or failed.
            Interrupted: a stop was asked for.
        """
        began = time.perf_counter()
        batch: RolloutBatch = self._get("batch")
        self.waited_s += time.perf_counter() - began
        assert batch.number == now and len(batch.groups) <= n, (batch.number, now, len(batch.groups))
        assert all(now - group.oldest_version <= max_lag for group in batch.groups)
        return batch

    def publish(self, update: Update, write: WriteWeights | None) -> None:
        """Hand over a new version; waits while all slots of shared memory hold versions still needed."""
        slot = None if write is None else self._fill(write)
        self._send("update", update, slot)

    def evaluate(self, write: WriteWeights, visits: Sequence[Visit], samples: int) -> Callable[[], list[Group]]:
        """Let the generator pause and sample held-out prompts with the given weights; returns how to wait for it."""
        self._send("evaluate", self._fill(write), tuple(visits), samples)
        return lambda: self._get("evaluated", interruptible=False)

    def snapshot(self, version: int, path: Path) -> None:
        """Let the generator save its state to `path` as soon as `version` is active."""
        self._send("snapshot", version, path)

    def snapshots_done(self, wait_for: Collection[int] = ()) -> list[int]:
        """Return the versions whose snapshots were saved since the last call; waits for those that are named."""
        done: list[int] = []
        while not set(wait_for) <= set(done):
            done.append(self._get("snapshot", interruptible=False))
        while not self._inbox["snapshot"].empty():
            done.append(self._inbox["snapshot"].get())
        return done

    def close(self) -> None:
        """End the process."""
        if not hasattr(self, "_process"):
            return
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.send(("stop",))
        self._process.join(timeout=2)
        if self._process.is_alive():  # in the middle of a long tick
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)

    @property
    def process_id(self) -> int | None:
        """Process id of the generator."""
        return self._process.pid

    def _fill(self, write: WriteWeights) -> int:
        slot = self._wait(self._free, interruptible=False)
        write(self._slots[slot])
        return int(slot)

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            self._process.join(timeout=1)
            raise WorkerDied(self._death or self._obituary()) from None

    def _get(self, name: str, interruptible: bool = True) -> Any:
        return self._wait(self._inbox[name], interruptible)

    def _wait(self, source: queue.SimpleQueue[Any], interruptible: bool) -> Any:
        while True:
            try:
                return source.get(timeout=0.2)
            except queue.Empty:
                if self._death is not None and source.empty():
                    raise WorkerDied(self._death) from None
                if interruptible and self._stop_requested():
                    raise Interrupted from None

    def _read(self) -> None:
        """Sort incoming messages into queues.

        Consumes: messages of the generator process. Produces: queue entries. Waits for: the pipe.
        Unblocked by: a message, or the end of the process, which is remembered as the reason.
        """
        while True:
            try:
                name, content = self._connection.recv()
            except (EOFError, OSError):
                self._process.join(timeout=2)
                self._death = self._death or self._obituary()
                return
            if name == "failed":
                self._death = f"the generator process ({self._process.pid}) failed:\n{content}"
            elif name == "released":
                self._free.put(content)
            else:
                self._inbox[name].put(content)

    def _obituary(self) -> str:
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return f"the generator process ({self._process.pid}) {how}"
