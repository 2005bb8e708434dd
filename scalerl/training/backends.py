"""Backends, chosen by `placement`: how engines and trainer ranks are started and how weights are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalerl.cluster.layout import lay_out
from scalerl.config.run import RunConfig
from scalerl.core.remote import Group, Remote, Run
from scalerl.learner.rank_processes import RankProcesses
from scalerl.models.weights import WeightLayout
from scalerl.placement.choices import channel_name
from scalerl.placement.devices import Table, check_shared_memory, devices, needs, this_machine
from scalerl.rollouts.build import MakeEngines, local_engines
from scalerl.rollouts.pipeline import Launch, WorkerDied, spawn_generator
from scalerl.rollouts.weights import CHANNELS, WeightChannel
from scalerl.tasks.scoring import Scorer, make_scorers

StartRanks = Callable[[RunConfig, str, Sequence[WeightChannel]], Group]
"""(resolved configuration, path of the model, channels over which the ranks send weights) -> ranks."""


@dataclass(frozen=True)
class Backend:
    """Functions that start the processes of a run."""

    devices: Table
    """Devices of all processes."""
    launch: Launch
    """Starts the generator's process."""
    make_engines: MakeEngines
    """Creates the engines, inside that process."""
    channel: Callable[[WeightLayout, Path], WeightChannel]
    """Creates the weight channel, given the layout of the weights and the run directory."""
    start_ranks: StartRanks
    """Starts several trainer ranks and waits until they are ready."""
    scorers: Callable[[RunConfig], Mapping[str, Scorer]] = make_scorers
    """Creates the scorer of each task."""


def _local(config: RunConfig) -> Backend:
    hosts = [this_machine()] if config.hardware.device == "cuda" else None
    table = devices(config, hosts, lambda: lay_out(config).trainer.total)
    check_shared_memory(table)
    ranks = [at.environment for (kind, _), at in table.items() if kind == "trainer"]
    start_ranks, channel = partial(RankProcesses.of, ranks), partial(_channel, config)
    if config.placement.engine == "vllm":
        from scalerl.rollouts.vllm.launch import server_engines

        return Backend(table, spawn_generator, server_engines, channel, start_ranks)
    alone = table["generator", 0].environment if config.placement.engines == 1 else {}
    return Backend(table, partial(spawn_generator, environment=alone), local_engines, channel, start_ranks)


def _channel(config: RunConfig, layout: WeightLayout, run: Path) -> WeightChannel:
    if channel_name(config) == "nccl":
        from scalerl.rollouts.vllm.nccl import NcclChannel

        placement = config.placement
        return NcclChannel(layout, run / "servers", placement.trainer_address, placement.transfer_timeout_s)
    return CHANNELS[channel_name(config)](layout, run)


def _ray(config: RunConfig) -> Backend:
    from scalerl.cluster.connect import STARTED_S, check_resources, connect, hosts_of, shared_memory
    from scalerl.cluster.engines import actor_engines
    from scalerl.cluster.ranks import RayRanks
    from scalerl.cluster.remote import CoordinatorActor, RayRemote

    ray = connect(config.placement.ray_address, "placement.ray_address")
    table = devices(config, hosts_of(ray))
    check_resources(ray, needs(table), "placement: trainer ranks and generators together")
    check_shared_memory(table, partial(shared_memory, ray))

    def launch(run: Run) -> Remote:
        remote = RayRemote(ray, CoordinatorActor, run, "the coordinator (Ray actor)", WorkerDied, {"num_cpus": 0})
        remote.placed(STARTED_S)
        return remote

    def start_ranks(config: RunConfig, model_path: str, channels: Sequence[WeightChannel]) -> Group:
        return RayRanks(ray, config, model_path, channels, table["trainer", 0].resources)

    def scorers(config: RunConfig) -> Mapping[str, Scorer]:
        from scalerl.cluster.scorers import actor_scorers

        return actor_scorers(ray, config) if config.placement.scorers else make_scorers(config)

    return Backend(table, launch, actor_engines, partial(_channel, config), start_ranks, scorers)


BACKENDS: dict[str, Callable[[RunConfig], Backend]] = {"local": _local, "ray": _ray}
"""Backends by `placement.backend`; each takes the resolved configuration.

Raises:
    ConfigError: The cluster does not answer, or there are too few GPUs or cores.
"""
