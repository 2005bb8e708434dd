"""The vLLM engine with answers of a real server (vLLM 0.32 on CPU), recorded by record_vllm.py."""

import json
from pathlib import Path

import numpy as np
import pytest
from fake_vllm import FakeVllm
from vllm_setup import Files, direct, drain, wait_for

from scalerl.training.engines.directory import DirectoryTransfer
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.vllm import protocol
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.vllm.client import vllm_client

EXCHANGES = json.loads(Path(__file__).with_name("vllm_recorded.json").read_text())


def streamed(number):
    """Return tokens, log-probabilities and the last choice of a recorded stream, read without the engine's help."""
    streams = [exchange for exchange in EXCHANGES if exchange["type"].startswith("text/event-stream")]
    events = [line[6:] for line in streams[number]["answer"].split("\n") if line.startswith("data: {")]
    choices = [json.loads(event)["choices"][0] for event in events]
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    return [entry["token_id"] for entry in entries], [entry["logprob"] for entry in entries], choices[-1]


def test_the_engine_sends_the_recorded_requests_and_reads_the_recorded_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "STREAM_INTERVAL", 3)
    files = Files(tmp_path)
    files.send(7)
    files.send(8)
    with FakeVllm(recorded=list(EXCHANGES)) as server:
        engine, _ = direct(
            vllm_client(
                server.address,
                slots=(4, 4),
                rule=LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=7),
                sampling=Sampling(stop=(1,)),
                needs=Needs(vocabulary=48, positions=256, sequences=8, backend="scalerl_directory"),
                transfer=DirectoryTransfer(files),
            )
        )
        engine.submit([Request((0, 0), (5, 9, 2), 1)])
        (before,) = drain(engine)
        engine.swap(7)
        wait_for(lambda: engine.version == 7)
        engine.submit([Request((1, 0), (5, 9, 2), 1)])
        (after,) = drain(engine)
        engine.swap(8)
        with pytest.raises(EngineDied, match="No such file"):
            while True:
                engine.poll(0.05)
        engine.client.stop()
    for done, number, version, reason in ((before, 0, 0, "length"), (after, 1, 7, "stop")):
        tokens, logps, last = streamed(number)
        rollout = done.rollout
        assert rollout.tokens.tolist() == tokens and last["finish_reason"] == reason
        np.testing.assert_array_equal(rollout.logps, np.asarray(logps, np.float32))
        assert rollout.versions.tolist() == [version] * len(tokens) and rollout.truncated == (reason == "length")
    asked = [(one["path"], one["body"], one["recorded"]) for one in server.requests]
    generated = [(ours, recorded) for path, ours, recorded in asked if path == "/inference/v1/generate"]
    assert len(generated) == 5 and all(ours == recorded for ours, recorded in generated)
    finished = [(ours, recorded) for path, ours, recorded in asked if path == "/finish_weight_update"]
    assert finished == [({"weight_version": "7"}, {"weight_version": "7"})]
