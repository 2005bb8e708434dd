"""Generation engines as Ray actors, and their lives for the restarter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scalerl.cluster.connect import last_line
from scalerl.core.errors import ConfigError
from scalerl.rollouts.build import EngineSpec, restarted_engines
from scalerl.rollouts.engine import Engine
from scalerl.rollouts.free_running import FreeRunner, Report
from scalerl.rollouts.process_engine import EngineDied
from scalerl.rollouts.restarts import Life

START_SPARE_S = 60.0
"""Seconds that an actor may take longer than its server to report a start that failed."""
REPORT_S = 1.0
"""Seconds after which an actor answers a report even without results, as a heartbeat."""


class EngineActor:
    """Asynchronous engines over one model, in a Ray process or in a server next to it."""

    def __init__(self, begin: Callable[[], Life]) -> None:
        self._begin = begin

    def start(self) -> None:
        """Load the model and start."""
        self._life = self._begin()

    def post(self, number: int, method: str, *arguments: Any) -> None:
        """Queue a call of an engine's method."""
        self._life.post(number, method, *arguments)

    def report(self, wait_s: float) -> Report | None:
        """Return the results since the last report; wait up to `wait_s` if there are none."""
        return self._life.report(wait_s)


class RayLife:
    """One life of an EngineActor (rollouts/restarts.py)."""

    def __init__(
        self, ray: Any, begin: Callable[[], Life], name: str, resources: Mapping[str, float], start_s: float
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
            ConfigError: An error that the user can correct, such as a missing model.
        """
        self._ray, self.name = ray, name
        # separate threads: calls of one group keep their order, and a report may wait
        actor_class = ray.remote(concurrency_groups={"control": 1, "report": 1})(EngineActor)
        self._actor = actor_class.options(**resources, max_restarts=0).remote(begin)
        start = self._actor.start.options(concurrency_group="control")
        try:
            self._get(
                self._actor.__ray_ready__.remote(), start_s, "was not placed; is the cluster full? see `ray status`"
            )
            # a server measures the same time, and its message gives the reason
            self._get(start.remote(), start_s + START_SPARE_S, "did not start")
        except (EngineDied, ConfigError):
            self.kill()  # an actor that starts later would occupy its cores and GPUs
            raise
        self._answer = self._ask()

    def post(self, number: int, method: str, *arguments: Any) -> None:
        """Request a submit, cancel or swap, executed in order; return immediately."""
        self._actor.post.options(concurrency_group="control").remote(number, method, *arguments)

    def report(self, wait_s: float) -> Report | None:
        """Return the results since the last report; None if no answer came in time.

        Raises:
            EngineDied: The actor or its node ended, or the engine failed.
        """
        done, _ = self._ray.wait([self._answer], timeout=wait_s)
        if not done:
            return None
        report: Report = self._get(self._answer)
        self._answer = self._ask()
        return report

    def kill(self) -> None:
        """End the actor's process."""
        self._ray.kill(self._actor)

    def _ask(self) -> Any:
        return self._actor.report.options(concurrency_group="report").remote(REPORT_S)

    def _get(self, reference: Any, timeout_s: float | None = None, late: str = "") -> Any:
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            raise EngineDied(f"{self.name}: after {timeout_s:g} s (placement.start_timeout_s) it {late}") from None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ConfigError):
                raise ConfigError(str(error.cause)) from None
            raise EngineDied(f"{self.name} failed: {last_line(error)}") from None
        except self._ray.exceptions.RayError as error:
            raise EngineDied(f"{self.name} ended: {last_line(error)}") from None


def actor_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[Sequence[Engine]]:
    """Make each engine in an actor that is replaced when it dies; Ray must be connected.

    A vLLM actor starts its server on the same node, on the loopback interface. Servers given by address need no actor.
    """
    import ray

    if specs[0].generator.config.placement.servers:
        from scalerl.rollouts.vllm.launch import server_engines

        return server_engines(specs, note)

    def begin(spec: EngineSpec) -> Life:
        placement = spec.generator.config.placement
        begun = partial(BEGIN[placement.engine_name], spec)
        return RayLife(ray, begun, spec.name, spec.place.resources, placement.start_timeout_s)

    return restarted_engines(specs, begin, note)


def _torch_life(spec: EngineSpec) -> Life:
    return FreeRunner(spec(), spec.name)


def _vllm_life(spec: EngineSpec) -> Life:
    from scalerl.rollouts.vllm.launch import server_life

    return server_life(spec)


BEGIN: dict[str, Callable[[EngineSpec], Life]] = {"torch": _torch_life, "vllm": _vllm_life}
"""Functions that start engines inside an actor, by `placement.engine`."""
