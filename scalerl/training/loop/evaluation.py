"""One evaluation: held-out prompts of a source, what a tally keeps of them, and a replay of a few samples.

A run that pauses, the process that evaluates beside a run, and `scalerl eval` call `evaluate`, with suites or the
held-out prompts of a run. Every evaluation uses the same random numbers for the same sample of the same prompt. The
noise between points of the curve is therefore smaller than for independent evaluations.
Axes: P prompts, K samples per prompt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from scalerl.core.types import BoolArray, EvalPoint, ScoredGroup, Visit
from scalerl.training.engines.engine import Engine, generate
from scalerl.training.engines.pipeline import scored_groups
from scalerl.training.engines.replay import Difference
from scalerl.training.learner.base import PromptedRollout
from scalerl.training.loop.evaluator import Evaluated, HeldOut, Snapshot
from scalerl.training.loop.metrics import environment_row
from scalerl.training.loop.rollout_rows import by_task, evaluated_rows
from scalerl.training.models.text import TokenText
from scalerl.training.rewards.scoring import ScoringService

Add = Callable[[int, ScoredGroup], None]
"""Gets index and scored group of each prompt, in the order in which they are complete."""

AnswerSource = Callable[[Add], float]
"""Samples and scores prompts, and returns the seconds that this took."""


class Tally(Protocol):
    """What an evaluation keeps of its rollouts."""

    def add(self, index: int, scored: ScoredGroup) -> None:
        """Add the scored group of a prompt."""


AnyTally = TypeVar("AnyTally", bound=Tally)


def evaluate(
    source: AnswerSource, tally: AnyTally, replay: Callable[[AnyTally], Difference | None] = lambda tally: None
) -> tuple[float, Difference | None]:
    """Sample, score and replay prompts.

    Args:
        source: The pipeline of a run, or engines (`sample`).
        tally: What is kept: points and a few rows (`PointTally`), or all texts (`suites.Texts`).
        replay: Function that recomputes log-probabilities with the evaluated weights, the learner's or those of a
            policy, and raises if they differ from those of the engines.

    Returns:
        Seconds of sampling and scoring, and the difference found by the replay.
    """
    return source(tally.add), replay(tally)


def sample(
    engines: Sequence[Engine],
    visits: Sequence[Visit],
    samples: int | Sequence[int],
    seed: int,
    scoring: ScoringService,
    add: Add,
    finished: Callable[[int], None] = lambda count: None,
) -> float:
    """Source of an evaluation: sample on engines that do nothing else; arguments as for `generate`."""
    began = time.perf_counter()
    groups = generate(engines, visits, samples, seed, "evaluate", finished=finished)
    for index, scored in scored_groups(groups, scoring.submit):
        add(index, scored)
    return time.perf_counter() - began


class PointTally:
    """Tally of a run: a point for each task, and a few rollouts as rows."""

    def __init__(self, held_out: HeldOut, text: TokenText) -> None:
        """Start without groups.

        Args:
            held_out: What is evaluated.
            text: Decoder of tokens.
        """
        self._held_out, self._text = held_out, text
        self._groups: dict[int, ScoredGroup] = {}

    def add(self, index: int, scored: ScoredGroup) -> None:
        """Add the scored group of a prompt, with the tokens of the rollouts that are saved or replayed."""
        rollouts = tuple(
            rollout if (index, sample) in self._held_out.kept else rollout.without_tokens()
            for sample, rollout in enumerate(scored.group.rollouts)
        )
        self._groups[index] = replace(scored, group=replace(scored.group, rollouts=rollouts))

    def replayed(self) -> list[PromptedRollout]:
        """Return the first rollouts of groups spread over the prompts."""
        groups = [self._groups[index].group for index in self._held_out.replayed]
        return [(group.rollouts[0].after(group.visit.prompt), group.rollouts[0]) for group in groups]

    def evaluated(self, of: Snapshot, eval_s: float, difference: Difference | None) -> Evaluated:
        """Return points and rows.

        Args:
            of: The evaluated weights.
            eval_s: Duration of the evaluation, seconds.
            difference: Result of the replay.
        """
        groups = [self._groups[index] for index in range(len(self._groups))]
        ratios = zip(self._held_out.replayed, difference.log_ratios if difference else (), strict=False)
        log_ratios = {index: log_ratio_N for index, log_ratio_N in ratios if log_ratio_N is not None}
        tasks = by_task([scored.group.visit.prompt.task for scored in groups])
        points = [eval_point([groups[index] for index in indices], of, eval_s) for indices in tasks]
        rows = evaluated_rows(self._text, of.step, groups, log_ratios, self._held_out.saved)
        return Evaluated(points, rows)


class Verdicts:
    """Which samples of a task passed, and how long and how often truncated they were."""

    def __init__(self, prompts: int, samples: int) -> None:
        """Start without samples.

        Args:
            prompts: P.
            samples: K.
        """
        self.passed_PK, self.counted_PK = np.zeros((2, prompts, samples), np.bool_)
        """Which samples passed, and which have a reward."""
        self._truncated, self.tokens = 0, 0

    def add(self, index: int, scored: ScoredGroup) -> None:
        """Add the scored group of a prompt."""
        rollouts = scored.group.rollouts
        self.passed_PK[index] = [score.passed for score in scored.scores]
        self.counted_PK[index] = [score.counted for score in scored.scores]
        self._truncated += sum(any(one.truncated for one in rollout.sequences) for rollout in rollouts)
        self.tokens += sum(len(sequence) for rollout in rollouts for sequence in rollout.sequences)

    def shares(self) -> dict[str, Any]:
        """Return the shares of samples that were truncated or have no reward, and the mean number of tokens."""
        count = self.passed_PK.size
        failed = 1.0 - float(self.counted_PK.mean())
        return {"truncated": self._truncated / count, "failed": failed, "mean_tokens": self.tokens / count}


def eval_point(groups: Sequence[ScoredGroup], of: Snapshot, eval_s: float) -> EvalPoint:
    """Summarize one evaluation of one task.

    Args:
        groups: One group per held-out prompt.
        of: The evaluated weights.
        eval_s: Duration of the whole evaluation, all tasks together, seconds.
    """
    verdicts, environment = Verdicts(len(groups), len(groups[0].scores)), environment_row(groups)
    columns: dict[str, Any] = {name: environment.get(name) for name in ("turns", "tool_calls", "reply_wait_s")}
    for index, scored in enumerate(groups):
        verdicts.add(index, scored)
    rate, stderr = mean_at_k(verdicts.passed_PK, verdicts.counted_PK)
    return EvalPoint(
        **asdict(of),
        task=groups[0].group.visit.prompt.task,
        pass_rate=rate,
        stderr=stderr,
        prompts=len(groups),
        samples_per_prompt=len(groups[0].scores),
        **verdicts.shares(),
        eval_s=eval_s,
        **columns,
    )


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
