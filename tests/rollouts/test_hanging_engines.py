"""A run whose engines hang in a swap, like a server that does not answer, stops soon and with a checkpoint."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from runs import wait_for
from scripted_worker import NumberChannel, Scored, ScriptedSpec, evaluated, visits, weights

from scalerl.core.processes import stopped_process
from scalerl.training.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.training.engines import pipeline as module
from scalerl.training.engines.coordinator import NewVersion
from scalerl.training.engines.pipeline import Interrupted, NoAnswer, Pipeline
from scalerl.training.loop import complete
from scalerl.training.loop.complete import run_to_end

POLICIES = [PipelineRL(max_lag=8), PpoOffPolicy(batches=4)]


class Run:
    """A trainer that only waits, with a generator whose engines never take a version or a newer one."""

    def __init__(self, monkeypatch, policy=POLICIES[0], hangs_at=1, **changed):
        monkeypatch.setattr(module, "GENERATOR_END_S", 0.3)  # a stopped process is killed after it
        monkeypatch.setattr(module, "STOP_PATIENCE_S", 0.3)
        monkeypatch.setattr(module, "STOP_ANSWER_S", 60.0)  # NoAnswer, if an answer never comes
        self.spec = replace(ScriptedSpec(policy, slots=12, eager=True, hangs_at=hangs_at), **changed)
        self.stopped_at, self.trained, self.drawn = float("inf"), Counter(), 0
        self.pipeline = Pipeline(
            self.spec, NumberChannel(), Scored, stop_requested=lambda: time.monotonic() > self.stopped_at
        )

    def start(self, version=0, drawn=None):
        first = self.new(3 * (self.spec.off_policy.max_lag + 1)) if drawn is None else ()
        self.drawn = self.drawn if drawn is None else drawn
        self.pipeline.start(weights, version, first)
        self.pipeline.wait_ready()

    def new(self, count):
        self.drawn += count
        return visits(self.drawn - count, count)

    def step(self, number):
        batch = self.pipeline.take(3, now=number)
        self.trained.update(scored.group.visit.index for scored in batch.groups)
        used = (number + 1) % getattr(self.spec.off_policy, "batches", 1) == 0
        self.pipeline.publish(NewVersion(number + 1, used, self.new(3)), weights)

    def stop(self, after_s=0.0):
        self.stopped_at = time.monotonic() + after_s

    def save(self, version, path):
        """Save and return the generator's state."""
        self.pipeline.snapshot(version, path)
        assert self.pipeline.snapshots_done({version}) == [version]
        return pickle.loads((path / "generator").read_bytes())


@pytest.fixture
def begin(monkeypatch):
    """Return a function that makes runs; all are closed at the end."""
    made = []

    def make(*arguments, **changed):
        made.append(Run(monkeypatch, *arguments, **changed))
        return made[-1]

    yield make
    for run in made:
        run.pipeline.close()


def resumes(run, begin, state, path, version, steps=12):
    """Assert that a run with healthy engines continues from a state, and that no prompt is lost or trained twice."""
    again = begin(run.spec.off_policy, hangs_at=1 << 30, state=path)
    again.start(state["sampling_version"], run.drawn)
    for number in range(version, version + steps):
        again.step(number)
    trained = run.trained + again.trained
    final = again.save(version + steps, path)
    waiting = [visit["index"] for visit in final["queue"] + final["dropped"] + [entry[1] for entry in final["open"]]]
    waiting += [group["visit"]["index"] for group in final["finished"].values()]
    waiting += [group["visit"]["index"] for _, groups, _, _ in final["untrained"] for group in groups.values()]
    assert Counter(waiting) + trained == Counter(range(again.drawn))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_publishing_ends_although_the_channel_is_full_and_the_step_is_saved(policy, begin, tmp_path):
    """With PPO-off-policy, the engines hang in the swap to the first version of the second round."""
    run = begin(policy, hangs_at=1 if policy == POLICIES[0] else 4)
    run.start()
    run.stop(after_s=1.5)
    number = 0
    while not run.pipeline._settled and number < (16 if policy == POLICIES[0] else 4):
        run.step(number)
        number += 1
    assert number >= 4
    state = run.save(number, tmp_path / "state")
    assert state["schedule"]["counts"][0] == state["sampling_version"] == number
    resumes(run, begin, state, tmp_path / "state", number)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_an_evaluation_ends_and_the_step_is_saved(policy, begin, tmp_path):
    """With PPO-off-policy, the engines hang in the swap for the evaluation in the middle of a round."""
    run = begin(policy)
    run.start()
    run.step(0)
    run.stop(after_s=0.3)
    with pytest.raises(Interrupted) as caught:
        evaluated(run.pipeline, 1, visits(1000, 4), 2)
    assert caught.type is Interrupted
    state = run.save(1, tmp_path / "state")
    assert state["schedule"]["counts"][0] == 1 and state["sampling_version"] == (1 if policy == POLICIES[0] else 0)
    resumes(run, begin, state, tmp_path / "state", 1)


