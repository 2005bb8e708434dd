"""Engines from a configuration over servers given by address, and a lost server that restarts."""

import dataclasses
import time

import pytest
import torch
from fake_vllm import STOP, VOCABULARY, FakeVllm
from generator_specs import generator_spec
from vllm_setup import PLAIN, agree, prompts_of, requests

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.config.base import replace
from scalerl.training.config.placement import Placement
from scalerl.training.engines.build import EngineSpec
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.engine import ExactEngine, RoutingShape
from scalerl.training.engines.kept_weights import KeptWeights
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.vllm.launch import _server_spec, server_engines, server_handle
from scalerl.training.engines.vllm.nccl import NcclChannel
from scalerl.training.engines.vllm.server import command
from scalerl.training.loop.resolve import place_processes
from scalerl.training.models.sizes import Attention, ModelSizes
from scalerl.training.models.weights import WeightLayout


def spec_of(addresses, tmp_path, *words):
    servers = [addresses] if isinstance(addresses, str) else list(addresses)
    words = ["--placement.engine", "vllm", "--placement.servers", str(servers), "--rollouts.slots", "8", *words]
    config = read_config(None, words)
    config = replace(config, hardware=replace(config.hardware, device="cpu", dtype="float32"))
    channel = DirectoryChannel(tmp_path / "weights")
    for version in (0, 1, 2):
        channel.send(version, [("weight", torch.zeros(1))])
    generator = generator_spec(
        config, "model", VOCABULARY, rule=PLAIN, stop=(STOP,), run=tmp_path, make_engines=server_engines
    )
    return EngineSpec(generator, channel, 0)


def collect(engine, count, seconds=60.0):
    finished, until = [], time.monotonic() + seconds
    while len(finished) < count:
        assert time.monotonic() < until, (len(finished), engine.occupancy())
        finished += engine.poll(0.02)
    return finished


@pytest.mark.slow
def test_a_restarted_server_gets_the_weights_and_every_sequence_is_returned_once(tmp_path):
    notes, sent = [], requests(60)
    with FakeVllm() as server:
        ((engine, evaluator),) = server_engines([spec_of(server.address, tmp_path)], notes.append)
        engine.swap(1)
        engine.submit(sent)
        before = collect(engine, 10)
        port = int(server.address.rpartition(":")[2])
        server.faults["refuse"] = server.faults["drop"] = 1 << 30  # kept-alive connections would continue
    assert not isinstance(engine, ExactEngine) and notes == []
    while not notes:
        before += engine.poll(0.02)
    assert "sampled again from their prompts" in notes[0]
    with FakeVllm(port) as server:
        engine.swap(2)
        after = collect(engine, 60 - len(before))
        assert sorted(done.id for done in before + after) == [(i, 0) for i in range(60)]
        agree(before + after, prompts_of(sent))
        assert {int(v) for done in after for v in done.rollout.versions} == {2} and server.label == "2"
        assert (engine.work.restarts, engine.work.resampled) == (1, len(after))
        assert engine.work.flops > 0
        evaluator.submit(requests(3))
        assert len(collect(evaluator, 3)) == 3


def test_an_engine_announces_its_server_to_the_trainer_as_long_as_it_lives(tmp_path):
    channel = NcclChannel(WeightLayout.of([("weight", torch.zeros(1))]), tmp_path / "servers")
    with FakeVllm() as server:
        server.settings["weight_transfer_config"] = {"backend": "nccl"}
        spec = dataclasses.replace(spec_of(server.address, tmp_path, "--rollouts.weights", "nccl"), channel=channel)
        handle = server_handle(spec)
        assert channel._labels() == {server.address: "default"} and channel.lost()
        server.label = "3"
        channel._asked_at = -1e9
        assert not channel.lost()
        handle.stop()
        assert channel._labels() == {}


