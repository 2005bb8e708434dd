"""The vLLM engine with a real server, by replay. Run: SCALERL_VLLM_PYTHON=.venv-vllm/bin/python pytest -m vllm -s."""

import time

import httpx
import numpy as np
import pytest
from tiny_models import tiny_model
from vllm_setup import CPU, PATIENCE, PYTHON, REAL, SIZES, direct, drain, prompts_of, wait_for

from scalerl.core.rng import stream_key
from scalerl.training.engines.directory import DirectoryChannel, DirectoryTransfer
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.replay import check_current, largest_difference
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.vllm.client import vllm_client
from scalerl.training.engines.vllm.server import ServerSpec, VllmServer
from scalerl.training.models.policy import Policy

pytestmark = REAL

STOP = 1
LONG = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=200)
LONGER = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=800)
NEEDS = Needs(vocabulary=48, positions=900, sequences=12, backend="scalerl_directory")


def policy(name, seed):
    return Policy(tiny_model(name, seed, **SIZES))


@pytest.fixture(scope="module", params=["qwen3", "qwen3-untied", "qwen3-moe"])
def started(request, tmp_path_factory):
    """Return (server, model name, versions by number, their channel); the server starts with other weights."""
    path = tmp_path_factory.mktemp(request.param)
    policy(request.param, seed=77).model.save_pretrained(path / "model")
    channel = DirectoryChannel(path / "weights")
    versions = {version: policy(request.param, version) for version in range(3)}
    for version, of_version in versions.items():
        channel.send(version, of_version.weights())
    server = VllmServer(
        ServerSpec(
            model=str(path / "model"), max_model_len=900, max_num_seqs=12, log=path / "vllm.log", python=PYTHON,
            dtype="float32", extra=("--enforce-eager",), environment=CPU,
        )
    )  # fmt: skip
    began = time.monotonic()
    server.wait_ready()
    print(f"\n{request.param}: ready after {time.monotonic() - began:.0f} s")
    yield server, request.param, versions, channel
    server.close()


@pytest.fixture
def make(started):
    """Return a function that makes (training, evaluating) over the server with the weights of version 0."""
    server, _, _, channel = started
    made = []

    def engines(rule=LONG, sampling=None):
        pair = direct(vllm_client(
            server, slots=(8, 4), rule=rule, sampling=sampling or Sampling(stop=(STOP,)), needs=NEEDS,
            transfer=DirectoryTransfer(channel),
        ))  # fmt: skip
        made.append(pair[0])
        pair[0].swap(0)
        return pair

    yield engines
    for engine in made:
        engine.client.stop()


def requests(count, name="real"):
    return [Request((i, 0), (5, 9, 2 + i % 7), stream_key(name, i)) for i in range(count)]


def pairs_of(finished, sent):
    prompts = prompts_of(sent)
    return [(prompts[done.id], done.rollout) for done in finished]


def test_log_probabilities_survive_swaps_in_flight(make, started):
    """On a busy machine the client may wait until the sequences of a round have ended; the next round is luckier."""
    _, name, versions, _ = started
    engine, _ = make(LONGER, Sampling())  # without a stop token, all sequences are long
    crossing, within = [], []
    for attempt in range(10):
        sent, began, before = requests(12, f"round {attempt}"), time.monotonic(), engine.work.tokens
        engine.submit(sent)
        for version in (1, 2):
            enough = before + 400 * version
            wait_for(lambda enough=enough: engine.work.tokens > enough, PATIENCE)
            asked = time.monotonic()
            engine.swap(version)
            wait_for(lambda version=version: engine.version == version, PATIENCE)
            print(f"{name}: swap {time.monotonic() - asked:.3f} s")
        pairs = pairs_of(drain(engine, PATIENCE), sent)
        print(f"{name}: {(engine.work.tokens - before) / (time.monotonic() - began):.0f} tokens/s at 8 slots")
        assert len(pairs) == 12
        for pair in pairs:
            (crossing if len(set(pair[1].versions.tolist())) > 1 else within).append(pair)
        if crossing and within:
            break
    across, inside = largest_difference(versions, crossing), largest_difference(versions, within)
    print(f"  {len(crossing)} rollouts across a swap: {across}\n  {len(within)} within one version: {inside}")
    assert across.largest < 5e-5 and inside.largest < 5e-5


def test_an_interrupted_sequence_continues_after_the_phrase(make, started):
    _, _, versions, _ = started
    rule = LengthRule(thinking=(20, 40), answer_tokens=30, max_tokens=70, phrase=(30, 31), end_tag=(31,))
    engine, _ = make(rule=rule, sampling=Sampling(stop=(STOP,)))
    sent = requests(24)
    engine.submit(sent)
    pairs = pairs_of(drain(engine, PATIENCE), sent)
    interrupted = [rollout for _, rollout in pairs if rollout.interrupted]
    assert len(interrupted) >= 2
    for rollout in interrupted:
        at = int(np.flatnonzero(~rollout.sampled)[0])
        assert 20 <= at <= 40 and rollout.tokens[at : at + 2].tolist() == [30, 31]
        assert rollout.sampled[at + 2 :].all() and len(rollout) <= at + 32
    assert check_current(versions[0], 0, pairs).largest < 5e-5


@pytest.mark.parametrize("asked", [["start_weight_update"], []], ids=["open", "paused"])
def test_a_server_whose_client_was_killed_in_an_update_is_used_again(make, started, asked):
    server, _, versions, _ = started
    for path in ["pause?mode=keep&clear_cache=false", *asked]:
        httpx.post(f"{server.address}/{path}", trust_env=False).raise_for_status()
    engine, _ = make()
    sent = requests(4)
    engine.submit(sent)
    assert check_current(versions[0], 0, pairs_of(drain(engine, PATIENCE), sent)).largest < 5e-5


def test_weights_without_a_layer_are_an_error_and_the_next_engine_repairs_the_server(make, started):
    _, _, versions, channel = started
    engine, _ = make()
    wait_for(lambda: engine.version == 0, PATIENCE)
    channel.send(3, [(name, weight) for name, weight in versions[1].weights() if "layers.1.mlp" not in name])
    engine.swap(3)
    with pytest.raises(EngineDied, match="no weights"):
        while True:
            engine.poll(0.05)
    engine, _ = make()
    sent = requests(4)
    engine.submit(sent)
    assert check_current(versions[0], 0, pairs_of(drain(engine, PATIENCE), sent)).largest < 5e-5