WAITS = {
    "a snapshot": lambda run: run.pipeline.snapshots_done({1}),
    "an evaluation": lambda run: evaluated(run.pipeline, 1, visits(1000, 4), 2),
    "seconds of generation": lambda run: run.pipeline.busy_since_mark(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_generator_that_does_not_answer_ends_the_wait_after_a_stop(wait, begin, monkeypatch):
    run = begin()
    monkeypatch.setattr(module, "STOP_ANSWER_S", 0.5)
    run.start()
    run.step(0)
    os.kill(run.pipeline._worker.pid, signal.SIGSTOP)
    run.stop(after_s=0.2)
    began = time.monotonic()
    with pytest.raises(NoAnswer):
        WAITS[wait](run)
    assert time.monotonic() - began > 0.9


@pytest.mark.slow
def test_a_stopped_generator_in_lockstep_ends_the_wait_after_a_stop(begin, monkeypatch):
    monkeypatch.setattr(module, "STOP_SUSPENDED_S", 0.5)
    run = begin(hangs_at=-1, eager=False)
    run.start()
    run.step(0)
    pid = run.pipeline._worker.pid
    os.kill(pid, signal.SIGSTOP)
    run.stop(after_s=0.2)
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=rf"process {pid} is stopped \(SIGSTOP\)"):
        run.pipeline.snapshots_done({1})
    assert time.monotonic() - began > 0.6
    run.pipeline.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_a_generator_that_goes_on_before_the_limit_is_waited_for(begin, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "STOP_SUSPENDED_S", 60.0)
    run = begin(hangs_at=-1, eager=False)
    run.start()
    run.step(0)
    pid = run.pipeline._worker.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
    run.stop()
    assert run.save(1, tmp_path / "state")["sampling_version"] in (0, 1)


def test_messages_to_a_stopped_generator_do_not_block_the_trainer_or_the_end(begin):
    run = begin(hangs_at=-1, eager=False)
    run.start()
    pid = run.pipeline._worker.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(20):  # 20 x 1 MB fill every pipe
        run.pipeline._send("publish", NewVersion(number + 1, False, (bytes(1 << 20),)))
    run.pipeline.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_the_stopped_process_of_a_family_is_found():
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        try:
            assert stopped_process(parent.pid) is None
            os.kill(child, signal.SIGSTOP)
            wait_for(lambda: stopped_process(parent.pid) == child)
            assert stopped_process(parent.pid, descendants=False) is None and stopped_process(child) == child
            assert stopped_process(1 << 22) is None
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_transfer_into_servers_that_hang_ends_after_a_stop(monkeypatch):
    monkeypatch.setattr(module, "STOP_PATIENCE_S", 0.2)
    monkeypatch.setattr(module, "STOP_ANSWER_S", 0.3)
    channel, stopped_at = SimpleNamespace(capacity=2, into_engines=True), time.monotonic() + 0.3
    pipeline = Pipeline(None, channel, Scored, stop_requested=lambda: time.monotonic() > stopped_at)
    began, ended = time.monotonic(), threading.Event()
    with pytest.raises(NoAnswer):
        pipeline.publish(NewVersion(1), lambda version, channel: ended.wait())
    ended.set()
    assert time.monotonic() - began > 0.7


@pytest.mark.parametrize(
    ("when", "raised", "after"),
    [
        ("training", NoAnswer, ["evaluation", "training"]),
        ("commit", NoAnswer, ["evaluation", "training", "commit"]),
        ("evaluation", Interrupted, ["evaluation", "commit", "write", "commit"]),
    ],
)
def test_a_stopped_run_ends_with_its_last_checkpoint_or_a_new_one(when, raised, after, tmp_path, monkeypatch):
    """Without an answer of the generator there is none; in the last evaluation there is one, and no end."""
    calls = []

    def at(name):
        def call(*arguments, **options):
            calls.append(name)
            if name == when:
                raise raised

        return call

    run = stopped_run(tmp_path, at, monkeypatch)
    run.finished = when == "evaluation"
    (line,), finished = run_to_end(run)
    assert not finished and calls == after
    ending = ", without a checkpoint of it, because" if raised is NoAnswer else "; continue with:"
    assert line.startswith(f"stopped at step 7{ending} ") and line.endswith(f"with: scalerl resume {tmp_path}")


def stopped_run(path, at, monkeypatch):
    """Return a run at step 7 with a checkpoint of step 4, whose parts call `at`."""
    for function, name in (("evaluate_if_due", "evaluation"), ("save", "write"), ("commit", "commit")):
        monkeypatch.setattr(complete, function, at(name))

    def stop_requested():
        at("training")()
        return True

    return SimpleNamespace(
        progress=SimpleNamespace(step=7),
        finished=False,
        stop_requested=stop_requested,
        pipeline=SimpleNamespace(wait_ready=lambda: None),
        records=SimpleNamespace(
            directory=SimpleNamespace(path=path),
            phase=lambda name: None,
        ),
        compute=SimpleNamespace(clock=SimpleNamespace(start=lambda: None)),
        config=SimpleNamespace(recipe=None),
        store=SimpleNamespace(steps=lambda: [4]),
    )
