"""The evaluation process: an engine and verifiers of its own, which evaluate one snapshot of the weights at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from scalerl.core.remote import PASSED, Body, serve
from scalerl.training.config.data import TaskData
from scalerl.training.engines.build import EngineSpec, GeneratorSpec
from scalerl.training.engines.engine import ENGINE_POLL_S, Engine
from scalerl.training.engines.replay import Difference, NotFinite, ReplayMismatch, check_current
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.loop.evaluation import PointTally, evaluate, sample
from scalerl.training.loop.evaluator import Evaluated, HeldOut, Snapshot
from scalerl.training.models.policy import Policy
from scalerl.training.models.routing import routing_of
from scalerl.training.rewards.scoring import ScoringService, make_scorers
from scalerl.training.rewards.user_rewards import RewardError

NICENESS = 5
"""Added to the niceness of the process on CPU, so that trainer and generators get the cores first. It cannot be taken
back while the loop waits, so a larger number would make other programs of the machine delay the run."""

FINDINGS = (*PASSED, RewardError, ReplayMismatch, NotFinite)
"""Errors of an evaluation that the loop raises."""


def evaluation_process(
    generator: GeneratorSpec, tasks: Sequence[TaskData], channel: WeightChannel, held_out: HeldOut
) -> Body:
    """Return the function that the evaluation process of a run runs.

    Args:
        generator: What its engine is made from.
        tasks: The tasks, whose verifiers and reward functions it starts.
        channel: Channel that carries the weights.
        held_out: What is evaluated.
    """
    spec = partial(SnapshotEvaluator, replace(generator, load_state=None), tuple(tasks), channel, held_out)
    return partial(serve, spec, FINDINGS)


def engine_of(spec: EngineSpec, note: Callable[[str], None]) -> tuple[Engine, Policy | None]:
    """Make the engine of evaluations, and a policy for replay; a vLLM server's GPU has no room for one.

    Args:
        spec: Specification of the engine.
        note: Function that gets messages about the server.
    """
    if spec.generator.placement.engine != "vllm":
        return spec.evaluator()
    from scalerl.training.engines.vllm.launch import server_engines

    (pair,) = server_engines([spec], note)
    return pair.evaluation, None


class SnapshotEvaluator:
    """Evaluates snapshots with an engine that only evaluates."""

    def __init__(
        self, generator: GeneratorSpec, tasks: Sequence[TaskData], channel: WeightChannel, held_out: HeldOut
    ) -> None:
        """Load model and tokenizer, and start the verifiers; arguments as for `evaluation_process`."""
        self._held_out, self._channel, self._generator = held_out, channel, generator
        if generator.device == "cpu":
            os.nice(NICENESS)
        self._notes: list[str] = []
        engine, self._policy = engine_of(EngineSpec(generator, channel, 0, evaluating=True), self._notes.append)
        self._engine = generator.episodes()(engine)
        self._text = generator.text()
        self._scoring = ScoringService(make_scorers(tasks, generator.scoring), self._text.judged)

    def evaluate(self, snapshot: Snapshot) -> Evaluated:
        """Sample, score and replay the held-out prompts with the weights of a snapshot.

        Raises:
            RewardError: Too many rewards failed.
            ReplayMismatch, NotFinite: The log-probabilities are not those of the weights.
        """
        began, flops, step = time.perf_counter(), self._engine.work.flops, snapshot.step
        self._engine.swap(step)
        while self._engine.version != step:
            self._engine.poll(ENGINE_POLL_S)
        visits, samples, seed = self._held_out.visits, self._held_out.samples, self._generator.decoding.seed
        source = partial(sample, [self._engine], visits, samples, seed, self._scoring)
        tally = PointTally(self._held_out, self._text)
        _, difference = evaluate(source, tally, partial(self._replay, step))
        found = tally.evaluated(snapshot, time.perf_counter() - began, difference)
        notes = *self._notes, *self._scoring.notes()
        self._notes.clear()
        largest, flops = difference.largest if difference else None, self._engine.work.flops - flops
        points = [replace(point, eval_flops=flops, replay_difference=largest) for point in found.points]
        return replace(found, points=points, notes=notes)

    def _replay(self, step: int, tally: PointTally) -> Difference | None:
        """Compare log-probabilities of the engine with those of the weights that were sent."""
        policy, rollouts = self._policy, tally.replayed()
        if policy is None or not rollouts:  # a vLLM server, which reports the version of every token
            return None
        policy.load_weights(step, self._channel.receive(step))  # whatever the engine did with them
        if policy.sizes.experts:
            routing_of(policy).use(None)
        return check_current(policy, step, rollouts, temperature=self._generator.decoding.sampling.temperature)
