"""Held-out mean@k by hand."""

import math

import numpy as np

from scalerl.tasks.scoring import Score
from scalerl.train.evaluation import by_task, eval_point, held_out_visits, mean_at_k
from scalerl.types import Group, Prompt, Rollout


def test_mean_at_k_and_its_error_over_prompts():
    rate, stderr = mean_at_k(np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool))
    # rates .5, 1, .25: mean .58333, sample variance .145833, error sqrt(.145833 / 3)
    assert math.isclose(rate, 7 / 12) and math.isclose(stderr, math.sqrt(0.14583333333 / 3), rel_tol=1e-9)


def test_a_single_prompt_has_no_error():
    assert mean_at_k(np.array([[True, False]])) == (0.5, 0.0)


def test_a_truncated_sample_fails_whatever_its_score():
    prompts = [Prompt(f"{i:016x}", "q", (1,), "a", "t", {}) for i in range(2)]
    groups = [Group(visit, tuple(rollout(cut) for cut in (False, True)), 0) for visit in held_out_visits(prompts)]
    point = eval_point(
        groups, [Score(1.0, True)] * 4, step=5, device_hours=0.1, flops=2.0, tokens=3, eval_s=0.5
    )  # fmt: skip
    assert (point.pass_rate, point.truncated, point.mean_tokens) == (0.5, 0.5, 2.0)
    assert (point.prompts, point.samples_per_prompt, point.step) == (2, 2, 5)


def test_each_task_keeps_its_groups_and_the_scores_of_their_rollouts():
    tasks = ["b", "a", "b"]
    prompts = [Prompt(f"{i:016x}", "q", (1,), "a", task, {}) for i, task in enumerate(tasks)]
    groups = [Group(visit, (rollout(False), rollout(False)), 0) for visit in held_out_visits(prompts)]
    scores = [Score(float(i), True) for i in range(6)]
    (first, first_scores), (second, second_scores) = by_task(groups, scores)
    assert [g.visit.index for g in first] == [1] and [s.reward for s in first_scores] == [2, 3]
    assert [g.visit.index for g in second] == [0, 2] and [s.reward for s in second_scores] == [0, 1, 4, 5]


def rollout(truncated):
    return Rollout(np.array([4, 5]), np.zeros(2, np.float32), np.zeros(2, np.int32), np.ones(2, bool), truncated, False)
