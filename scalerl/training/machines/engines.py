"""Generation engines as Ray actors, and their handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Any

from scalerl.core.limits import ACTOR_START_SPARE_S
from scalerl.core.remote import End, host
from scalerl.training.engines.build import EngineSpec, served_engines
from scalerl.training.engines.engine import EnginePair, ExactEngine
from scalerl.training.engines.hosted import HostedEngines
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.served import EngineCommand, EngineHandle, Report
from scalerl.training.machines.remote import Actor, RayRemote

REPORT_S = 1.0
"""Seconds after which an actor answers a report even without results, as a heartbeat."""


class EngineActor(Actor):
    """Asynchronous engines over one model, in a Ray process or in a server next to it."""


class RayHandle(EngineHandle):
    """The handle of the engines in an EngineActor, which has their own handle (training/engines/served.py)."""

    def __init__(
        self, ray: Any, begin: Callable[[], EngineHandle], name: str, resources: Mapping[str, float], start_s: float
    ) -> None:
        """Start an actor and wait until its model is loaded.

        Args:
            ray: The module `ray`, connected.
            begin: Function that starts the engines inside the actor.
            name: Name in messages.
            resources: num_cpus and num_gpus of the actor.
            start_s: Seconds within which the actor must be placed, and then its engines must start.

        Raises:
            EngineDied: The actor could not be placed or started in time, or ended.
            ConfigError, PluginError: From starting the engines, such as a missing model.
        """
        self._remote = RayRemote(ray, EngineActor, partial(report_engines, begin), name, EngineDied, resources)
        setting = "placement.start_timeout_s"
        with ExitStack() as failed:
            failed.callback(self.stop)  # an actor that starts later would occupy its cores and GPUs
            self._remote.placed(start_s, setting)
            # a server measures the same time, and its message gives the reason
            self._remote.receive(start_s + ACTOR_START_SPARE_S, f"its start ({setting})")
            failed.pop_all()

    def post(self, command: EngineCommand) -> None:
        """Send a command; return at once."""
        self._remote.tell("post", command)

    def report(self, wait_s: float) -> Report | None:
        """Return the results since the last report; None if no answer came in time.

        Raises:
            EngineDied: The actor or its node ended, or the engine failed.
        """
        return self._remote.receive() if self._remote.poll(wait_s) else None

    def stop(self) -> None:
        """End the actor's process."""
        self._remote.end()


def report_engines(begin: Callable[[], EngineHandle], end: End) -> None:
    """Run engines in an actor and report what they have finished, at least every `REPORT_S` seconds.

    Consumes: calls of `post`. Produces: reports. Waits for: results, or the caller to take the last report.
    Unblocked by: results, the time limit, or the caller.
    """
    handle = begin()
    end.answer("done", None)
    Thread(target=host, args=(end, partial(_post, handle)), daemon=True).start()
    while True:
        end.answer("done", handle.report(REPORT_S))


def _post(handle: EngineHandle, end: End) -> None:
    while True:
        _, (command,) = end.next()
        handle.post(command)


def actor_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[EnginePair]:
    """Make each engine in an actor that is replaced when it dies; Ray must be connected.

    A vLLM actor starts its server on the same node. Servers given by address need no actor.
    """
    import ray

    if specs[0].generator.placement.servers:
        from scalerl.training.engines.vllm.launch import server_engines

        return server_engines(specs, note)

    def begin(spec: EngineSpec) -> EngineHandle:
        placement = spec.generator.placement
        begun = partial(BEGIN[placement.engine_name], spec)
        return RayHandle(ray, begun, spec.name, spec.place.resources, placement.start_timeout_s)

    return served_engines(specs, begin, note)


def _torch_handle(spec: EngineSpec) -> EngineHandle:
    engines = spec()
    exact = [engine for engine in engines if isinstance(engine, ExactEngine)]
    assert len(exact) == len(engines)  # a user's engine, which may sample on its own, is on this machine
    return HostedEngines(exact, spec.name)


def _vllm_handle(spec: EngineSpec) -> EngineHandle:
    import ray

    from scalerl.training.engines.vllm.launch import server_handle

    # over NCCL, the trainer's node drives the server; who reaches it there reaches Ray too, which runs any code
    remote = spec.channel.into_engines
    return server_handle(spec, host=ray.util.get_node_ip_address() if remote else "127.0.0.1")


BEGIN: dict[str, Callable[[EngineSpec], EngineHandle]] = {"torch": _torch_handle, "vllm": _vllm_handle}
"""Functions that start engines inside an actor, by `placement.engine`."""
