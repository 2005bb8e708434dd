"""What is due during a run: its evaluations, with a pause or beside training, and the conditions that end it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from scalerl.core.run_files import SAVED_SAMPLES
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import CurveError, fit
from scalerl.reading.curves.stop import judge, stop_rule
from scalerl.reading.pages.outlook import curve_of, points_by_task
from scalerl.training.config import RunConfig
from scalerl.training.engines.pipeline import Interrupted, RolloutBatch
from scalerl.training.engines.replay import Difference, NotFinite, ReplayMismatch, check_difference
from scalerl.training.learner.base import BadGradient, PromptedRollout
from scalerl.training.loop.evaluation import Add, PointTally, evaluate
from scalerl.training.loop.evaluator import Evaluated, Evaluator, Snapshot
from scalerl.training.loop.progress import TrainingFailed
from scalerl.training.loop.rollout_rows import DETAILED, packed_tokens, sample_rows, telling_group
from scalerl.training.loop.run import Run
from scalerl.training.loop.run_info import default_axis
from scalerl.training.loop.saved import commit, failure
from scalerl.training.models.policy import rounding


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
        _evaluate_here(run, taken)
        _judge_conditions(run)
        run.records.phase("training")


def _is_due(run: Run) -> bool:
    """Return whether the present weights are to be evaluated, and have not been."""
    step = run.progress.step
    return run.is_due(run.config.evaluation.every) and not any(point.step == step for point in run.records.points)


def _evaluate_here(run: Run, taken: RolloutBatch | None) -> None:
    """Evaluate while training pauses, and save a group of the last batch; this takes no training time.

    Generation continues while the samples are scored and replayed; this time counts as training time of the
    generators.

    Raises:
        TrainingFailed: The log-probabilities are not those of the weights, or not finite.
        Interrupted: A stop was requested; nothing was measured.
    """
    step, held_out, clock = run.progress.step, run.held_out, run.compute.clock
    tally, began, waited_s = PointTally(held_out, run.text), time.perf_counter(), 0.0

    def source(add: Add) -> float:
        nonlocal waited_s
        eval_s = run.pipeline.evaluate(step, run.learner.send, held_out.visits, held_out.samples, add)
        waited_s = time.perf_counter() - began - eval_s  # for the weights to become active, which is training
        return eval_s

    try:
        eval_s, difference = evaluate(source, tally, lambda tally: _replay(run, tally.replayed()))
        _save_sample(run, taken)
        generated_s = run.compute.generated_s()
    finally:
        clock.leave_out(time.perf_counter() - began - waited_s)
    result = tally.evaluated(_snapshot(run), eval_s, difference)
    clock.add(generated_s)  # after the snapshot, because it is compute for later updates
    run.records.directory.append("rollouts.jsonl", result.rows)
    run.records.evaluated(result.points)


def _evaluate_beside(run: Run, evaluator: Evaluator, taken: RolloutBatch | None) -> None:
    """Write a result that has arrived; if an evaluation is due, use the last result and begin the next."""
    _collect(run, evaluator)
    under_way = evaluator.under_way
    if _is_due(run) and not (under_way and under_way.step == run.progress.step):
        began = time.perf_counter()
        _save_sample(run, taken)  # before the wait, which a stop may end
        evaluator.spent_s += time.perf_counter() - began
        _collect(run, evaluator, wait=True)
        _judge_conditions(run)
        began = time.perf_counter()
        evaluator.begin(_snapshot(run), run.learner.send)
        evaluator.spent_s += time.perf_counter() - began
    if run.finished:
        _collect(run, evaluator, wait=True)


def _snapshot(run: Run) -> Snapshot:
    progress = run.progress
    return Snapshot(progress.step, run.compute.device_hours, progress.flops, progress.generator.tokens)


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


def _save_sample(run: Run, taken: RolloutBatch | None) -> None:
    """Save rollouts of a group of the last batch, with the log ratios of the first ones."""
    if taken is not None:
        scored = telling_group(taken.groups)
        prompt, rollouts = scored.group.visit.prompt, scored.group.rollouts[:SAVED_SAMPLES]
        given = [(rollout.after(prompt), rollout) for rollout in rollouts]
        difference = _replay(run, given[:DETAILED])
        rows = sample_rows(run.text, run.progress.step, scored, difference.log_ratios if difference else ())
        run.records.directory.add_samples(rows, [packed_tokens(*pair) for pair in given])


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
    with _failing(run, snapshot.step):
        result = evaluator.result()
        if result is None and wait:
            result = _awaited(run, evaluator)
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


def _replay(run: Run, rollouts: Sequence[PromptedRollout]) -> Difference | None:
    """Check that log-probabilities agree with the learner's weights; return None without `evaluation.replayed`."""
    step = run.progress.step
    if not run.config.evaluation.replayed or not rollouts:
        return None
    with _failing(run, step):
        difference = run.learner.check(step, rollouts)
        if difference is not None and difference.rollouts:
            run.progress.replay_difference = difference.largest
            check_difference(difference, step, rounding(getattr(torch, run.config.hardware.dtype)))
    return difference


@contextmanager
def _failing(run: Run, step: int) -> Iterator[None]:
    """Raise TrainingFailed if the log-probabilities of a step's weights are not finite, or those of other weights."""
    try:
        yield
    except ReplayMismatch as error:
        raise TrainingFailed(f"step {step}: {error}") from None
    except (BadGradient, NotFinite):
        raise failure(run, BadGradient(f"log-probabilities are not finite after update {step}")) from None


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
