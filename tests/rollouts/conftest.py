"""Fixtures of the tests with vLLM and with its fake server."""

import os
import subprocess
from pathlib import Path

import pytest
import vllm_contract
from fake_vllm import STOP, FakeVllm
from vllm_setup import NEEDS, PLAIN, Files, direct

from scalerl.training.engines.engine import Sampling


@pytest.fixture(scope="session")
def vllm_source(tmp_path_factory):
    """Return a directory with vLLM's source: of SCALERL_VLLM_PYTHON, or of the newest supported wheel on PyPI."""
    if python := os.environ.get("SCALERL_VLLM_PYTHON"):
        find = "import importlib.util as i; print(i.find_spec('vllm').submodule_search_locations[0])"
        done = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
        return Path(done.stdout.strip()).parent
    try:
        return vllm_contract.unpacked(vllm_contract.supported(), tmp_path_factory.mktemp("vllm"))
    except (OSError, TimeoutError):
        pytest.skip("PyPI does not answer")


@pytest.fixture
def server():
    with FakeVllm() as fake:
        yield fake


@pytest.fixture
def files(tmp_path):
    channel = Files(tmp_path)
    for version in range(6):
        channel.send(version)
    return channel


@pytest.fixture
def make(server, files, monkeypatch):
    """Return a function that makes (training, evaluating) over the server; they are closed at the end."""
    from scalerl.training.engines.directory import DirectoryTransfer
    from scalerl.training.engines.vllm import client, protocol

    monkeypatch.setattr(client, "BACKOFF_S", 0.01)
    monkeypatch.setattr(protocol, "STREAM_INTERVAL", 3)
    made = []

    def engines(rule=PLAIN, slots=(8, 4), sampling=None, needs=NEEDS):
        sampling = sampling or Sampling(stop=(STOP,))
        updates = DirectoryTransfer(files)
        made.append(
            client.vllm_client(server.address, slots=slots, rule=rule, sampling=sampling, needs=needs, transfer=updates)
        )
        return direct(made[-1])

    yield engines
    for one in made:
        one.stop()
