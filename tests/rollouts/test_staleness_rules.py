"""Costs of the three staleness rules for long-tailed lengths, with a trainer twice as fast as full engines.

Lognormal lengths (sigma 1, cut at 10 times the mean), k = 8, batches of 16 groups of 16, slots for one batch. The
longest sequence takes as long as ten batches, an average group about four. benchmarks/coordinator.py prints the table.
"""

import pytest

from scalerl.rollouts.local.simulated import lognormal_lengths, measure_rule


@pytest.fixture(scope="module")
def figures():
    return {rule: measure_rule(rule, slots=256, updates=200) for rule in ("wait", "mask", "drop")}


def test_the_population_has_the_expected_mean_and_median():
    """The mean of a lognormal cut at 10 means: 1 - E[excess] with sigma 1 is 0.99; its median exp(-1/2) = 0.607."""
    lengths = lognormal_lengths(1000.0)
    assert lengths.max() == 10_000 and lengths.min() >= 1
    assert abs(lengths.mean() / 1000 - 0.99) < 0.01
    assert abs(float(sorted(lengths)[len(lengths) // 2]) / 1000 - 0.607) < 0.01


def test_mask_keeps_the_slots_full_and_trains_every_length(figures):
    assert figures["mask"].occupancy >= 0.93
    assert abs(figures["mask"].length - 1) <= 0.02
    assert figures["mask"].dropped_share == 0
    assert 0.03 < figures["mask"].stale_share < 0.15  # the cost: tokens that carry no loss


def test_wait_trains_every_length_within_the_bound_and_leaves_slots_empty(figures):
    assert 0.7 < figures["wait"].occupancy < 0.93
    assert abs(figures["wait"].length - 1) <= 0.02
    assert figures["wait"].stale_share == figures["wait"].dropped_share == 0


def test_drop_keeps_the_slots_full_and_trains_shorter_sequences(figures):
    assert figures["drop"].occupancy >= 0.93
    assert 0.92 < figures["drop"].length < 0.98
    assert figures["drop"].stale_share == 0 and 0.04 < figures["drop"].dropped_share < 0.14
