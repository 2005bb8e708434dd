"""The vLLM engine with a fake server: tokens, limits and swaps; nothing is lost or mislabeled."""

import time
from itertools import islice

import numpy as np
import pytest
from fake_vllm import STOP
from hypothesis import given
from hypothesis import strategies as st
from vllm_setup import PLAIN, agree, drain, prompts_of, requests, wait_for

from scalerl.core.types import Prompt, Visit
from scalerl.training.engines.directory import DirectoryTransfer
from scalerl.training.engines.engine import Request, Sampling, generate
from scalerl.training.engines.interrupt import NEVER, LengthRule, forced_tokens
from scalerl.training.engines.local.slots import SlotTable
from scalerl.training.engines.vllm.client import _settle
from scalerl.training.engines.vllm.protocol import BadAnswer, Chunk, VersionSpan
from scalerl.training.engines.vllm.sequence import TokenSequence

# --------------------------------------------------------------------------------------------------------- generation


def test_tokens_have_the_log_probabilities_of_their_version_and_sequences_end_correctly(make, server):
    engine, _ = make()
    sent = requests(30)
    engine.submit(sent)
    finished = drain(engine)
    assert [done.id for done in finished] == [request.id for request in sent]
    agree(finished, prompts_of(sent))
    for done in finished:
        tokens = done.rollout.tokens.tolist()
        assert STOP not in tokens[:-1] and done.rollout.truncated == (tokens[-1] != STOP)
        assert tokens[-1] == STOP or len(tokens) == PLAIN.max_tokens
        assert done.rollout.sampled.all() and not done.rollout.interrupted
    assert {done.rollout.truncated for done in finished} == {True, False}
    assert engine.work.tokens == sum(len(done.rollout) for done in finished)
    assert 1 < server.most_running <= 8  # the slots


def test_a_canceled_sequence_is_never_returned_and_dropped_by_the_server(make, server):
    server.delay_s = 0.01
    engine, _ = make(rule=LengthRule(None, NEVER, 400), sampling=Sampling())
    engine.submit(requests(10))
    wait_for(lambda: server.running == 8)
    engine.cancel([(0, 0), (3, 0), (9, 0)])  # the last one still waits
    server.delay_s = 0.0005
    assert [done.id[0] for done in drain(engine)] == [1, 2, 4, 5, 6, 7, 8]
    wait_for(lambda: server.deserted == 2)


def test_training_and_evaluation_share_a_server_with_separate_sequences(make, server):
    """Ids of training and evaluation requests are equal; an evaluation does not wait for training sequences."""
    server.delay_s = 0.01
    training, evaluating = make(rule=LengthRule(None, NEVER, 300), sampling=Sampling())
    training.submit(requests(8))
    wait_for(lambda: server.running == 8)
    evaluating.client._rule = PLAIN  # of the sequences that are submitted from now on
    visit = Visit(Prompt("a", "", (5, 9), "", "t"), 0, 0)
    ((_, group),) = generate([evaluating], [visit], samples=3, seed=0, purpose="evaluate")
    assert [len(rollout) for rollout in group.rollouts] == [40, 40, 40]
    assert training.occupancy().running == 8  # the training sequences still run
    server.delay_s = 0.0
    assert len(drain(training)) == 8


# ---------------------------------------------------------------------------------------------------------- interrupt

THINKING = LengthRule(thinking=(4, 9), answer_tokens=5, max_tokens=14, phrase=(7, 8, 9), end_tag=(9,))


