"""Engines over a vLLM server, for training and for held-out prompts."""

from __future__ import annotations

import queue
from collections.abc import Collection, Sequence

from scalerl.models.sizes import ModelSizes
from scalerl.rollouts.engine import EngineDefaults, Finished, Occupancy, Request, RoutingShape, Sampling, Work
from scalerl.rollouts.interrupt import LengthRule
from scalerl.rollouts.vllm.checks import Needs, check_server
from scalerl.rollouts.vllm.connection import Connection
from scalerl.rollouts.vllm.lane import Lane
from scalerl.rollouts.vllm.sequence import TokenSequence
from scalerl.rollouts.vllm.server import Server
from scalerl.rollouts.weights import Updates

_SHORTEST_WAIT_S = 0.005
"""Minimum wait of a poll: a caller that polls in a loop would otherwise keep a core busy."""


class VllmEngine(EngineDefaults):
    """One engine over a connection; engines that share a connection share the weights."""

    def __init__(
        self,
        connection: Connection,
        lane: Lane,
        rule: LengthRule,
        stop: Collection[int],
        routing: RoutingShape | None = None,
    ) -> None:
        """Make an engine; call `vllm_engines` instead.

        Args:
            connection: Connection to the server.
            lane: This engine's share of the connection.
            rule: Length limits.
            stop: Token ids that end a sequence.
            routing: Shape of the experts that the server reports; None: they are not requested.
        """
        self._connection, self._lane, self._rule, self._stop = connection, lane, rule, frozenset(stop)
        self._routing = routing
        self._open: dict[tuple[int, int], TokenSequence] = {}
        self.notes: list[str] = []
        """Warnings about the server."""

    @property
    def version(self) -> int:
        """Version of the weights in use; lags behind the requested one until the server has it."""
        return self._connection.version

    @property
    def work(self) -> Work:
        """Work received so far; steps are counted as if all running sequences stepped together."""
        return self._lane.work

    def occupancy(self) -> Occupancy:
        """Return how full the engine is."""
        slots, count = self._lane.slots, len(self._open)
        running = min(slots, count)
        return Occupancy(slots, running, count - running, slots - count)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start when slots become free and a requested swap is done."""
        sequences = [TokenSequence(request, self._rule, self._stop, self._routing) for request in requests]
        self._open |= {sequence.request.id: sequence for sequence in sequences}
        self._connection.submit(self._lane, sequences)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished sequences."""
        for id in ids:
            self._open.pop(id, None)
        self._connection.cancel(self._lane, ids)

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that finished since the last call; wait up to `timeout_s` for one.

        Raises:
            EngineDied: The server is lost.
        """
        finished: list[Finished] = []
        wait = max(timeout_s, _SHORTEST_WAIT_S) if self._open else 0.0
        while True:
            self._connection.check()
            try:
                done = self._lane.done.get(timeout=wait) if wait and not finished else self._lane.done.get_nowait()
            except queue.Empty:
                return finished
            if done is not None and self._open.get(done.request.id) is done:  # otherwise it was canceled
                del self._open[done.request.id]
                finished.append(done.finish())

    def swap(self, version: int) -> None:
        """Request new weights and return; running sequences keep their cache and continue until the server has them."""
        self._connection.swap(version)

    def close(self) -> None:
        """Close the connection, for all engines that share it; the server keeps running."""
        self._connection.close()


def vllm_engines(
    server: Server | str,
    *,
    slots: tuple[int, int],
    rule: LengthRule,
    sampling: Sampling,
    needs: Needs,
    updates: Updates,
    sizes: ModelSizes | None = None,
) -> tuple[VllmEngine, VllmEngine]:
    """Check a server and make a training engine and an evaluation engine over it, which share its weights.

    Args:
        server: A server started by this process, or the address of a running one (http://host:port).
        slots: Sequences that each engine decodes together; the server's --max-num-seqs should be their sum.
        rule: Length limits of completions.
        sampling: Temperature and stop tokens.
        needs: Requirements on the server.
        updates: Method by which the server gets weights; `updates` of the weight channel.
        sizes: Sizes that the FLOPs are computed from; None: they are not counted.

    Raises:
        ConfigError: The server does not meet the requirements.
    """
    assert needs.nucleus == (sampling.top_p < 1), (needs, sampling)
    address = (server if isinstance(server, str) else server.address).rstrip("/")
    notes = check_server(address, needs)
    lanes = [Lane(name, count, sizes) for name, count in zip(("train", "evaluate"), slots, strict=True)]
    obituary = server.obituary if isinstance(server, Server) else lambda: None
    connection = Connection(address, sampling, updates, lanes, obituary)
    training, evaluating = (VllmEngine(connection, lane, rule, sampling.stop, needs.routing) for lane in lanes)
    training.notes = notes
    return training, evaluating
