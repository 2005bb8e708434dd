"""Weights over NCCL: the control plane with fake servers; vLLM's classes and GPUs if available."""

import pickle
import socket
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import gloo_vllm
import httpx
import pytest
import torch
from fake_vllm import FakeVllm
from vllm_setup import drain, requests, wait_for

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.engines.vllm import nccl
from scalerl.training.engines.vllm.nccl import NcclChannel, NcclTransfer, ServersClient, address_towards
from scalerl.training.loop import resolve
from scalerl.training.placement.choices import channel_choice
from scalerl.training.placement.devices import Host
from scalerl.training.placement.sizes import RunSizes


@pytest.fixture
def pair():
    """Two fake servers, with two workers and with one."""
    with FakeVllm() as first, FakeVllm() as second:
        first.world_size = 2
        yield first, second


@pytest.fixture
def client(pair):
    made = ServersClient([server.address for server in pair], timeout_s=5)
    yield made
    made.close()


def test_ranks_are_assigned_to_servers_in_order(pair, client):
    """The trainer is rank 0, the first server's two workers are ranks 1 and 2, the second server's worker is rank 3."""
    assert client.world_sizes == [2, 1]
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 4, "master_port": 5})
    assert [server.bodies[0]["init_info"]["rank_offset"] for server in pair] == [1, 3]
    assert all(server.bodies[0]["init_info"]["world_size"] == 4 for server in pair)


def test_an_update_pauses_all_servers_names_the_version_and_resumes_them(pair, client):
    client.version = 12
    client.start_weight_update()
    assert not any(server.unpaused.is_set() for server in pair)
    client.update_weights({"names": ["a"]})
    client.finish_weight_update()
    for server in pair:
        assert server.unpaused.is_set() and server.label == "12"
        assert server.calls == [
            "/get_world_size",
            "/pause?mode=keep&clear_cache=false",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/resume",
        ]


def test_the_error_names_a_server_that_rejects_an_update(pair, client):
    pair[1].faults["no_pause"] = 1
    with pytest.raises(RuntimeError, match=f"{pair[1].address}.*/pause"):
        client.start_weight_update()


def test_the_channel_is_pickled_without_its_communicator_and_receives_nothing():
    channel = gloo_vllm.channel_to("http://127.0.0.1:1")
    channel._sender = threading.Lock()  # like a communicator it cannot be pickled
    copy = pickle.loads(pickle.dumps(channel))
    assert copy._sender is None and copy.capacity == 2
    copy.drop(0)
    with pytest.raises(RuntimeError, match=r"use rollouts.weights = 'directory'"):
        copy.receive(0)


def test_the_optimizers_kernels_are_finished_before_vllm_reads_the_weights(monkeypatch):
    """On a device that only records; vLLM reads them in another thread, which a stream of the caller does not order."""
    calls, caller = [], threading.get_ident()

    class Engine:
        def send_weights(self):
            calls.append(("read", threading.get_ident() == caller, list(sender._source.weights)))

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: calls.append(("synchronize",)))
    sender = object.__new__(nccl._Sender)
    sender.servers, sender._engine = ("http://127.0.0.1:1",), Engine()
    sender._client, sender._source = SimpleNamespace(failure=Future()), SimpleNamespace()
    for version in (1, 2):
        sender.send(version, iter([("w", version)]), 10.0)
    assert calls == [
        ("synchronize",), ("read", False, [("w", 1)]), ("synchronize",), ("read", False, [("w", 2)])
    ]  # fmt: skip


def test_all_servers_are_asked_for_their_weights_at_the_same_time(monkeypatch):
    """Each answer waits until all have been asked; one server is away, and one is starting."""
    channel, together = gloo_vllm.channel_to(*(f"http://127.0.0.1:{1 + n}" for n in range(64))), threading.Barrier(64)

    def get(address, **options):
        together.wait(timeout=20)
        number = int(address.split(":")[2].split("/")[0])
        if number == 7:
            raise httpx.ConnectError("away")
        status = 503 if number == 9 else 200
        return httpx.Response(status, json={"weight_version": str(number)})

    monkeypatch.setattr(nccl.httpx, "get", get)
    labels = channel._labels()
    assert labels == {f"http://127.0.0.1:{n}": str(n) for n in range(1, 65) if n not in (7, 9)}
    assert list(labels) == [f"http://127.0.0.1:{1 + n}" for n in sorted(range(64), key=str) if n not in (6, 8)]


CUDA = ["--hardware.device", "cuda"]
VLLM = ["--placement.engine", "vllm"]
SERVERS = ["--placement.servers", "['http://x:1']"]
ROUNDS = ["--recipe.off_policy.kind", "ppo-off-policy"]


