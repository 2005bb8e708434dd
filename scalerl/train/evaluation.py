"""Policy to evaluation point: held-out mean@k with its standard error. It knows scores, no training.

Every evaluation of a run uses the same random numbers for the same sample of the same prompt, so that the curve's
point-to-point noise is smaller than that of independent evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.tasks.scoring import Score
from scalerl.types import EvalPoint, Group, Prompt, Visit


def held_out_visits(prompts: Sequence[Prompt]) -> tuple[Visit, ...]:
    """Return the visits of an evaluation; their number never changes, so neither do their random streams."""
    return tuple(Visit(prompt, number=0, index=i) for i, prompt in enumerate(prompts))


def mean_at_k(passed_PK: np.ndarray) -> tuple[float, float]:
    """Return the mean over prompts of the share of samples that pass, and its standard error over prompts.

    Args:
        passed_PK: booleans, one row a prompt, one column a sample.
    """
    assert passed_PK.ndim == 2, passed_PK.shape
    rates_P = passed_PK.mean(axis=1)
    prompts = len(rates_P)
    stderr = float(rates_P.std(ddof=1) / np.sqrt(prompts)) if prompts > 1 else 0.0
    return float(rates_P.mean()), stderr


def by_task(groups: Sequence[Group], scores: Sequence[Score]) -> list[tuple[list[Group], list[Score]]]:
    """Return the groups of each task with the scores of their rollouts, tasks in the order of their names."""
    found: dict[str, tuple[list[Group], list[Score]]] = {}
    start = 0
    for group in groups:
        task_groups, task_scores = found.setdefault(group.visit.prompt.task, ([], []))
        task_groups.append(group)
        task_scores += scores[start : start + len(group.rollouts)]
        start += len(group.rollouts)
    assert start == len(scores), (start, len(scores))
    return [found[name] for name in sorted(found)]


def eval_point(
    groups: Sequence[Group], scores: Sequence[Score], *, step: int, device_hours: float, flops: float, tokens: int,
    eval_s: float,
) -> EvalPoint:  # fmt: skip
    """Summarise one evaluation.

    Args:
        groups: one a held-out prompt, of one task.
        scores: one a rollout, in order; a truncated rollout fails whatever its score.
        step: updates the weights had seen.
        device_hours: of training so far.
        flops: of training and generation so far.
        tokens: generated for training so far.
        eval_s: seconds the evaluation took, of all tasks together.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    samples = len(groups[0].rollouts)
    passed = np.asarray([s.passed and not r.truncated for s, r in zip(scores, rollouts, strict=True)])
    rate, stderr = mean_at_k(passed.reshape(len(groups), samples))
    return EvalPoint(
        step=step,
        device_hours=device_hours,
        flops=flops,
        tokens=tokens,
        task=groups[0].visit.prompt.task,
        pass_rate=rate,
        stderr=stderr,
        prompts=len(groups),
        samples_per_prompt=samples,
        truncated=float(np.mean([r.truncated for r in rollouts])),
        mean_tokens=float(np.mean([len(r) for r in rollouts])),
        eval_s=eval_s,
    )
