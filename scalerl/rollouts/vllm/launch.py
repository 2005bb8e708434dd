"""From a run's configuration to vLLM servers and engines over them, which are replaced when a server dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from scalerl.rollouts.build import EngineSpec
from scalerl.rollouts.engine import Engine, Sampling
from scalerl.rollouts.free_running import PolledEngines
from scalerl.rollouts.supervised import Limits, Supervisor, supervise
from scalerl.rollouts.vllm.checks import Needs, check_server
from scalerl.rollouts.vllm.engine import vllm_engines
from scalerl.rollouts.vllm.server import Server, ServerSpec
from scalerl.rollouts.vllm.updates import UPDATES


def server_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[Sequence[Engine]]:
    """Make the engines of a run on one machine: each over a server of its own, or over one given by address."""

    def supervisor(spec: EngineSpec) -> Supervisor:
        limits = Limits(transfer_s=spec.generator.config.placement.transfer_timeout_s)
        return Supervisor(partial(server_life, spec, note), spec.name, (spec.slots, spec.slots), limits, note)

    return supervise([supervisor(spec) for spec in specs])


def server_life(spec: EngineSpec, note: Callable[[str], None] = lambda text: None) -> PolledEngines:
    """Start a server, or find the one given by address, and connect to it.

    Args:
        spec: which of the run's engines.
        note: told what is allowed of a server and not advisable.

    Raises:
        ConfigError: the server does not start, or is not what the run needs.
    """
    generator, config = spec.generator, spec.generator.config
    recipe, placement, model = config.recipe, config.placement, spec.generator.model
    updates = UPDATES[config.weights](spec.channel)
    positions = generator.longest_prompt + generator.rule.capacity
    fp32_head = recipe.fp32_head and config.hardware.dtype != "float32"
    needs = Needs(model.vocabulary, positions, 2 * spec.slots, updates.backend, fp32_head)
    server: Server | str
    if placement.servers:
        server = placement.servers[spec.number]
        for line in check_server(server, needs):
            note(line)
    else:
        server = Server(
            ServerSpec(
                model=model.path,
                max_model_len=positions,
                max_num_seqs=2 * spec.slots,
                log=generator.run / f"vllm_{spec.number + 1}.log",
                python=placement.vllm_python or sys.executable,
                backend=updates.backend,
                dtype=config.hardware.dtype,
                fp32_head=fp32_head,
                tensor_parallel=placement.tensor_parallel,
                extra=("--revision", model.revision, *placement.vllm_arguments)
                if not os.path.isdir(model.path)
                else placement.vllm_arguments,
            )
        )
        server.wait_ready()
    try:
        engines = vllm_engines(
            server,
            slots=(spec.slots, spec.slots),
            rule=generator.rule,
            sampling=Sampling(recipe.temperature, recipe.top_p, generator.stop),
            needs=needs,
            updates=updates,
            shape=model.shape,
        )
    except BaseException:
        _end(server)
        raise

    def end() -> None:
        engines[0].close()
        _end(server)

    return PolledEngines(engines, end)


def _end(server: Server | str) -> None:
    if isinstance(server, Server):
        server.close()
