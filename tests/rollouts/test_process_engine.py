"""Engines in a separate process: same behavior, and errors with the name of a process that ended."""

import os
import signal
import time

import pytest
from engine_builds import Scripted, Served

from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import NO_WEIGHTS, ExactEngine, Request
from scalerl.training.engines.process_engine import EngineDied, EngineProcess


@pytest.fixture
def remote(request):
    """Start processes; kill the remaining ones at the end."""
    processes = []

    def start(build, name="generator 2 of 3"):
        processes.append(EngineProcess(build, name))
        return processes[-1]

    yield start
    for process in processes:
        process._process.kill()
        process._process.join()


def requests(n, prompt=(5, 9)):
    return [Request((i, 0), (*prompt, i + 2), stream_key("process", i)) for i in range(n)]


def bits(finished):
    return [
        (d.id, d.rollout.tokens.tolist(), d.rollout.logps.tobytes(), d.rollout.versions.tolist(), d.rollout.truncated)
        for d in finished
    ]


def step(engine):
    engine.begin()
    return bits(engine.poll())


def play(engine, first_version=0):
    """Call every method of an engine; return all results."""
    output = [engine.version]
    engine.swap(first_version)
    engine.submit(requests(9))
    engine.submit([])
    output.append(engine.occupancy())
    for tick in range(60):
        if tick == 3:
            engine.swap(first_version + 1)
        if tick == 5:
            engine.cancel({(6, 0), (8, 0)})
        output.append((step(engine), engine.version, engine.work, engine.occupancy()))
    return output


def test_a_scripted_engine_behaves_the_same_in_another_process(remote):
    here, there = play(Scripted()()[0]), play(remote(Scripted()).engines()[0])
    assert there == here
    ended = [one for entry in here[2:] for one in entry[0]]
    assert sorted(one[0][0] for one in ended) == [0, 1, 2, 3, 4, 5, 7]  # 6 and 8 were canceled
    assert {version for one in ended for version in one[3]} == {0, 1}
    assert not here[-1][3].busy


def test_the_saved_state_of_one_process_is_restored_in_another(remote):
    original = remote(Scripted()).engines()[0]
    original.swap(4)
    original.submit(requests(9))
    early = [one for _ in range(5) for one in step(original)]
    state = original.state()
    copy = remote(Scripted()).engines()[0]
    copy.load_state(state)
    copy.swap(4)
    assert (copy.occupancy(), copy.work) == (original.occupancy(), original.work)
    rest = [step(original) for _ in range(40)]
    assert [step(copy) for _ in range(40)] == rest
    assert len(early) + sum(map(len, rest)) == 9


def test_engines_that_sample_on_their_own_do_so_in_another_process_too(remote):
    engine, evaluator = remote(Served()).engines()
    assert not isinstance(engine, ExactEngine) and engine.version == NO_WEIGHTS
    for one, first in ((engine, 0), (evaluator, 9)):
        engine.swap(3 + first)
        one.submit(requests(9))
        finished, until = [], time.monotonic() + 60
        while len(finished) < 9 or engine.version != 3 + first:
            assert time.monotonic() < until
            finished += one.poll(0.01)
            assert engine is one or engine.poll() == []
        assert sorted(done.id for done in finished) == [(i, 0) for i in range(9)]
        assert {int(v) for done in finished for v in done.rollout.versions} == {3 + first}


# ------------------------------------------------------------------------------------------------------------- deaths


def test_the_error_names_a_killed_process(remote):
    process = remote(Scripted())
    engine = process.engines()[0]
    engine.submit(requests(4))
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(
        EngineDied, match=rf"generator 2 of 3 \(process {process._process.pid}\) was killed by signal 9"
    ):
        for _ in range(100):
            step(engine)


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("raise", r"^generator 2 of 3 \(process \d+\) failed: ValueError: no such model: nowhere/at-all$"),
        ("exit", r"generator 2 of 3 .* ended with exit code 7"),
        ("", r"(?s)generator 2 of 3 .* failed:.*Error"),
    ],
)
def test_the_error_names_a_failed_build_or_engine_with_its_reason(remote, fail, message):
    with pytest.raises(EngineDied, match=message) as raised:
        remote(Scripted(fail=fail)).engines()[0].load_state({"no": "state"})
    assert raised.value.trace.startswith("Traceback") == (fail != "exit")
