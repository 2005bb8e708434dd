"""The vLLM engine with a faulty server: retries where they help, errors otherwise."""

import base64
import contextlib
import dataclasses
import io
import math
from collections import Counter

import numpy as np
import pytest
from fake_vllm import logps, nucleus
from vllm_setup import NEEDS, PLAIN, agree, drain, prompts_of, requests, wait_for

from scalerl.training.engines.engine import Request, RoutingShape, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.vllm.protocol import BadAnswer, VersionSpan, experts_of_tokens, parse_chunk
from scalerl.training.engines.vllm.sequence import TokenSequence
from scalerl.training.models.routing import UNKNOWN


def npy(array):
    np.save(file := io.BytesIO(), array)
    return base64.b64encode(file.getvalue()).decode()


# ------------------------------------------------------------------------------------------------------------- faults


def test_every_token_has_the_experts_of_the_token_before_it_and_those_of_a_broken_request_are_unknown(make, server):
    """The inserted phrase has none, because no request samples its tokens."""
    server.experts, server.delay_s = (3, 2, 8), 0.002
    rule = LengthRule(thinking=(20, 40), answer_tokens=30, max_tokens=72, phrase=(10, 11), end_tag=(11,))
    needs = dataclasses.replace(NEEDS, routing=RoutingShape(3, 2, 8))
    engine, _ = make(rule=rule, sampling=Sampling(), slots=(4, 4), needs=needs)
    engine.swap(1)
    wait_for(lambda: engine.version == 1)
    server.faults["drop"] = 3
    sent = requests(12)
    engine.submit(sent)
    known = 0
    for done in drain(engine):
        rollout, prompt = done.rollout, sent[done.id[0]].prompt
        before_T = np.asarray([*prompt, *rollout.tokens.tolist()])[len(prompt) - 1 : -1]
        expected_TLK = (before_T[:, None, None] + np.arange(3)[:, None] + np.arange(2)) % 8
        known_T = (rollout.experts != UNKNOWN).all((1, 2))
        assert (rollout.experts[known_T] == expected_TLK[known_T]).all()
        assert (rollout.experts[~known_T] == UNKNOWN).all() and rollout.sampled[known_T].all()
        known += known_T.mean()
    assert engine.client.retried == 3 and known > 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not return"),
        ("AAAA", "is no array"),
        (npy(np.zeros((4, 3, 2), np.uint8)), r"shape \(4, 3, 2\).*5 tokens, 3 layers and 2 active"),
        (npy(np.full((5, 3, 2), np.nan)), "type float64"),
        (npy(np.full((5, 3, 2), -1)), "experts -1 to -1; the model has 0 to 7"),
    ],
)
def test_experts_that_do_not_fit_the_model_are_an_error_with_numbers(text, message):
    with pytest.raises(BadAnswer, match=message):
        experts_of_tokens(text, 5, RoutingShape(3, 2, 8))


def test_under_top_p_every_token_has_the_set_that_it_was_sampled_from_across_broken_requests(make, server):
    """The inserted phrase was not sampled, so its sets are empty."""
    server.masks, server.delay_s = True, 0.002
    rule = LengthRule(thinking=(20, 40), answer_tokens=30, max_tokens=72, phrase=(10, 11), end_tag=(10, 11))
    needs = dataclasses.replace(NEEDS, nucleus=True)
    engine, _ = make(rule=rule, sampling=Sampling(top_p=0.6), slots=(4, 4), needs=needs)
    server.faults["drop"] = 3
    sent = requests(12)
    engine.submit(sent)
    finished = drain(engine)
    assert engine.client.retried == 3 and any(done.rollout.interrupted for done in finished)
    for done in finished:
        rollout, before = done.rollout, sent[done.id[0]].prompt[-1]
        sizes_T, ids = rollout.nucleus
        for token, logp, sampled, own in zip(
            rollout.tokens.tolist(), rollout.logps, rollout.sampled, np.split(ids, np.cumsum(sizes_T)[:-1]), strict=True
        ):
            table = logps(0, before)
            assert own.tolist() == (nucleus(table, 0.6) if sampled else [])
            inside = math.log(sum(math.exp(table[id]) for id in own)) if sampled else table[token]
            assert logp == pytest.approx(table[token] - inside, abs=1e-6)
            before = token


@pytest.mark.parametrize("fault", ["refuse", "half", "error"])
def test_a_broken_request_is_resumed_with_its_tokens(make, server, fault):
    server.delay_s = 0.002
    engine, _ = make(rule=LengthRule(None, NEVER, 60), sampling=Sampling(), slots=(4, 4))
    engine.swap(1)
    sent = requests(12)
    wait_for(lambda: engine.version == 1)
    server.faults[fault] = 4
    engine.submit(sent)
    finished = drain(engine)
    assert [done.id for done in finished] == [request.id for request in sent]
    assert all(len(done.rollout) == 60 for done in finished)
    agree(finished, prompts_of(sent))
    assert engine.client.retried == 4
    lengths = Counter(len(body["token_ids"]) for body in server.requests)
    resumed = sum(count for length, count in lengths.items() if length > 2)
    assert resumed == (0 if fault == "refuse" else 4)  # the others had received some tokens
    assert sum(lengths.values()) == 16


