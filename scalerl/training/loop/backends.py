"""Backends, chosen by `placement`: how engines and trainer ranks are started and how weights are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scalerl.core.processes import ProcessDied
from scalerl.core.remote import Body, LocalRemote, Remote, RemoteGroup
from scalerl.training.config.data import TaskData
from scalerl.training.config.run import Scoring
from scalerl.training.engines.build import MakeEngines, local_engines
from scalerl.training.engines.pipeline import WorkerDied, spawn_generator
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import LearnerSpec
from scalerl.training.learner.rank_processes import RankProcesses
from scalerl.training.loop.evaluator import EvaluatorDied
from scalerl.training.loop.resolve import Placed
from scalerl.training.placement.devices import Place
from scalerl.training.rewards.scoring import Scorer, make_scorers

EVALUATOR = ("evaluator", 0)
"""Key of the evaluation process in the table of devices; only runs with `evaluation.overlap` have one."""

StartRanks = Callable[[LearnerSpec, Sequence[WeightChannel]], RemoteGroup]
"""(learner of each rank, channels over which they send weights) -> ranks."""


@dataclass(frozen=True)
class Backend:
    """Functions that start the processes of a run."""

    launch: Callable[..., Remote]
    """Starts the generator's process with a function, and `cure`: what to do if it lacks memory."""
    make_engines: MakeEngines
    """Creates the engines, inside that process."""
    start_ranks: StartRanks
    """Starts several trainer ranks and waits until they are ready."""
    launch_evaluator: Callable[..., Remote]
    """Starts the evaluation process (`evaluation.overlap`) in the same way."""
    scorers: Callable[[Sequence[TaskData], Scoring], Mapping[str, Scorer]] = make_scorers
    """Creates the scorer of each task."""


def _local(placed: Placed) -> Backend:
    table, place = placed.devices, placed.config.placement
    ranks = [at.environment for (kind, _), at in table.items() if kind == "trainer"]
    start_ranks = partial(RankProcesses.of, ranks)
    gpus = table.get(EVALUATOR, Place()).environment
    evaluator = partial(LocalRemote, name="the evaluation process ({})", died=EvaluatorDied, environment=gpus)
    if place.engine == "vllm":
        from scalerl.training.engines.vllm.launch import server_engines

        return Backend(spawn_generator, server_engines, start_ranks, evaluator)
    alone = table["generator", 0].environment if place.engines == 1 else {}
    return Backend(partial(spawn_generator, environment=alone), local_engines, start_ranks, evaluator)


def _ray(placed: Placed) -> Backend:
    import ray  # connected by `place_processes`

    from scalerl.core.limits import ACTOR_PLACED_S
    from scalerl.training.machines.engines import actor_engines
    from scalerl.training.machines.ranks import RayRanks
    from scalerl.training.machines.remote import Actor, CoordinatorActor, EvaluationActor, RayRemote

    def launch(
        kind: type[Actor], name: str, died: type[ProcessDied], resources: Mapping[str, float], run: Body, cure: str
    ) -> Remote:
        remote = RayRemote(ray, kind, run, name, died, resources)
        remote.cure = cure
        remote.placed(ACTOR_PLACED_S)
        return remote

    coordinator = partial(launch, CoordinatorActor, "the coordinator (Ray actor)", WorkerDied, {"num_cpus": 0})
    gpus = placed.devices.get(EVALUATOR, Place()).resources
    evaluator = partial(launch, EvaluationActor, "the evaluation process (Ray actor)", EvaluatorDied, gpus)

    def start_ranks(spec: LearnerSpec, channels: Sequence[WeightChannel]) -> RemoteGroup:
        return RayRanks(ray, spec, channels, placed.devices["trainer", 0].resources)

    count = placed.config.placement.scorers
    if not count:
        return Backend(coordinator, actor_engines, start_ranks, evaluator)
    from scalerl.training.machines.scorers import actor_scorers

    scorers = partial(actor_scorers, ray, count, placed.devices["scorer", 0].resources)
    return Backend(coordinator, actor_engines, start_ranks, evaluator, scorers)


BACKENDS: dict[str, Callable[[Placed], Backend]] = {"local": _local, "ray": _ray}
"""Backends by `placement.backend`."""
