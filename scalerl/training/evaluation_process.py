"""The evaluation process: an engine and verifiers of its own, which evaluate one snapshot of the weights at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from scalerl.config.data import TaskData
from scalerl.core.remote import PASSED, Run, serve
from scalerl.models.loading import load_tokenizer
from scalerl.models.policy import Policy
from scalerl.models.routing import routing_of
from scalerl.models.text import TokenText
from scalerl.rollouts.build import EngineSpec, GeneratorSpec, with_programs
from scalerl.rollouts.engine import POLL_S, Engine
from scalerl.rollouts.pipeline import without_tokens
from scalerl.rollouts.replay import NotFinite, ReplayMismatch, check_current
from scalerl.rollouts.turns import with_turns
from scalerl.rollouts.weights import WeightChannel
from scalerl.tasks.scoring import ScoringService, make_scorers
from scalerl.tasks.user_rewards import RewardError
from scalerl.training.evaluation import by_task, eval_point
from scalerl.training.evaluator import Evaluated, HeldOut, Snapshot, scored_groups
from scalerl.training.rollout_rows import evaluation_rows
from scalerl.types import FloatArray, ScoredGroup

NICENESS = 5
"""Added to the niceness of the process on CPU, so that trainer and generators get the cores first. It cannot be taken
back while the loop waits, so a larger number would make other programs of the machine delay the run."""

FINDINGS = (*PASSED, RewardError, ReplayMismatch, NotFinite)
"""Errors of an evaluation that the loop raises."""


def evaluation_process(
    generator: GeneratorSpec, tasks: Sequence[TaskData], channel: WeightChannel, held_out: HeldOut
) -> Run:
    """Return the function that the evaluation process of a run runs.

    Args:
        generator: What its engine is made from.
        tasks: The tasks, whose verifiers and reward functions it starts.
        channel: Channel that carries the weights.
        held_out: What is evaluated.
    """
    spec = EvaluationSpec(replace(generator, load_state=None), tuple(tasks), channel, held_out)
    return partial(serve, spec, FINDINGS)


@dataclass(frozen=True)
class EvaluationSpec:
    """Picklable function that makes the evaluation of a run, inside its process."""

    generator: GeneratorSpec
    tasks: tuple[TaskData, ...]
    channel: WeightChannel
    held_out: HeldOut

    def __call__(self) -> Evaluation:
        """Load the model."""
        return Evaluation(self)


def engine_of(spec: EngineSpec, note: Callable[[str], None]) -> tuple[Engine, Policy | None]:
    """Make the engine of evaluations, and a policy for replay; a vLLM server's GPU has no room for one.

    Args:
        spec: Specification of the engine.
        note: Function that gets messages about the server.
    """
    if spec.generator.placement.engine != "vllm":
        return spec.evaluator()
    from scalerl.rollouts.vllm.launch import server_engines

    ((_, evaluating),) = server_engines([spec], note)
    return evaluating, None


class Evaluation:
    """Evaluates snapshots with an engine that only evaluates."""

    def __init__(self, spec: EvaluationSpec) -> None:
        """Load model and tokenizer, and start the verifiers."""
        generator = spec.generator
        self._held_out, self._channel, self._generator = spec.held_out, spec.channel, generator
        if generator.hardware.device == "cpu":
            os.nice(NICENESS)
        self._notes: list[str] = []
        engine_spec = EngineSpec(generator, spec.channel, 0, evaluating=True)
        engine, self._policy = engine_of(engine_spec, self._notes.append)
        self._text = TokenText(load_tokenizer(generator.policy.path, generator.policy.revision), generator.stop)
        self._engine: Engine = engine
        if generator.environments:
            ((self._engine,),) = with_turns([[engine]], self._text, generator.scoring)
        if generator.agents:
            ((self._engine,),) = with_programs([[self._engine]], self._text)
        self._scoring = ScoringService(make_scorers(spec.tasks, generator.scoring), self._text.judged)

    def evaluate(self, snapshot: Snapshot) -> Evaluated:
        """Sample, score and replay the held-out prompts with the weights of a snapshot.

        Raises:
            RewardError: Too many rewards failed.
            ReplayMismatch, NotFinite: The log-probabilities are not those of the weights.
        """
        began, flops, step = time.perf_counter(), self._engine.work.flops, snapshot.step
        self._engine.swap(step)
        while self._engine.version != step:
            self._engine.poll(POLL_S)
        held_out, seed = self._held_out, self._generator.generation.seed
        scored = scored_groups([self._engine], held_out.visits, held_out.samples, seed, self._scoring)
        lighter = {index: without_tokens(group, index, held_out.kept) for index, group in scored}
        groups = [lighter[index] for index in sorted(lighter)]
        ratios, difference = self._replay(step, groups)
        eval_s = time.perf_counter() - began
        points = [
            replace(
                eval_point(
                    of_task,
                    step=step,
                    device_hours=snapshot.device_hours,
                    flops=snapshot.flops,
                    tokens=snapshot.tokens,
                    eval_s=eval_s,
                ),
                eval_flops=self._engine.work.flops - flops,
                replay_difference=difference,
            )
            for of_task in by_task(groups)
        ]
        rows = evaluation_rows(self._text, step, groups, ratios, self._held_out.saved)
        notes = [*self._notes, *self._scoring.notes()]
        self._notes.clear()
        return Evaluated(points, rows, notes)

    def _replay(self, step: int, groups: list[ScoredGroup]) -> tuple[dict[int, FloatArray], float | None]:
        """Compare log-probabilities of the engine with those of the weights that were sent.

        Returns:
            The log ratios by index of the group, and the largest difference; None if nothing was compared.
        """
        if self._policy is None:
            return {}, None  # a vLLM server, which reports the version of every token
        firsts = [(groups[number].group, groups[number].group.rollouts[0]) for number in self._held_out.replayed]
        if not firsts:
            return {}, None
        self._policy.load_weights(step, self._channel.receive(step))  # whatever the engine did with them
        if self._policy.sizes.experts:
            routing_of(self._policy).use(None)
        pairs = [(rollout.after(group.visit.prompt), rollout) for group, rollout in firsts]
        found = check_current(self._policy, step, pairs, temperature=self._generator.recipe.temperature)
        if found is None:
            return {}, None
        ratios = zip(self._held_out.replayed, found.log_ratios, strict=True)
        return {number: own_N for number, own_N in ratios if own_N is not None}, found.largest
