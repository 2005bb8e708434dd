"""Costs of the three staleness rules for long-tailed lengths, with a trainer twice as fast as full engines.

Lognormal lengths (sigma 1, cut at 10 times the mean), k = 8, batches of 16 groups of 16, slots for one batch. The
longest sequence takes as long as ten batches, an average group about four. benchmarks/coordinator.py prints the table.
"""

import pytest

from scalerl.training.config.base import replace
from scalerl.training.config.length import NoLengthControl
from scalerl.training.config.presets import LAB
from scalerl.training.config.recipe import PipelineRL
from scalerl.training.machines.measured import lognormal
from scalerl.training.machines.simulation import simulate_run
from scalerl.training.machines.speed import Speeds
from scalerl.training.placement.sizes import RunSizes

CONTROL = NoLengthControl(max_tokens=400)
LENGTHS = lognormal(40.0, 1.0, CONTROL)


@pytest.fixture(scope="module")
def figures():
    rows = {}
    for rule in ("wait", "mask", "drop"):
        off_policy = PipelineRL(max_lag=8, stale=rule)
        recipe = replace(
            LAB.recipe, prompts_per_step=16, generations_per_prompt=16, length=CONTROL, off_policy=off_policy
        )
        config = replace(LAB, recipe=recipe, rollouts=replace(LAB.rollouts, slots=256, expected_tokens=40))
        rows[rule] = simulate_run(
            RunSizes.of(config), Speeds(update_seconds=lambda lengths: 20.0), LENGTHS, updates=100
        )
    return rows


def length(figures):
    """Return the mean length of the trained completions divided by that of the population."""
    return figures.trained_tokens_per_s * figures.seconds / (256 * figures.updates) / LENGTHS.mean()


def test_wait_trains_every_length_within_the_bound_and_leaves_slots_empty(figures):
    assert 0.7 < figures["wait"].occupancy < 0.93
    assert abs(length(figures["wait"]) - 1) <= 0.02
    assert figures["wait"].stale_share == figures["wait"].dropped_share == 0


def test_drop_keeps_the_slots_full_and_trains_shorter_sequences(figures):
    assert figures["drop"].occupancy >= 0.93
    assert 0.92 < length(figures["drop"]) < 0.98
    assert figures["drop"].stale_share == 0 and 0.04 < figures["drop"].dropped_share < 0.14