@pytest.mark.slow
def test_tokens_of_a_broken_request_never_get_a_newer_version(make, server):
    """The last chunk names the weights; without it, tokens get the version when the request was sent."""
    server.delay_s = 0.005
    engine, _ = make(rule=LengthRule(None, NEVER, 90), sampling=Sampling(), slots=(4, 4))
    engine.swap(1)
    sent = requests(4)
    engine.submit(sent)
    wait_for(lambda: engine.work.tokens > 60)
    engine.swap(2)
    wait_for(lambda: engine.version == 2)
    wait_for(lambda: engine.work.tokens > 120)
    server.faults["drop"] = 4
    finished = drain(engine)
    assert engine.client.retried == 4
    restarts = {len(body["token_ids"]) - 2 for body in server.requests} - {0}
    assert len(restarts) >= 1
    for done in finished:
        versions, rollout = done.rollout.versions.tolist(), done.rollout
        assert versions == sorted(versions) and set(versions) == {1, 2}
        before = sent[done.id[0]].prompt[-1]
        for token, logp, version in zip(rollout.tokens.tolist(), rollout.logps, versions, strict=True):
            true = [v for v in (1, 2) if math.isclose(logp, logps(v, before)[token], abs_tol=1e-6)]
            assert version <= max(true)
            before = token


def test_a_request_that_breaks_repeatedly_ends_the_engine_with_address_and_loss(make, server):
    engine, _ = make(rule=LengthRule(None, NEVER, 60), sampling=Sampling())
    server.faults["refuse"] = 1 << 30
    engine.submit(requests(3))
    with pytest.raises(EngineDied, match=rf"{server.address}.* 3 sequences in flight are lost"):
        drain(engine)
    with pytest.raises(EngineDied):  # the engine stays dead
        engine.submit(requests(1))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nonsense", "not an answer"),
        ("short", "--max-model-len"),
    ],
)
def test_an_invalid_answer_is_not_retried(make, server, fault, message):
    engine, _ = make(rule=LengthRule(None, NEVER, 30), sampling=Sampling())
    server.faults[fault] = 1
    engine.submit(requests(1))
    with pytest.raises(EngineDied, match=message):
        drain(engine)
    assert engine.client.retried == 0


def test_a_failed_pause_is_retried_but_a_failed_load_is_not(make, server):
    engine, _ = make()
    server.faults["no_pause"] = 2
    engine.swap(1)
    wait_for(lambda: engine.version == 1)
    assert sum(name.startswith("/pause") for name in server.calls) == 3
    server.faults["no_load"] = 1
    engine.swap(2)
    with pytest.raises(EngineDied, match="No such file"):
        while True:
            engine.poll(0.05)


FAILED = {
    "the load fails": lambda engine, server: server.faults.__setitem__("no_load", 1),
    "the server reports another version": lambda engine, server: server.faults.__setitem__("wrong_label", 1),
    "the engine is closed": lambda engine, server: setattr(server, "load_s", 1.0),
}


@pytest.mark.parametrize("how", FAILED)
def test_a_swap_that_fails_leaves_no_file_behind(how, make, server, files):
    engine, _ = make()
    engine.swap(1)
    wait_for(lambda: engine.version == 1)
    server.load_s = 0.3
    FAILED[how](engine, server)
    engine.swap(2)
    wait_for(lambda: server.calls.count("/start_weight_update") == 2)
    with contextlib.suppress(EngineDied):
        engine.swap(3)  # held while the other one is loaded
        engine.swap(4)
    if how == "the engine is closed":
        engine.client.stop()
    else:
        with pytest.raises(EngineDied):
            while True:
                engine.poll(0.05)
    wait_for(lambda: list(files.path.glob(".serving*")) == [])


def test_missing_weights_raise_at_once(make, files):
    engine, _ = make()
    with pytest.raises(EngineDied, match="does not exist"):
        engine.swap(9)


# ------------------------------------------------------------------------------------------------------------ answers


def test_spans_give_each_token_its_version_and_must_cover_all():
    sequence = TokenSequence(Request((0, 0), (5,), 1), PLAIN, ())
    sequence.begin()
    sequence.extend([2, 3], [-1.0, -1.0], 4)
    sequence.begin()
    sequence.extend([4, 5, 6], [-1.0, -1.0, -1.0], 5)
    sequence.settle([VersionSpan(5, 0, 1), VersionSpan(6, 1, 9)])  # the server sampled more than the sequence may have
    assert sequence.versions == [4, 4, 5, 6, 6]
    sequence.settle([VersionSpan(6, 0, 3)])  # a swap during the prefill: the prompt was partly computed with version 5
    assert sequence.versions == [4, 4, 5, 6, 6]
    with pytest.raises(BadAnswer, match="2 tokens"):
        sequence.settle([VersionSpan(5, 0, 1), VersionSpan(6, 1, 2)])
    with pytest.raises(BadAnswer, match="1 tokens"):
        sequence.settle([VersionSpan(5, 0, 1), VersionSpan(6, 2, 3)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"choices": [{"token_ids": [3], "finish_reason": null, "weight_versions": null, "logprobs": {"content": '
         b'[{"token_id": 3, "logprob": -9999.0}]}}]}', "token 3.*reports for NaN"),
        (b'{"choices": [{"token_ids": [3, 4], "finish_reason": null, "weight_versions": null, "logprobs": {"content": '
         b'[{"token_id": 3, "logprob": -1.0}]}}]}', "1 other tokens"),
        (b'{"choices": [{"token_ids": [], "finish_reason": "stop", "logprobs": null, "weight_versions": '
         b'[{"version": "nightly", "start": 0, "end": 1}]}]}', "'nightly'"),
        (b"<html>502 Bad Gateway</html>", "which is not an answer"),
    ],
)  # fmt: skip
def test_an_inconsistent_answer_is_an_error(data, message):
    with pytest.raises(BadAnswer, match=message):
        parse_chunk(data)
