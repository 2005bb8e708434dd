"""Evaluation points: held-out mean@k with its standard error, for each task.

Every evaluation of a run uses the same random numbers for the same sample of the same prompt. The noise between points
of the curve is therefore smaller than for independent evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.types import EvalPoint, Prompt, ScoredGroup, Visit


def held_out_visits(prompts: Sequence[Prompt]) -> tuple[Visit, ...]:
    """Return the visits of an evaluation; their `number` is always 0, so their random streams never change."""
    return tuple(Visit(prompt, number=0, index=i) for i, prompt in enumerate(prompts))


def mean_at_k(passed_PK: np.ndarray) -> tuple[float, float]:
    """Return the mean over prompts of the share of samples that pass, and its standard error over prompts.

    Args:
        passed_PK: Booleans, one row per prompt and one column per sample.
    """
    assert passed_PK.ndim == 2, passed_PK.shape
    rates_P = passed_PK.mean(axis=1)
    prompts = len(rates_P)
    stderr = float(rates_P.std(ddof=1) / np.sqrt(prompts)) if prompts > 1 else 0.0
    return float(rates_P.mean()), stderr


def by_task(groups: Sequence[ScoredGroup]) -> list[list[ScoredGroup]]:
    """Return the groups of each task, sorted by the name of the task."""
    found: dict[str, list[ScoredGroup]] = {}
    for scored in groups:
        found.setdefault(scored.group.visit.prompt.task, []).append(scored)
    return [found[name] for name in sorted(found)]


def eval_point(
    groups: Sequence[ScoredGroup], *, step: int, device_hours: float, flops: float, tokens: int, eval_s: float
) -> EvalPoint:
    """Summarize one evaluation of one task.

    Args:
        groups: One group per held-out prompt; a truncated rollout has failed.
        step: Version of the evaluated weights.
        device_hours: Device-hours of training so far.
        flops: FLOPs of training and generation so far.
        tokens: Tokens generated for training so far.
        eval_s: Duration of the whole evaluation, all tasks together, seconds.
    """
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    rate, stderr = mean_at_k(np.asarray([[score.passed for score in scored.scores] for scored in groups]))
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
        truncated=float(np.mean([r.truncated for r in rollouts])),
        mean_tokens=float(np.mean([len(r) for r in rollouts])),
        eval_s=eval_s,
    )
