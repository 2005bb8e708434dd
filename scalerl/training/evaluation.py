"""Evaluations of a run: held-out mean@k with its standard error for each task, the check of weights, `stop_when`.

Every evaluation of a run uses the same random numbers for the same sample of the same prompt. The noise between points
of the curve is therefore smaller than for independent evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from scalerl.config import RunConfig
from scalerl.learner.base import BadGradient
from scalerl.models.policy import rounding
from scalerl.rollouts.pipeline import Interrupted, RolloutBatch
from scalerl.rollouts.replay import NotFinite, ReplayMismatch, check_difference
from scalerl.scaling import CurveError, fit
from scalerl.scaling.stop import judge, stop_rule
from scalerl.training.evaluator import Evaluated, Evaluator, Snapshot
from scalerl.training.metrics import environment_row
from scalerl.training.progress import TrainingFailed
from scalerl.training.rollout_rows import (
    DETAILED,
    LogRatios,
    evaluation_rows,
    packed,
    sample_rows,
    telling_group,
)
from scalerl.training.run import Run
from scalerl.training.run_info import default_axis
from scalerl.training.saved import commit, failure
from scalerl.types import BoolArray, EvalPoint, FloatArray, ScoredGroup
from scalerl.view.outlook import curve_of, points_by_task


def evaluate_if_due(run: Run, taken: RolloutBatch | None = None) -> None:
    """Evaluate on the schedule and at the end, unless the points of this step exist, and judge `stop_when`.

    With `evaluation.overlap`, an evaluation begins here and its points are written by a later call, when they are
    there. The call that begins the next one waits for them and judges them, so that a condition ends the run at a step
    that does not depend on time. At the end of the run, the last evaluation is waited for.

    Args:
        run: The run.
        taken: The last batch, of whose rollouts a sample is saved.
    """
    if run.evaluator is not None:
        _evaluate_beside(run, run.evaluator, taken)
    elif _is_due(run):
        run.records.phase("evaluating")
        evaluate(run, taken)
        _judge_conditions(run)
        run.records.phase("training")


def _is_due(run: Run) -> bool:
    """Return whether the present weights are to be evaluated, and have not been."""
    step = run.progress.step
    return run.is_due(run.config.evaluation.every) and not any(point.step == step for point in run.records.points)


def _evaluate_beside(run: Run, evaluator: Evaluator, taken: RolloutBatch | None) -> None:
    """Write a result that has arrived; if an evaluation is due, use the last result and begin the next."""
    _collect(run, evaluator)
    progress, under_way = run.progress, evaluator.under_way
    if _is_due(run) and not (under_way and under_way.step == progress.step):
        began = time.perf_counter()
        if taken:  # before the wait, which a stop may end
            sample = telling_group(taken.groups)
            _save_sample(run, sample, _replay(run, (), (), sample)[1])
        evaluator.spent_s += time.perf_counter() - began
        _collect(run, evaluator, wait=True)
        _judge_conditions(run)
        began = time.perf_counter()
        compute = run.compute.device_hours, progress.flops, progress.generator.tokens
        evaluator.begin(Snapshot(progress.step, *compute), run.learner.send)
        evaluator.spent_s += time.perf_counter() - began
    if run.finished:
        _collect(run, evaluator, wait=True)


def _judge_conditions(run: Run) -> None:
    """End the run if a condition of `stop_when` holds that was not overruled."""
    progress = run.progress
    if run.finished or not run.records.points:
        return
    open_rules = [text for text in run.config.stop_when if text not in progress.overruled]
    condition = first_to_stop(open_rules, run.records.points, run.config) if open_rules else None
    if condition is not None:
        progress.stopped_by, reason = condition
        run.records.display.note(f"step {progress.step}: stopping, because {reason}")


def evaluate(run: Run, taken: RolloutBatch | None = None) -> None:
    """Measure each task's held-out pass rate; the time it takes is excluded from the training time.

    A group of `taken` is saved too. Generation continues while the samples are scored and replayed; this time
    counts as training time of the generators.

    Raises:
        TrainingFailed: The generator's log-probabilities are not those of the weights, or not finite.
        Interrupted: A stop was requested; nothing was measured.
    """
    step, held_out, records, clock = run.progress.step, run.held_out, run.records, run.compute.clock
    began = time.perf_counter()
    try:
        groups, eval_s = run.pipeline.evaluate(step, run.learner.send, held_out.visits, held_out.samples, held_out.kept)
    except Interrupted:
        clock.leave_out(time.perf_counter() - began)
        raise
    began = time.perf_counter()
    sample = telling_group(taken.groups) if taken else None
    log_ratios, of_sample = _replay(run, held_out.replayed, groups, sample)
    generated_s = run.compute.generated_s()
    clock.leave_out(eval_s + time.perf_counter() - began)
    hours = run.compute.device_hours  # read once, so that the points of all tasks have the same compute
    clock.add(generated_s)  # after `hours`, because it is compute for later updates
    records.directory.append("rollouts.jsonl", evaluation_rows(run.text, step, groups, log_ratios, held_out.saved))
    _save_sample(run, sample, of_sample)
    flops, tokens = run.progress.flops, run.progress.generator.tokens
    records.evaluated(
        [
            eval_point(of_task, step=step, device_hours=hours, flops=flops, tokens=tokens, eval_s=eval_s)
            for of_task in by_task(groups)
        ]
    )


def _save_sample(run: Run, sample: ScoredGroup | None, log_ratios: Sequence[FloatArray | None]) -> None:
    """Save rollouts of a trained group, with the log ratios of the first ones."""
    if sample:
        rows = sample_rows(run.text, run.progress.step, sample, log_ratios)
        prompt, rollouts = sample.group.visit.prompt, sample.group.rollouts[: len(rows)]
        run.records.directory.add_samples(rows, [packed(rollout.after(prompt), rollout) for rollout in rollouts])


def _collect(run: Run, evaluator: Evaluator, wait: bool = False) -> None:
    """Write the points of the evaluation under way if they are there, or when they are.

    The time of a wait does not count as training time, except that of the generators.

    Raises:
        TrainingFailed: The log-probabilities are not those of the weights, or not finite.
        Interrupted: A stop was requested during the wait; a resume evaluates these weights again.
        RewardError, EvaluatorDied: From the evaluation process.
    """
    snapshot, began = evaluator.under_way, time.perf_counter()
    if snapshot is None:
        return
    try:
        result = evaluator.result()
        if result is None and wait:
            result = _awaited(run, evaluator)
    except ReplayMismatch as error:
        raise TrainingFailed(f"step {snapshot.step}: {error}") from None
    except NotFinite:
        reason = f"log-probabilities are not finite after update {snapshot.step}"
        raise failure(run, BadGradient(reason)) from None
    if result is None:
        evaluator.spent_s += time.perf_counter() - began
        return
    for note in result.notes:
        run.records.display.note(note)
    run.records.directory.append("rollouts.jsonl", result.rows)
    now, devices = time.perf_counter(), run.compute.devices.evaluating
    spent_s = evaluator.spent_s + now - began
    points = [replace(one, eval_devices=devices, eval_wait_s=spent_s) for one in result.points]
    run.records.evaluated(points, beside=True)
    evaluator.spent_s = time.perf_counter() - now  # counts for the next evaluation, because this one is written


def _awaited(run: Run, evaluator: Evaluator) -> Evaluated:
    """Wait for the result of the evaluation under way."""
    run.records.phase("evaluating")
    with run.compute.clock.paused():
        run.pipeline.mark()
        while (result := evaluator.result(0.2)) is None:
            run.learner.watch()
            if run.stop_requested():
                raise Interrupted
            if run.saves:  # a checkpoint that is complete does not wait for the evaluation
                run.compute.clock.add(run.compute.generated_s())  # up to here, because `commit` begins to count anew
                commit(run)
        run.compute.clock.add(run.compute.generated_s())
    run.records.phase("training")
    return result


def _replay(
    run: Run, numbers: Sequence[int], groups: Sequence[ScoredGroup], sample: ScoredGroup | None
) -> tuple[LogRatios, Sequence[FloatArray | None]]:
    """Check that the log-probabilities of a few samples agree with the learner's weights.

    Args:
        run: The run.
        numbers: Indices of the groups whose first rollout is replayed.
        groups: Groups of an evaluation.
        sample: A trained group.

    Returns:
        The log ratios by index of the group, and those of the first rollouts of `sample`.
    """
    if not run.config.evaluation.replayed:
        return {}, ()
    step = run.progress.step
    chosen = [(groups[number].group, groups[number].group.rollouts[0]) for number in numbers]
    chosen += [(sample.group, one) for one in sample.group.rollouts[:DETAILED]] if sample else []
    try:
        pairs = [(rollout.after(group.visit.prompt), rollout) for group, rollout in chosen]
        difference = run.learner.check(step, pairs)
    except BadGradient as error:
        raise failure(run, error) from None
    if difference is None:
        return {}, ()
    ratios = difference.log_ratios
    if difference.rollouts:
        run.progress.replay_difference = difference.largest
    try:
        check_difference(difference, step, rounding(getattr(torch, run.config.hardware.dtype)))
    except ReplayMismatch as error:
        raise TrainingFailed(f"step {step}: {error}") from None
    by_group = {n: own_N for n, own_N in zip(numbers, ratios, strict=False) if own_N is not None}
    return by_group, ratios[len(numbers) :]


def verdicts(groups: Sequence[ScoredGroup]) -> tuple[BoolArray, BoolArray]:
    """Return passed_PK and counted_PK of groups with K samples each: which samples passed, and which have a reward."""
    scores = [scored.scores for scored in groups]
    passed_PK, counted_PK = ([[getattr(one, name) for one in own] for own in scores] for name in ("passed", "counted"))
    return np.asarray(passed_PK, np.bool_), np.asarray(counted_PK, np.bool_)


def mean_at_k(passed_PK: BoolArray, counted_PK: BoolArray) -> tuple[float, float]:
    """Return the share of samples with a reward that pass, and its standard error over prompts.

    If all samples have one, the share is the mean over prompts. Otherwise, it is a ratio of two means over prompts, and
    the standard error is that of the ratio's linear approximation (Cochran 1977, eq. 6.13).

    Args:
        passed_PK: Booleans, one row per prompt and one column per sample.
        counted_PK: Whether each sample has a reward; without one it has not passed.

    Returns:
        The share, NaN without any reward, and its standard error, NaN if fewer than two prompts have one.
    """
    assert passed_PK.ndim == 2 and passed_PK.shape == counted_PK.shape, (passed_PK.shape, counted_PK.shape)
    assert not (passed_PK & ~counted_PK).any()
    counts_P = counted_PK.sum(axis=1)
    passes_P, counts_P = passed_PK.sum(axis=1)[counts_P > 0], counts_P[counts_P > 0]
    prompts = len(counts_P)
    if not prompts:
        return math.nan, math.nan
    weights_P, rates_P = counts_P / counts_P.mean(), passes_P / counts_P
    mean = float((weights_P * rates_P).mean())
    linear_P = weights_P * rates_P + (1.0 - weights_P) * mean
    stderr = float(linear_P.std(ddof=1) / np.sqrt(prompts)) if prompts > 1 else math.nan
    return mean, stderr


def by_task(groups: Sequence[ScoredGroup]) -> list[list[ScoredGroup]]:
    """Return the groups of each task, sorted by the name of the task."""
    tasks: dict[str, list[ScoredGroup]] = {}
    for scored in groups:
        tasks.setdefault(scored.group.visit.prompt.task, []).append(scored)
    return [tasks[name] for name in sorted(tasks)]


def eval_point(
    groups: Sequence[ScoredGroup], *, step: int, device_hours: float, flops: float, tokens: int, eval_s: float
) -> EvalPoint:
    """Summarize one evaluation of one task.

    Args:
        groups: One group per held-out prompt; a truncated rollout has not passed.
        step: Version of the evaluated weights.
        device_hours: Device-hours of training so far.
        flops: FLOPs of training and generation so far.
        tokens: Tokens generated for training so far.
        eval_s: Duration of the whole evaluation, all tasks together, seconds.
    """
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    told = environment_row(groups)
    passed_PK, counted_PK = verdicts(groups)
    rate, stderr = mean_at_k(passed_PK, counted_PK)
    return EvalPoint(
        step=step,
        device_hours=device_hours,
        flops=flops,
        tokens=tokens,
        task=groups[0].group.visit.prompt.task,
        pass_rate=rate,
        stderr=stderr,
        prompts=len(groups),
        samples_per_prompt=len(groups[0].scores),
        truncated=float(np.mean([r.any_truncated for r in rollouts])),
        failed=1.0 - float(counted_PK.mean()),
        mean_tokens=float(np.mean([sum(map(len, r.sequences)) for r in rollouts])),
        eval_s=eval_s,
        turns=told.get("turns"),
        tool_calls=told.get("tool_calls"),
        reply_wait_s=told.get("reply_wait_s"),
    )


def first_to_stop(conditions: Sequence[str], points: Sequence[EvalPoint], config: RunConfig) -> tuple[str, str] | None:
    """Return the first condition that holds with the reason, or None; with fewer than five evaluations none holds.

    Args:
        conditions: Conditions of `stop_when`, as written.
        points: Evaluations of the run so far.
        config: Configuration, which determines the tasks with a forecast and the compute axis.
    """
    curves = points_by_task(points)
    fits = []
    with suppress(CurveError):  # too few points for a fit
        fits = [fit(curve_of(curves[task], default_axis(config))) for task in config.main_tasks]
    for condition in conditions:
        judged = judge(stop_rule(condition), fits)
        if judged.holds:
            return condition, judged.text
    return None