@given(
    tokens=st.lists(st.integers(1, 10), min_size=40, max_size=40),
    key=st.integers(0, 2**64 - 1),
    phrase=st.sampled_from([(7, 8, 9), (9,), (8, 9), (9, 7, 9), (7, 8)]),
    tag=st.sampled_from([(9,), (8, 9), (7, 8)]),
    interrupted=st.booleans(),
)
def test_length_control_matches_the_torch_engine_token_by_token(tokens, key, phrase, tag, interrupted):
    """The same sampled tokens through the slot table and through requests with limited tokens."""
    rule = LengthRule((4, 9), 5, 14, phrase, tag) if interrupted else LengthRule(None, NEVER, 12)
    request = Request((0, 0), (5, 2), key)
    table = SlotTable(1, rule, (STOP,))
    table.start(0, request)
    feed, done = iter(tokens), []
    while not done:
        state = [table[name] for name in ("count", "closed_at", "interrupt_at")]
        free = forced_tokens(rule, *state)[0] < 0
        token = next(feed) if free else 0  # sampled tokens are discarded where the phrase is inserted
        done = table.record(np.asarray([0]), np.asarray([token]), np.asarray([-float(token)]), 3)
    sequence, feed = TokenSequence(request, rule, (STOP,)), iter(tokens)
    while not sequence.over():
        sequence.write_phrase(3)
        if sequence.over():
            break
        sequence.begin()
        assert sequence.allowance > 0
        sampled = list(islice(feed, sequence.allowance))
        sequence.extend(sampled, [-float(token) for token in sampled], 3)
    expected, got = done[0].rollout, sequence.finish().rollout
    for name in ("tokens", "logps", "versions", "sampled"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    assert (got.truncated, got.interrupted) == (expected.truncated, expected.interrupted)


def test_an_interrupted_sequence_has_the_phrase_as_context_and_its_answer_budget(make, server):
    engine, _ = make(rule=THINKING, sampling=Sampling(stop=()))
    sent = requests(40)
    engine.submit(sent)
    finished = drain(engine)
    agree(finished, prompts_of(sent))
    interrupted = [done.rollout for done in finished if done.rollout.interrupted]
    for rollout in interrupted:
        (at,) = set(np.flatnonzero(~rollout.sampled)[:1].tolist())
        assert 4 <= at <= 9 and rollout.tokens[at : at + 3].tolist() == [7, 8, 9]
        assert not rollout.sampled[at : at + 3].any() and rollout.sampled.sum() == len(rollout) - 3
        assert (rollout.logps[at : at + 3] == 0).all() and len(rollout) == at + 3 + 5 and rollout.truncated
    for rollout in (done.rollout for done in finished if not done.rollout.interrupted):
        closed = rollout.tokens.tolist().index(9) + 1
        assert closed <= 9 and len(rollout) == closed + 5  # thinking that ended before the limit, then the same budget
    assert 5 < len(interrupted) < 35
    continued = [body for body in server.requests if 7 in body["token_ids"][2:] and body["token_ids"][-1] == 9]
    assert len(continued) >= len(interrupted)


# -------------------------------------------------------------------------------------------------------------- swaps


@pytest.mark.slow
def test_a_swap_returns_at_once_and_running_sequences_continue_across_it(make, server, files):
    server.delay_s, server.load_s = 0.003, 1.0
    engine, _ = make(rule=LengthRule(None, NEVER, 400), sampling=Sampling())
    engine.swap(2)
    sent = requests(8)
    engine.submit(sent)
    wait_for(lambda: engine.work.tokens > 100)
    assert engine.version == 2
    began = time.monotonic()
    engine.swap(5)
    assert time.monotonic() - began < 0.5 and engine.version == 2  # until the server has it
    finished = drain(engine)
    assert engine.version == 5
    agree(finished, prompts_of(sent))
    for done in finished:
        versions = done.rollout.versions.tolist()
        assert versions == sorted(versions) and set(versions) == {2, 5}
    assert [name for name in server.calls if "weight" in name or "pause" in name or name == "/resume"][-6:] == [
        "/pause?mode=keep&clear_cache=false",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/weight_info",
        "/resume",
    ]
    assert list(files.path.glob(".serving*")) == []


@pytest.mark.parametrize("links", [True, False])
def test_engines_hold_a_version_under_different_names(links, files, monkeypatch):
    def fail(source, target):
        raise PermissionError(1, "Operation not permitted")  # as on file systems without hard links

    if not links:
        monkeypatch.setattr("os.link", fail)
    engines = [DirectoryTransfer(files, number) for number in range(2)]
    held = [engine.hold(3) for engine in engines for _ in range(2)]
    files.file(3).unlink()  # the learner drops it
    assert len(set(held)) == 4 and all(path.read_bytes() == b"weights" for path in held)
    for path in held:
        engines[0].release(path)
    assert list(files.path.glob(".serving*")) == []


def test_the_next_life_of_an_engine_releases_what_a_killed_one_held_and_nothing_else(files):
    held = {number: DirectoryTransfer(files, number).hold(3) for number in (1, 11)}
    DirectoryTransfer(files, 1)
    assert not held[1].exists() and held[11].exists() and files.file(3).exists()


def test_a_version_used_again_does_not_share_its_earlier_cached_prefixes(make, server):
    engine, _ = make()
    for first, version in enumerate((1, 2, 1)):
        engine.swap(version)
        engine.submit(requests(2, first=2 * first))
        drain(engine)
    salts = [body["cache_salt"] for body in server.requests]
    assert len(set(salts)) == 3 and salts[::2] == salts[1::2]  # one for the requests of a version


# -------------------------------------------------------------------------------------------------------- coordinator


def test_a_stop_token_after_the_answer_budget_is_ignored_without_an_error():
    # thinking ends at token 2 (the tag 7); two answer tokens are allowed, but four and a stop token arrive
    rule = LengthRule(thinking=(10, 11), answer_tokens=2, max_tokens=13, phrase=(7,), end_tag=(7,))
    sequence = TokenSequence(Request((0, 0), (1, 2), key=3), rule, (9,))
    allowance = sequence.allowance
    sequence.begin()
    sequence.extend((4, 7, 5, 6, 5, 9), (-0.5,) * 6, version=3)
    _settle(sequence, Chunk((5, 9), (-0.5, -0.5), "stop", (VersionSpan(3, 0, 6),)), allowance)
    rollout = sequence.finish().rollout
    assert rollout.tokens.tolist() == [4, 7, 5, 6] and rollout.truncated and not rollout.interrupted
    assert rollout.versions.tolist() == [3, 3, 3, 3]
    open_ended = TokenSequence(Request((0, 0), (1, 2), key=3), rule, (9,))
    open_ended.begin()
    open_ended.extend((4, 5), (-0.5, -0.5), version=3)
    with pytest.raises(BadAnswer, match="not a stop token"):
        _settle(open_ended, Chunk((5,), (-0.5,), "stop", (VersionSpan(3, 0, 2),)), allowance)
