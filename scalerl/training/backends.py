"""Backends, chosen by `placement`: how engines and trainer ranks are started and how weights are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalerl.config.run import RunConfig
from scalerl.core.remote import Group, Remote, Run
from scalerl.learner.rank_processes import RankProcesses
from scalerl.models.weights import WeightLayout
from scalerl.placement.choices import channel_name
from scalerl.rollouts.build import MakeEngines, local_engines
from scalerl.rollouts.channels import CHANNELS
from scalerl.rollouts.pipeline import Launch, WorkerDied, spawn_generator
from scalerl.rollouts.weights import WeightChannel
from scalerl.tasks.scoring import Scorer, make_scorers
from scalerl.training.resolve import Resolved

StartRanks = Callable[[RunConfig, str, Sequence[WeightChannel]], Group]
"""(resolved configuration, path of the model, channels over which the ranks send weights) -> ranks."""


@dataclass(frozen=True)
class Backend:
    """Functions that start the processes of a run."""

    launch: Launch
    """Starts the generator's process."""
    make_engines: MakeEngines
    """Creates the engines, inside that process."""
    start_ranks: StartRanks
    """Starts several trainer ranks and waits until they are ready."""
    scorers: Callable[[RunConfig], Mapping[str, Scorer]] = make_scorers
    """Creates the scorer of each task."""


def _local(resolved: Resolved) -> Backend:
    table, place = resolved.devices, resolved.config.placement
    ranks = [at.environment for (kind, _), at in table.items() if kind == "trainer"]
    start_ranks = partial(RankProcesses.of, ranks)
    if place.engine == "vllm":
        from scalerl.rollouts.vllm.launch import server_engines

        return Backend(spawn_generator, server_engines, start_ranks)
    alone = table["generator", 0].environment if place.engines == 1 else {}
    return Backend(partial(spawn_generator, environment=alone), local_engines, start_ranks)


def _ray(resolved: Resolved) -> Backend:
    import ray  # connected by `resolve`

    from scalerl.cluster.engines import actor_engines
    from scalerl.cluster.ranks import RayRanks
    from scalerl.cluster.remote import CoordinatorActor, RayRemote
    from scalerl.core.limits import ACTOR_PLACED_S

    def launch(run: Run) -> Remote:
        remote = RayRemote(ray, CoordinatorActor, run, "the coordinator (Ray actor)", WorkerDied, {"num_cpus": 0})
        remote.placed(ACTOR_PLACED_S)
        return remote

    def start_ranks(config: RunConfig, model_path: str, channels: Sequence[WeightChannel]) -> Group:
        return RayRanks(ray, config, model_path, channels, resolved.devices["trainer", 0].resources)

    def scorers(config: RunConfig) -> Mapping[str, Scorer]:
        from scalerl.cluster.scorers import actor_scorers

        return actor_scorers(ray, config) if config.placement.scorers else make_scorers(config)

    return Backend(launch, actor_engines, start_ranks, scorers)


BACKENDS: dict[str, Callable[[Resolved], Backend]] = {"local": _local, "ray": _ray}
"""Backends by `placement.backend`."""


def channel_of(config: RunConfig, layout: WeightLayout, run: Path) -> WeightChannel:
    """Return the weight channel of a run.

    Args:
        config: Resolved configuration.
        layout: Layout of the weights that are sent.
        run: The run directory.
    """
    return CHANNELS[channel_name(config)](layout, run, config)
