"""The pipeline over a scripted engine in a real process; each token equals the version that sampled it."""

import time

import numpy as np
import pytest
import torch
from scripted_engine import STOP
from scripted_worker import LosingChannel, NumberChannel, Scored, ScriptedSpec, evaluated, visits, weights

from scalerl.core.processes import ProcessDied
from scalerl.training.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.training.engines.coordinator import NewVersion
from scalerl.training.engines.pipeline import Interrupted, Pipeline, WorkerDied
from scalerl.training.engines.shared_memory import SharedMemoryChannel
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.models.weights import WeightLayout


def train(spec, updates, delay=lambda: 0.0, shared=False):
    """Run a trainer that only waits; return its batches."""
    k, size = spec.off_policy.max_lag, spec.per_batch
    began = time.monotonic()  # fail instead of hanging if the generator waits forever
    channel, send = (shared_memory(), send_tensors) if shared else (NumberChannel(), weights)
    pipeline = Pipeline(spec, channel, Scored, stop_requested=lambda: time.monotonic() - began > 60)
    pipeline.start(send, 0, visits(0, size * (k + 1)))
    batches = []
    try:
        for step in range(updates):
            batches.append(pipeline.take(size, now=step))
            time.sleep(delay())
            next_visits = visits(size * (k + 1 + step), size)
            pipeline.publish(NewVersion(step + 1, used(spec.off_policy, step + 1), next_visits), send)
    finally:
        pipeline.close()
    return batches


def used(policy, version):
    """Return whether anything is sampled with a version: a round samples only with its first one."""
    return version % getattr(policy, "batches", 1) == 0


def shared_memory():
    return SharedMemoryChannel(WeightLayout.of(tensors(0)))


def tensors(version):
    return [("before", torch.ones(3)), ("version", torch.tensor([version]))]


def send_tensors(version, channel):
    channel.send(version, tensors(version))


def groups_of(batches):
    return [(batch, scored.group) for batch in batches for scored in batch.groups]


def content(batches):
    return [
        (group.visit.index, [(r.tokens.tolist(), r.versions.tolist(), r.logps.tolist()) for r in group.rollouts])
        for _, group in groups_of(batches)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [PipelineRL(max_lag=0), PipelineRL(max_lag=1), PipelineRL(max_lag=8), PpoOffPolicy(batches=4)], ids=str
)
def test_no_trained_token_is_staler_than_k_and_every_token_has_its_version(policy):
    ages, mixed = [], 0
    for batch, group in groups_of(train(ScriptedSpec(policy), updates=24, shared=True)):
        for rollout in group.rollouts:
            sampled = rollout.tokens[rollout.tokens != STOP]
            np.testing.assert_array_equal(sampled, rollout.versions[: len(sampled)])
            ages += [batch.number - int(v) for v in rollout.versions]
            mixed += len(set(rollout.versions.tolist())) > 1
    assert min(ages) >= 0 and max(ages) <= policy.max_lag
    if policy == PipelineRL(max_lag=8):
        assert max(ages) >= 2 and mixed > 10  # the generator ran ahead, and weights changed in flight
    if policy.max_lag == 0 or isinstance(policy, PpoOffPolicy):
        assert mixed == 0


def test_weights_that_an_engine_lost_are_sent_again_while_the_trainer_waits():
    sent = []

    def send(version, channel):
        sent.append(version)
        if sent.count(version) == 1:
            weights(version, channel)

    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=0), delay_s=0.05), LosingChannel(), Scored)
    pipeline.start(send, 0, visits(0, 3))
    try:
        pipeline.take(3, now=0)
    finally:
        pipeline.close()
    assert sent == [0, 0]
    assert pipeline.notes() == ["the latest weights are sent again: an engine was restarted"]


@pytest.mark.parametrize(
    ("into_engines", "order"), [(False, ["sent 4", "started", "ready"]), (True, ["started", "ready", "sent 4"])]
)
def test_a_channel_into_running_engines_gets_the_first_weights_when_they_are_ready(into_engines, order):
    events = []

    class Process:
        def __init__(self, run):
            events.append("started")

        def receive(self):
            if "ready" in events:
                raise WorkerDied("it has ended")
            time.sleep(0.05)
            events.append("ready")
            return "ready", None

    channel = WeightChannel()
    channel.capacity, channel.into_engines = 2, into_engines
    pipeline = Pipeline(None, channel, Scored, launch=Process)
    pipeline.start(lambda version, channel: events.append(f"sent {version}"), 4)
    pipeline.wait_ready()
    assert events == order