def test_routing_replay_requests_the_experts_of_the_model(tmp_path):
    with FakeVllm() as server:
        server.experts = (3, 2, 8)
        spec = spec_of(server.address, tmp_path, "--recipe.routing_replay", "on")
        sizes = ModelSizes(10.0, (Attention(4, 0),), experts=8, active_experts=2, layers=3)
        spec = dataclasses.replace(spec, generator=dataclasses.replace(spec.generator, sizes=sizes))
        ((engine, _),) = server_engines([spec], print)
        engine.swap(1)
        engine.submit(requests(1))
        (done,) = collect(engine, 1)
    assert done.rollout.experts.shape == (len(done.rollout), 3, 2) and (done.rollout.experts >= 0).all()
    needs = Needs(VOCABULARY, 200, 8, "scalerl_directory", routing=RoutingShape(3, 2, 8))
    assert "--enable-return-routed-experts" in _server_spec(spec, needs, {}).extra


@pytest.mark.parametrize("words", [("--recipe.top_p", "0.9"), ("--recipe.routing_replay", "on")])
def test_what_vllm_cannot_report_on_cpu_is_an_error_before_a_server_starts(words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = read_config(None, ["--placement.engine", "vllm", *words])  # `auto` may be a GPU
    with pytest.raises(ConfigError, match=f"^{words[0][2:]}: got .* with a vLLM server on CPU") as caught:
        place_processes(config)
    assert "\n" not in str(caught.value)
    place_processes(replace(config, placement=Placement()))
    place_processes(replace(config, placement=Placement(engine="vllm", servers=("http://gpu-7:8000",))))


SHORT = ["--placement.silence_timeout_s", "4"]


@pytest.mark.slow
def test_a_sequence_that_waits_while_others_are_sampled_is_not_a_failure(tmp_path):
    """vLLM preempts sequences when its cache is full; one of these gets nothing for 7 s, the others take turns."""
    notes, sent = [], requests(40)
    with FakeVllm() as server:
        ((engine, _),) = server_engines([spec_of(server.address, tmp_path, *SHORT)], notes.append)
        server.delay_s, server.faults["preempt"], server.preempted_s = 0.08, 1, 7.0
        began = time.monotonic()
        engine.swap(1)
        engine.submit(sent)
        assert len(collect(engine, 40)) == 40 and time.monotonic() - began > 7.0
        assert notes == [] and engine.work.restarts == 0


@pytest.mark.slow
def test_a_server_that_sends_nothing_at_all_is_used_again_after_the_limit_of_silence(tmp_path):
    notes, sent = [], requests(20)
    with FakeVllm() as server:
        ((engine, _),) = server_engines([spec_of(server.address, tmp_path, *SHORT)], notes.append)
        engine.swap(1)
        server.faults["hang"] = 8  # all requests of its slots
        engine.submit(sent)
        finished = collect(engine, 20)
        assert sorted(done.id for done in finished) == [(i, 0) for i in range(20)]
        (note,) = notes
        assert "no token" in note and "placement.silence_timeout_s" in note and engine.work.restarts == 1


def test_servers_that_keep_their_weights_are_started_without_a_transfer_and_need_none(tmp_path):
    """As in `scalerl eval`: nobody sends, whatever `rollouts.weights` says."""
    with FakeVllm() as server:
        server.settings["weight_transfer_config"] = None
        spec = dataclasses.replace(spec_of(server.address, tmp_path), channel=KeptWeights())
        assert "--weight-transfer-config" not in command(
            _server_spec(spec, Needs(VOCABULARY, 42, 16, spec.channel.transfer(0).backend), {}), 1, "n"
        )
        ((engine, _),) = server_engines([spec], print)
        engine.swap(0)
        engine.submit(requests(4))
        assert {int(v) for done in collect(engine, 4) for v in done.rollout.versions} == {0}
        assert engine.version == 0 and not any("weight_update" in call for call in server.calls)


def test_a_server_whose_weights_another_client_replaces_is_not_evaluated(tmp_path):
    notes = []
    with FakeVllm() as server:
        server.label = "7"
        spec = dataclasses.replace(spec_of(server.address, tmp_path), channel=KeptWeights())
        ((engine, _),) = server_engines([spec], notes.append)
        engine.swap(0)
        with pytest.raises(EngineDied, match="reports version 7"):
            collect(engine, 1)
