"""Overhead of Ray on one machine: a transfer of weights between processes, and whole steps of the lab.

    python benchmarks/cluster.py [--rounds 3] [--steps 60] [--out cluster.json]

Transfer: 45 million FP32 weights (180 MB) in 150 tensors are sent to a process that copies them into a model of the
same shapes; the median of seven, for a directory and shared memory. Steps: the lab with one torch
engine and the eager schedule, without Ray and with Ray actors; seconds per step after the first ten, without
evaluations. Runs alternate; the ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from work import machine, seconds_a_step

TENSORS, SIZE, TRANSFERS = 150, 300_000, 7
PLAIN = ["--rollouts.schedule", "eager"]
ARMS = {
    "one machine": PLAIN,
    "Ray": [*PLAIN, "--placement.backend", "ray", "--placement.ray_address", "local"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("cluster.json"))
    options = parser.parse_args()
    timed = {"directory": by_process("directory"), "shared memory": by_process("shared")}
    print("| 180 MB by | send | receive and copy | both |\n|---|---|---|---|")
    for name, pairs in timed.items():
        send, copy = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"| {name} | {send:.3f} s | {copy:.3f} s | {statistics.median(map(sum, pairs)):.3f} s |", flush=True)
    steps: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(options.rounds):
        for name, words in ARMS.items():
            steps[name].append(seconds_a_step([*words, "--steps", str(options.steps)]))
    print("\n| lab | seconds per step | ratio |\n|---|---|---|")
    for name, values in steps.items():
        ratio = statistics.median(v / base for v, base in zip(values, steps["one machine"], strict=True))
        print(f"| {name} | {statistics.median(values):.3f} | {ratio:.2f} |", flush=True)
    figures = {"machine": machine(), "transfer_s": timed, "step_s": steps}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def weights(value: float = 1.0) -> list[tuple[str, Any]]:
    """Return 180 MB of weights."""
    import torch

    return [(f"layer.{i}", torch.full((SIZE // 600, 600), value)) for i in range(TENSORS)]


class Receiver:
    """Receives versions over a channel and copies them, as an engine does."""

    def __init__(self, channel: Any) -> None:
        self._channel, self._own = channel, dict(weights(0.0))

    def receive(self, version: int) -> float:
        """Return the time to receive and copy one version, in seconds."""
        began = time.perf_counter()
        for name, tensor in self._channel.receive(version).items():
            self._own[name].copy_(tensor)
        seconds = time.perf_counter() - began
        assert all(float(tensor[0, 0]) == version for tensor in self._own.values())
        return seconds


def transfers(channel: Any, receive: Callable[[int], float]) -> list[tuple[float, float]]:
    """Return (send, receive) seconds of each version."""
    pairs = []
    for version in range(1, TRANSFERS + 1):
        new = weights(float(version))
        began = time.perf_counter()
        channel.send(version, new)
        sent = time.perf_counter() - began
        pairs.append((sent, receive(version)))
        channel.drop(version)
    return pairs


def by_process(kind: str) -> list[tuple[float, float]]:
    """Return (send, receive) seconds to a child process."""
    from scalerl.training.engines.directory import DirectoryChannel
    from scalerl.training.engines.shared_memory import SharedMemoryChannel
    from scalerl.training.models.weights import WeightLayout

    with tempfile.TemporaryDirectory() as scratch:
        shared = SharedMemoryChannel(WeightLayout.of(weights())) if kind == "shared" else None
        channel = shared or DirectoryChannel(Path(scratch))
        context = get_context("spawn")
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_answer, args=(child_end, channel))
        process.start()

        def receive(version: int) -> float:
            parent_end.send(version)
            return parent_end.recv()

        pairs = transfers(channel, receive)
        parent_end.send(None)
        process.join()
    return pairs


def _answer(connection: Any, channel: Any) -> None:
    receiver = Receiver(channel)
    while (version := connection.recv()) is not None:
        connection.send(receiver.receive(version))


if __name__ == "__main__":
    main()