@pytest.mark.parametrize(
    ("words", "shared", "vllm", "channel", "reason"),
    [
        ([*CUDA, *VLLM], False, True, "nccl", ""),
        ([*CUDA, *VLLM, *ROUNDS, "--recipe.off_policy.batches", "1"], False, True, "nccl", ""),
        ([*CUDA, *VLLM, *ROUNDS], False, True, "directory", "ppo-off-policy needs older ones"),
        ([*CUDA, *VLLM], True, True, "directory", "shares the trainer's GPU"),
        ([*CUDA, *VLLM], False, False, "directory", "needs vLLM in the trainer's environment"),
        ([*CUDA, *VLLM, *SERVERS], False, True, "directory", "as their command line says"),
        (["--hardware.device", "cpu", *VLLM], False, True, "directory", ""),
        (CUDA, True, True, "shared-memory", ""),
        ([*CUDA, "--placement.backend", "ray"], False, True, "directory", ""),
    ],
)
def test_the_placement_determines_the_channel(words, shared, vllm, channel, reason):
    found = channel_choice(read_config(None, words), shared, vllm)
    assert found[0] == channel and reason in found[1] and bool(reason) == bool(found[1])


def test_a_machine_without_vllm_or_with_one_gpu_uses_files_and_says_so(monkeypatch):
    config, gpus, installed = read_config(None, [*CUDA, *VLLM]), [8], [object()]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(resolve, "this_machine", lambda: Host("here", tuple(map(str, range(gpus[0]))), 80.0))
    monkeypatch.setattr(resolve, "find_spec", lambda name: installed[0])
    resolved = resolve.place_processes(config)
    assert (
        resolved.config.rollouts.weights == "nccl" and not RunSizes.of(resolved.config).in_loop and resolved.notes == ()
    )
    gpus[0] = 1
    shared = resolve.place_processes(config)
    assert shared.config.rollouts.weights == "directory" and RunSizes.of(shared.config).in_loop
    assert "through files: an engine shares the trainer's GPU" in shared.notes[0]
    with pytest.raises(ConfigError, match=r"share the only GPU here.*allowed: auto, directory"):
        resolve.place_processes(resolved.config)
    gpus[0], installed[0] = 8, None
    assert "through files: NCCL needs vLLM" in resolve.place_processes(config).notes[0]


@pytest.mark.skipif("vllm" in sys.modules, reason="vLLM is installed here")
def test_the_channel_needs_vllm_in_the_trainers_environment(pair):
    channel = gloo_vllm.channel_to(*(server.address for server in pair))
    with pytest.raises(ConfigError, match="needs vLLM"):
        channel.send(0, [])


def test_the_engines_see_whether_a_transfer_is_under_way(monkeypatch):
    """Also in a copy of the channel in another process, and after a transfer that failed."""
    monkeypatch.setattr(nccl, "LOOK_S", 0.0)
    channel = gloo_vllm.channel_to()
    engines = pickle.loads(pickle.dumps(channel))
    seen = []

    def transfer(version, weights):
        seen.append(engines.sending())
        raise RuntimeError("stopped")

    channel._send = transfer
    assert not engines.sending()
    with pytest.raises(RuntimeError, match="stopped"):
        channel.send(1, [])
    assert seen == [True] and not engines.sending()
    (channel._directory / nccl.SENDING).write_text("1")  # of a trainer that was killed
    assert engines.sending()
    NcclChannel(channel._layout, channel._directory)
    assert not engines.sending()


def test_an_engine_waits_for_pushed_weights(make, server):
    engine, _ = make()
    engine.client._transfer = NcclTransfer()
    engine.swap(3)
    engine.submit(requests(2))
    assert engine.poll(0.2) == [] and engine.version == -1  # waits until the server has the requested version
    server.weights, server.label = 3, "3"
    wait_for(lambda: engine.version == 3)
    assert {v for done in drain(engine) for v in done.rollout.versions.tolist()} == {3}
    assert not any("pause" in name for name in server.calls if "is_paused" not in name)


def test_the_address_is_loopback_only_if_all_servers_are_on_this_machine(monkeypatch):
    assert address_towards(["http://127.0.0.1:8000", "http://localhost:8001"]) == "127.0.0.1"
    routes = {"10.0.0.5": "10.0.0.1", "127.0.0.1": "127.0.0.1"}

    class Probe(socket.socket):
        def connect(self, target):
            self.own = routes[target[0]]

        def getsockname(self):
            return self.own, 0

    monkeypatch.setattr(socket, "socket", Probe)
    assert address_towards(["http://127.0.0.1:8000", "http://10.0.0.5:8000"]) == "10.0.0.1"
