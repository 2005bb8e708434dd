"""Held-out mean@k against values computed by hand."""

import math
from dataclasses import replace

import numpy as np
from texts import rollout

from scalerl.training.evaluation import by_task, eval_point, held_out_visits, mean_at_k
from scalerl.types import EvalPoint, Group, Outcome, Prompt, Score, ScoredGroup


def test_mean_at_k_and_its_error_over_prompts():
    rate, stderr = mean_at_k(np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool))
    # rates .5, 1, .25: mean .58333, sample variance .145833, error sqrt(.145833 / 3)
    assert math.isclose(rate, 7 / 12) and math.isclose(stderr, math.sqrt(0.14583333333 / 3), rel_tol=1e-9)


def test_a_single_prompt_has_no_error():
    assert mean_at_k(np.array([[True, False]])) == (0.5, 0.0)


def test_a_point_counts_passes_truncations_and_tokens():
    prompts = [Prompt(f"{i:016x}", "q", (1,), "a", "t", {}) for i in range(2)]
    scores = (Score(1.0, True), Score(-1.0, False))
    groups = [
        ScoredGroup(Group(visit, tuple(rollout([4, 5], truncated=cut) for cut in (False, True)), 0), scores)
        for visit in held_out_visits(prompts)
    ]
    point = eval_point(groups, step=5, device_hours=0.1, flops=2.0, tokens=3, eval_s=0.5)
    assert (point.pass_rate, point.truncated, point.mean_tokens) == (0.5, 0.5, 2.0)
    assert (point.prompts, point.samples_per_prompt, point.step, point.task) == (2, 2, 5, "t")
    assert "turns" not in point.to_dict() and EvalPoint.of(point.to_dict()) == point


def test_a_point_of_an_environment_has_turns_calls_and_the_time_of_replies():
    visit = held_out_visits([Prompt("0" * 16, "q", (1,), "a", "t", {})])[0]
    ends = [Outcome(3, "environment", 1.0, "", {}, calls=2, waited_s=0.5), Outcome(1, "tokens", 0.0, "", {})]
    group = Group(visit, tuple(replace(rollout([4, 5]), outcome=end) for end in ends), 0)
    scored = ScoredGroup(group, (Score(1.0, True), Score(-1.0, False)))
    point = eval_point([scored], step=5, device_hours=0.1, flops=2.0, tokens=3, eval_s=0.5)
    row = point.to_dict()
    assert (row["turns"], row["tool_calls"], row["reply_wait_s"]) == (2.0, 1.0, 0.25) and EvalPoint.of(row) == point


def test_groups_and_scores_are_split_by_task():
    tasks = ["b", "a", "b"]
    prompts = [Prompt(f"{i:016x}", "q", (1,), "a", task, {}) for i, task in enumerate(tasks)]
    groups = [
        ScoredGroup(
            Group(visit, (rollout([4, 5]), rollout([4, 5])), 0), (Score(2.0 * i, True), Score(2.0 * i + 1, True))
        )
        for i, visit in enumerate(held_out_visits(prompts))
    ]
    first, second = by_task(groups)
    assert [g.group.visit.index for g in first] == [1] and rewards(first) == [2, 3]
    assert [g.group.visit.index for g in second] == [0, 2] and rewards(second) == [0, 1, 4, 5]


def rewards(groups):
    return [score.reward for scored in groups for score in scored.scores]
