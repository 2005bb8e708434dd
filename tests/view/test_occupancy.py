"""The warning about empty slots: its conditions, and its remedies."""

import math

import pytest

from scalerl.config import LAB
from scalerl.config.base import replace
from scalerl.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.view.warnings import WINDOW, empty_slots, news, occupancy


def config(off_policy, slots=256):
    recipe = replace(LAB.recipe, off_policy=off_policy)
    return replace(LAB, recipe=recipe, rollouts=replace(LAB.rollouts, slots=slots))


def warning_of(configuration, occupancy, mean=30.0, longest=60, steps=60):
    """Return the steps at which a warning is news, with the warning."""
    rows = [
        {"step": s, "occupancy": occupancy, "completion_tokens_mean": mean, "completion_tokens_max": longest}
        for s in range(1, steps + 1)
    ]
    told = set()
    warnings = [(at, news(empty_slots(rows[:at], configuration), told)) for at in range(1, steps + 1)]
    return [(at, fresh[0][1]) for at, fresh in warnings if fresh]


def test_the_warning_is_given_once_after_the_ramp_and_a_full_window():
    (only,) = warning_of(config(PipelineRL()), 0.5)
    assert only[0] == 9 + WINDOW and only[1].startswith("only 50% of the 256 slots were busy over the last 20 steps")


def test_no_warning_at_the_limit_or_before_a_full_window():
    assert warning_of(config(PipelineRL()), 0.7) == [] == warning_of(config(PipelineRL()), 0.1, steps=9 + WINDOW - 1)


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


def test_a_step_without_occupancy_is_left_out_of_the_mean():
    rows = [{"step": step, "occupancy": value} for step, value in ((2, 0.5), (3, math.nan), (4, 0.7), (5, None))]
    assert occupancy(rows, config(PipelineRL(max_lag=0))) == pytest.approx(0.6)


def test_a_fall_is_told_again_after_a_recovery_and_other_warnings_are_not():
    told = set()
    both = {"falling t": "fell", "slots": "empty"}
    assert news(both, told) == list(both.items()) and news(both, told) == []
    assert news({}, told) == [] and news(both, told) == [("falling t", "fell")]
