"""Trainer ranks as Ray actors in one placement group: the transport of a LearnerGroup on a cluster."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.cluster.connect import last_line
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.rollouts.weights import WeightChannel
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.ranks import RAISED_S, LearnerDied, RankSpec, build_rank, perform

WATCH_S = 2.0
"""Seconds between two checks of actors without a call."""


class RankActor:
    """One trainer rank in a Ray process."""

    def meet(self) -> str:
        """Return a rendezvous address for the ranks: this node and a free port."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((host, 0))
            return f"tcp://{host}:{free.getsockname()[1]}"

    def start(self, spec: RankSpec, channels: Sequence[WeightChannel]) -> None:
        """Join the other ranks and load this rank's share of the model."""
        self._channels, self._learner = channels, build_rank(spec)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Execute one call of the learner."""
        return perform(self._learner, self._channels, method, arguments)


class RayRanks:
    """The training loop's side: one actor per rank; implements RankTransport (training/learner/ranks.py)."""

    def __init__(
        self,
        ray: Any,
        config: RunConfig,
        model_path: str,
        channels: Sequence[WeightChannel],
        resources: Mapping[str, float],
    ) -> None:
        """Place the ranks on as few nodes as possible, and wait until all are ready.

        Args:
            ray: The module `ray`, connected.
            config: Resolved configuration.
            model_path: Directory that every node can read, or name on the hub.
            channels: Channels over which weights will be sent.
            resources: num_cpus and num_gpus of each rank.

        Raises:
            ConfigError: Loading the model failed.
            LearnerDied: The ranks could not be placed or started in time.
        """
        self._ray, self._death, self._watched_at = ray, "", 0.0
        self._count, limit_s = config.placement.trainer_ranks, config.placement.step_timeout_s
        self._actors: list[Any] = []
        self._place(resources, limit_s)
        meeting = self._answers("start", [self._actors[0].meet.remote()], limit_s)[0]
        specs = [RankSpec(config, model_path, rank, self._count, meeting) for rank in range(self._count)]
        starts = [a.start.remote(spec, list(channels)) for a, spec in zip(self._actors, specs, strict=True)]
        self._answers("start", starts, limit_s)

    def call(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Execute one call on every rank; return the answers by rank.

        Consumes: nothing. Produces: one call of every actor; the arguments are put into the object store once.
        Waits for: an answer of every rank. Unblocked by: the answers, the death of a rank, or the timeout.

        Raises:
            BadGradient, ConfigError, PluginError: Raised by a rank.
            LearnerDied: A rank ended, failed or took longer than `timeout_s` seconds; all ranks are ended then.
        """
        if self._death:
            raise LearnerDied(self._death)
        shared = self._ray.put(arguments)
        return self._answers(method, [actor.call.remote(method, shared) for actor in self._actors], timeout_s)

    def close(self) -> None:
        """End the actors and free their resources."""
        self._death = self._death or "the trainer ranks have ended"
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.util.remove_placement_group(self._group)

    def watch(self) -> None:
        """Raise LearnerDied if an actor has ended; asks them every `WATCH_S` seconds."""
        if time.monotonic() < self._watched_at + WATCH_S:
            return
        self._watched_at = time.monotonic()
        pulses = [actor.__ray_ready__.remote() for actor in self._actors]
        for pulse in self._ray.wait(pulses, num_returns=len(pulses), timeout=1)[0] if pulses else ():
            try:
                self._ray.get(pulse)
            except self._ray.exceptions.RayError as error:
                raise self._died(pulses.index(pulse), f"ended: {last_line(error)}", "generation") from None

    def _place(self, resources: Mapping[str, float], limit_s: float) -> None:
        ray = self._ray
        bundle = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        self._group = ray.util.placement_group([bundle] * self._count, strategy="PACK")
        if not self._group.wait(limit_s):
            self.close()
            raise LearnerDied(
                f"{self._count} trainer ranks of {bundle} could not be placed within {limit_s:g} s; "
                "add nodes, or lower placement.trainer_ranks"
            )
        strategies = [
            ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, number)
            for number in range(self._count)
        ]
        actor_class = ray.remote(RankActor)
        self._actors = [
            actor_class.options(**resources, max_restarts=0, scheduling_strategy=strategy).remote()
            for strategy in strategies
        ]

    def _answers(self, method: str, references: Sequence[Any], timeout_s: float) -> list[Any]:
        until, pending = time.monotonic() + timeout_s, list(references)
        raised: dict[int, Exception] = {}
        while pending:
            done, pending = self._ray.wait(pending, timeout=max(0.0, until - time.monotonic()))
            if not done and raised:  # one rank has raised, and the others wait for it in a collective
                self.close()
                break
            if not done:
                raise self._died(references.index(pending[0]), f"did not answer within {timeout_s:g} s", method)
            rank = references.index(done[0])
            try:
                self._ray.get(done[0])
            except self._ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, BadGradient | ConfigError | PluginError):
                    killed = self._killed(references, pending)
                    rank, how = killed or (rank, f"failed: {last_line(error)}")
                    raise self._died(rank, how, method) from None
                raised[rank], until = error.cause, min(until, time.monotonic() + RAISED_S)
            except self._ray.exceptions.RayError as error:
                raise self._died(rank, f"ended: {last_line(error)}", method) from None
        if raised:
            raise raised[min(raised)]
        return list(self._ray.get(list(references)))

    def _killed(self, references: Sequence[Any], pending: Sequence[Any]) -> tuple[int, str] | None:
        """Return a rank whose process has ended; the error of another rank that waits for it often arrives first."""
        for reference in pending:
            try:
                self._ray.get(reference, timeout=2)
            except (self._ray.exceptions.RayTaskError, self._ray.exceptions.GetTimeoutError):
                continue
            except self._ray.exceptions.RayError as error:
                return references.index(reference), f"ended: {last_line(error)}"
        return None

    def _died(self, rank: int, how: str, method: str) -> LearnerDied:
        """End all ranks, because the others would wait forever in a collective; return the error to raise."""
        self._death = f"trainer rank {rank} of {self._count} (Ray actor) {how} during `{method}`"
        self.close()
        return LearnerDied(self._death)
