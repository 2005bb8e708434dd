"""Fixtures of the tests against the fake vLLM server."""

import pytest
from fake_vllm import STOP, FakeVllm
from vllm_setup import NEEDS, PLAIN, Files

from scalerl.rollouts.engine import Sampling


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
    from scalerl.rollouts.vllm import connection, protocol
    from scalerl.rollouts.vllm.engine import vllm_engines
    from scalerl.rollouts.vllm.updates import DirectoryUpdates

    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)
    monkeypatch.setattr(protocol, "STREAM_INTERVAL", 3)
    made = []

    def engines(rule=PLAIN, slots=(8, 4), sampling=None, needs=NEEDS):
        sampling = sampling or Sampling(stop=(STOP,))
        updates = DirectoryUpdates(files)
        pair = vllm_engines(server.address, slots=slots, rule=rule, sampling=sampling, needs=needs, updates=updates)
        made.append(pair[0])
        return pair

    yield engines
    for engine in made:
        engine.close()
