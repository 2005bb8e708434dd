"""Common parts of the tests with the fake vLLM server and with a real one."""

import os
import time

import pytest
from fake_vllm import VOCABULARY, logps

from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import Occupancy, Request
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.served import Cancel, Submit, Swap
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.weights import WeightChannel

PYTHON = os.environ.get("SCALERL_VLLM_PYTHON", "")
REAL = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SCALERL_VLLM_PYTHON names no Python with vLLM (make vllm-cpu)"),
]
"""Marks of tests with a real server."""
SIZES = {  # vLLM's attention on CPU needs heads of at least 32
    "hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip
PATIENCE = 300.0
"""Seconds for anything: on a busy machine, processes wait for seconds at a time."""
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

PLAIN = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=40)
NEEDS = Needs(vocabulary=VOCABULARY, positions=200, sequences=12, backend="scalerl_directory")


class Files(WeightChannel):
    """A weight channel without weights: the fake server reads the version from the file name."""

    def __init__(self, path):
        self.path = path

    def file(self, version):
        return self.path / f"version_{version:08d}.safetensors"

    def send(self, version):
        self.file(version).write_bytes(b"weights")


class Direct:
    """One engine of a client, without restarts; its version and its work are those of this moment."""

    def __init__(self, client, number, inboxes):
        self.client, self._number, self._inboxes, self._open = client, number, inboxes, set()

    @property
    def version(self):
        return self.client.version

    @property
    def work(self):
        return self.client.shares[self._number].work

    def occupancy(self):
        slots, count = self.client.shares[self._number].slots, len(self._open)
        return Occupancy(slots, min(slots, count), max(0, count - slots), slots - count)

    def submit(self, requests):
        self._open |= {request.id for request in requests}
        self.client.post(Submit(self._number, tuple(requests)))

    def cancel(self, ids):
        self._open -= set(ids)
        self.client.post(Cancel(self._number, frozenset(ids)))

    def swap(self, version):
        self.client.post(Swap(version))

    def poll(self, timeout_s=0.0):
        for inbox, finished in zip(self._inboxes, self.client.report(timeout_s).finished, strict=True):
            inbox += finished
        own = [one for one in self._inboxes[self._number] if one.id in self._open]
        self._inboxes[self._number].clear()
        self._open -= {one.id for one in own}
        return own


def direct(client):
    """Return the engines of a client: for training, and for evaluations."""
    inboxes = [[], []]
    return Direct(client, 0, inboxes), Direct(client, 1, inboxes)


def requests(count, first=0):
    return [Request((i, 0), (5, 2 + i % 7), stream_key("vllm", i)) for i in range(first, first + count)]


def drain(engine, seconds=60.0):
    """Poll until no sequence is under way."""
    finished, end = [], time.monotonic() + seconds
    while engine.occupancy().busy:
        assert time.monotonic() < end, engine.occupancy()
        finished += engine.poll(0.1)
    return sorted(finished, key=lambda done: done.id)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def agree(finished, prompts, temperature=1.0):
    """Assert that every sampled token has the fake's log-probability for its version."""
    compared = 0
    for done in finished:
        before = prompts[done.id][-1]
        rollout = done.rollout
        for token, logp, version, sampled in zip(
            rollout.tokens.tolist(), rollout.logps, rollout.versions.tolist(), rollout.sampled, strict=True
        ):
            if sampled:
                assert logp == pytest.approx(logps(version, before, temperature)[token], abs=1e-6)
                compared += 1
            before = token
    assert compared > 0
    return compared


def prompts_of(sent):
    return {request.id: request.prompt for request in sent}
