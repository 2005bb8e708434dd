"""Warnings about a run: the one about empty slots with its remedies, and the events of events.jsonl."""

import pytest

from scalerl.core.types import EvalPoint
from scalerl.training.config import LAB
from scalerl.training.config.base import replace
from scalerl.training.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.training.loop.warnings import AVERAGED_STEPS, RunWarnings


def config(off_policy, slots=256):
    recipe = replace(LAB.recipe, off_policy=off_policy)
    return replace(LAB, recipe=recipe, rollouts=replace(LAB.rollouts, slots=slots))


def judge_of(configuration):
    return RunWarnings(configuration.recipe, configuration.rollouts.slots, configuration.main_tasks, "flops")


def warning_of(configuration, occupancy, mean=30.0, longest=60, steps=60):
    """Return the steps at which a warning is news, with the warning."""
    rows = [
        {"step": s, "occupancy": occupancy, "completion_tokens_mean": mean, "completion_tokens_max": longest}
        for s in range(1, steps + 1)
    ]
    judge = judge_of(configuration)
    return [(row["step"], text) for row in rows for text in judge.news(judge.step(row))]


def test_the_warning_is_given_once_after_the_ramp_and_a_full_window():
    (only,) = warning_of(config(PipelineRL()), 0.5)
    assert only[0] == 9 + AVERAGED_STEPS and only[1].startswith(
        "only 50% of the 256 slots were busy over the last 20 steps"
    )


def test_no_warning_at_the_limit_or_before_a_full_window():
    assert (
        warning_of(config(PipelineRL()), 0.7)
        == []
        == warning_of(config(PipelineRL()), 0.1, steps=9 + AVERAGED_STEPS - 1)
    )


@pytest.mark.parametrize(
    ("off_policy", "longest", "remedy"),
    [
        # (8 + 1) * 30 / 600 * 256 = 115.2 slots can be kept busy
        (PipelineRL(), 600, "set rollouts.slots to 115 or fewer, or recipe.off_policy.stale to mask"),
        (PipelineRL(), 60, "rollouts.slots below 256"),
        (PipelineRL(stale="mask"), 60, "rollouts.slots below 256"),
        (PpoOffPolicy(batches=8), 60, "recipe.off_policy.kind to pipeline"),
        (PipelineRL(max_lag=0), 60, "max_lag above 0"),
    ],
)
def test_the_remedy_follows_from_the_schedule_and_the_lengths(off_policy, longest, remedy):
    (only,) = warning_of(config(off_policy), 0.4, mean=30, longest=longest)
    assert remedy in only[1]


def test_a_warning_is_an_event_when_it_begins_and_when_it_is_over_and_is_printed_once():
    judge = judge_of(config(PipelineRL()))
    rates = [0.0] * 20 + [0.12] * 20 + [0.0] * 20 + [0.12] * 20
    events = [judge.step({"step": step, "truncation_rate": rate}) for step, rate in enumerate(rates, 1)]
    # the mean of 20 steps is above 5% from the 9th truncated step on (0.054), above 10% from the 17th on (0.102)
    kinds = [(event.step, event.kind, event.key) for part in events for event in part]
    assert kinds[:4] == [
        (29, "warning", "truncated"), (37, "over", "truncated"), (37, "warning", "unstable"), (44, "over", "unstable"),
    ]  # fmt: skip
    printed = [text for part in events for text in judge.news(part)]
    assert len(printed) == 2 and printed[1].startswith("10% of the rollouts are truncated: above 10%")


def test_the_warning_of_a_falling_curve_is_printed_again_after_a_recovery():
    judge = judge_of(LAB)
    rising = [0.2 + 0.4 * min(1.0, i / 10) for i in range(20)]
    texts = []
    for rates in (rising, [*rising, *[0.3] * 5], [*rising, *[0.3] * 5, *[0.6] * 5], [*rising, *[0.3] * 15]):
        points = [point(i, rate) for i, rate in enumerate(rates)]
        texts.append(judge.news(judge.evaluated(points)))
    assert [len(part) for part in texts] == [0, 1, 0, 1] and "has fallen by 0.3" in texts[1][0]


def test_a_resumed_run_continues_its_warnings():
    rows = [{"step": step, "truncation_rate": 0.12} for step in range(1, 31)]
    judge = judge_of(LAB)
    events = [event._asdict() for row in rows for event in judge.step(row)]
    again = judge_of(LAB)
    again.go_on(rows, events)
    assert again.step({"step": 31, "truncation_rate": 0.12}) == [] == again.news([])


def point(number, rate):
    return EvalPoint(
        step=number, device_hours=float(number), flops=1e12 * number, tokens=number, task="arithmetic", pass_rate=rate,
        stderr=0.01, prompts=100, samples_per_prompt=4, truncated=0.0, mean_tokens=40.0, eval_s=1.0,
    )  # fmt: skip
