"""Starts vLLM servers and engines from a run's configuration, and restarts them when a server dies."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from scalerl.training.engines.build import EngineSpec, served_engines
from scalerl.training.engines.engine import EnginePair, RoutingShape
from scalerl.training.engines.vllm.adapters import AdapterChannel
from scalerl.training.engines.vllm.checks import Needs, check_version, installed_version
from scalerl.training.engines.vllm.client import VllmClient, vllm_client
from scalerl.training.engines.vllm.server import ServerSpec, VllmServer, wait_for_server


def server_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[EnginePair]:
    """Make the engines of a run on one machine, each over a new server or over a server given by address."""
    starts: Counter[int] = Counter()

    def begin(spec: EngineSpec) -> VllmClient:
        placement, number = spec.generator.placement, spec.number
        starts[number] += 1
        if placement.servers and starts[number] > 1:  # the user restarts it
            wait_for_server(placement.servers[number], placement.start_timeout_s)
        environment = spec.place.environment if placement.backend == "local" else {}  # an actor has that of Ray
        return server_handle(spec, note, environment)

    return served_engines(specs, begin, note)


def server_handle(
    spec: EngineSpec,
    note: Callable[[str], None] = lambda text: None,
    environment: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> VllmClient:
    """Start a server, or use the one given by address, and connect to it.

    Args:
        spec: Specification of the engine.
        note: Function that gets warnings about the server.
        environment: Additional environment variables of a new server; an actor's server inherits the actor's.
        host: Interface on which a new server listens.

    Raises:
        ConfigError: The server does not start, or does not meet the run's requirements.
    """
    generator = spec.generator
    decoding, placement, sizes = generator.decoding, generator.placement, generator.sizes
    transfer = spec.channel.transfer(spec.number)
    positions = decoding.longest_prompt + decoding.rule.capacity
    fp32_head = generator.policy.fp32_head and generator.policy.dtype != "float32"
    routing = RoutingShape(sizes.layers, sizes.active_experts, sizes.experts) if decoding.experts else None
    nucleus = decoding.sampling.top_p < 1
    needs = Needs(generator.vocabulary, positions, 2 * spec.slots, transfer.backend, fp32_head, routing, nucleus)
    with ExitStack() as at_stop:
        if placement.servers:
            server: VllmServer | str = placement.servers[spec.number]
        else:
            python = placement.vllm_python or sys.executable
            if version := installed_version(python):  # before a large model is loaded; without vLLM its log says so
                check_version(python, version)
            server = VllmServer(replace(_server_spec(spec, needs, environment or {}), host=host))
            server.wait_ready()
            at_stop.callback(server.close)
        client = vllm_client(
            server,
            slots=(spec.slots, spec.slots),
            rule=decoding.rule,
            sampling=decoding.sampling,
            needs=needs,
            transfer=transfer,
            sizes=sizes,
            at_stop=at_stop,
            note=note,
        )
    spec.channel.announce(spec.number, client.address)
    client.at_stop.callback(spec.channel.announce, spec.number, "")
    return client


def _server_spec(spec: EngineSpec, needs: Needs, environment: Mapping[str, str]) -> ServerSpec:
    generator, place = spec.generator, spec.place
    placement, model = generator.placement, generator.policy
    revision = () if os.path.isdir(model.path) else ("--revision", model.revision)
    eager = ("--enforce-eager",) if generator.device == "cpu" else ()  # compiling takes a minute
    experts = ("--enable-return-routed-experts",) if needs.routing else ()
    masks = ("--return-sampling-mask",) if needs.nucleus else ()
    adapters = spec.channel.server_arguments() if isinstance(spec.channel, AdapterChannel) else ()
    share = ("--gpu-memory-utilization", f"{place.share:.2f}") if place.share else ()
    return ServerSpec(
        model=model.path,
        max_model_len=needs.positions,
        max_num_seqs=needs.sequences,
        log=generator.run / f"vllm_{'evaluations' if spec.evaluating else spec.number + 1}.log",
        python=placement.vllm_python or sys.executable,
        backend=needs.backend,
        dtype=model.dtype,
        fp32_head=needs.fp32_head,
        tensor_parallel=placement.tensor_parallel,
        start_s=placement.start_timeout_s,
        extra=(*revision, *eager, *experts, *masks, *adapters, *share, *placement.vllm_arguments),
        environment=environment,
    )