def test_a_wait_without_end_is_an_error():
    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=8)), NumberChannel(), Scored)
    pipeline.start(weights, 0, visits(0, 2))  # prompts for two groups; the first update needs three
    with pytest.raises(WorkerDied, match=r"the schedule is stuck, .*per_batch=3.*started=2"):
        pipeline.take(3, now=0)
    pipeline.close()


def test_a_killed_generator_raises_in_take():
    with pytest.raises(WorkerDied, match="was killed by signal 9"):
        train(ScriptedSpec(PipelineRL(), kill_at_tick=5), updates=20)


def test_waiting_ends_when_a_stop_is_requested():
    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=0)), NumberChannel(), Scored, stop_requested=lambda: True)
    pipeline.start(weights, 0, ())  # no prompts: no batch can arrive
    try:
        with pytest.raises(Interrupted):
            pipeline.take(3, now=0)
    finally:
        pipeline.close()


@pytest.mark.parametrize("wait", [lambda p: p.take(3, now=1), lambda p: p.snapshots_done([1])], ids=["batch", "other"])
def test_waiting_ends_when_a_process_that_the_run_needs_has_ended(wait):
    ended = []

    def watch():
        if ended:
            raise ProcessDied("trainer rank 1 of 2 ended")

    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=0)), NumberChannel(), Scored, watch=watch)
    pipeline.start(weights, 0, visits(0, 3))
    try:
        pipeline.take(3, now=0)
        ended.append(True)
        with pytest.raises(ProcessDied, match="rank 1"):
            wait(pipeline)  # for what comes only after new weights
    finally:
        pipeline.close()


@pytest.mark.parametrize("policy", [PipelineRL(max_lag=8), PpoOffPolicy(batches=4)], ids=str)
def test_every_snapshot_is_taken_even_if_several_versions_become_active_before_one_tick(policy, tmp_path):
    """Many slots finish batches close together, and the trainer publishes a version before the last one is due."""
    pipeline = Pipeline(ScriptedSpec(policy, slots=54, lag_ticks=30, delay_s=0.002), NumberChannel(), Scored)
    pipeline.start(weights, 0, visits(0, 27))
    saved = []
    try:
        for step in range(16):
            pipeline.take(3, now=step)
            pipeline.publish(NewVersion(step + 1, used(policy, step + 1), visits(27 + 3 * step, 3)), weights)
            pipeline.snapshot(step + 1, tmp_path / str(step + 1))
            saved += pipeline.snapshots_done()
        saved += pipeline.snapshots_done(wait_for=set(range(1, 13)) - set(saved))
    finally:
        pipeline.close()
    assert saved[:12] == list(range(1, 13))


def test_an_evaluation_does_not_change_training_rollouts():
    def with_evaluation(evaluate):
        spec = ScriptedSpec(PipelineRL(max_lag=2))
        pipeline = Pipeline(spec, NumberChannel(), Scored)
        pipeline.start(weights, 0, visits(0, 9))
        batches = []
        for step in range(6):
            batches.append(pipeline.take(3, now=step))
            pipeline.publish(NewVersion(step + 1, True, visits(9 + 3 * step, 3)), weights)
            if evaluate:
                scored, seconds = evaluated(pipeline, step + 1, visits(1000, 4), 2)
                tokens = {int(t) for g in scored for r in g.group.rollouts for t in r.tokens if t != STOP}
                assert tokens <= {step + 1} and [g.group.visit.index for g in scored] == [1000, 1001, 1002, 1003]
                assert all(len(g.group.rollouts) == len(g.scores) == 2 for g in scored) and seconds > 0
        pipeline.close()
        return content(batches)

    assert with_evaluation(True) == with_evaluation(False)


def test_only_generation_after_a_mark_is_counted_without_waiting_or_evaluation():
    """Without a lag the generators sample batch 0 and then wait for its update; a step takes 0.02 s."""
    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=2), lag_ticks=0, delay_s=0.02), NumberChannel(), Scored)
    try:
        pipeline.start(weights, 0, visits(0, 9))
        pipeline.mark()  # read before the first step
        stats = pipeline.take(3, now=0).stats
        assert stats.tick >= 3 and pipeline.busy_since_mark() >= 0.02 * stats.tick
        pipeline.mark()
        pipeline.mark()  # the answer to the previous mark is skipped
        time.sleep(0.05)
        assert pipeline.busy_since_mark() == 0
        assert pipeline.busy_since_mark() == 0  # counts from the call before
        evaluated(pipeline, 0, visits(1000, 4), 2)
        time.sleep(0.05)
        assert pipeline.busy_since_mark() == 0
    finally:
        pipeline.close()
