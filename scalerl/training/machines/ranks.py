"""Trainer ranks as Ray actors in one placement group."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scalerl.core.addresses import reserved_port
from scalerl.core.remote import End, RemoteGroup
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import LearnerSpec
from scalerl.training.learner.ranks import LearnerDied, build_rank, serve_rank
from scalerl.training.machines.remote import Actor, RayRemote


class RankActor(Actor):
    """One trainer rank in a Ray process."""


class RayRanks(RemoteGroup):
    """The training loop's side: one actor per rank."""

    def __init__(
        self,
        ray: Any,
        spec: LearnerSpec,
        channels: Sequence[WeightChannel],
        resources: Mapping[str, float],
    ) -> None:
        """Place the ranks on as few nodes as possible, and wait until all are ready.

        Args:
            ray: The module `ray`, connected.
            spec: Their learner, with a directory that every node can read or a name on the hub; the rank is filled in
                here, and the rendezvous by rank 0.
            channels: Channels over which weights will be sent.
            resources: num_cpus and num_gpus of each rank.

        Raises:
            ConfigError: Loading the model failed.
            LearnerDied: The ranks could not be placed or started in time.
        """
        count, limit_s = spec.ranks, spec.placement.step_timeout_s
        self._ray, self._group = ray, placed(ray, count, resources, limit_s)
        places = [
            ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, number)
            for number in range(count)
        ]
        super().__init__(
            RayRemote(
                ray,
                RankActor,
                partial(_meet, replace(spec, rank=rank), channels),
                f"trainer rank {rank} of {count} (Ray actor)",
                LearnerDied,
                {**resources, "scheduling_strategy": place},
            )
            for rank, place in enumerate(places)
        )
        meeting = self.answers("start", limit_s)[0]
        self.call("start", meeting, timeout_s=limit_s)

    def close(self) -> None:
        """End the actors and free their resources."""
        super().close()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.util.remove_placement_group(self._group)


def placed(ray: Any, count: int, resources: Mapping[str, float], limit_s: float) -> Any:
    """Return a placement group with room for `count` ranks.

    Raises:
        LearnerDied: The cluster had no room within `limit_s` seconds.
    """
    bundle = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
    bundle = {name: amount for name, amount in bundle.items() if amount}
    group = ray.util.placement_group([bundle] * count, strategy="PACK")
    if group.wait(limit_s):
        return group
    ray.util.remove_placement_group(group)
    raise LearnerDied(
        f"{count} trainer ranks of {bundle} could not be placed within {limit_s:g} s; "
        "add nodes, or lower placement.trainer_ranks"
    )


def _meet(spec: LearnerSpec, channels: Sequence[WeightChannel], end: End) -> None:
    """Run a rank, which answers first with an address on its node and then waits for that of rank 0."""
    import ray

    host = ray.util.get_node_ip_address()
    with reserved_port(host) as port:
        end.answer("done", f"tcp://{host}:{port}")
        _, (meeting,) = end.next()
        serve_rank(partial(build_rank, replace(spec, init_method=meeting)), channels)(end)
