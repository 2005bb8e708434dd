"""Replay: matching log-probabilities are accepted, and wrong weights are detected."""

import dataclasses

import numpy as np
import pytest
from sampled import samples
from tiny_models import tiny_model

from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.replay import check_current, largest_difference
from scalerl.training.models.policy import Policy

PROMPTS = [(5, 9, 2), (7, 3, 11, 4, 6, 8, 2), (20,), (7, 3)]


def policies(name, seeds=(0, 1, 2)):
    return {version: Policy(tiny_model(name, seed)) for version, seed in enumerate(seeds)}


def sample(of_version, swap_at=(), rule=None, name="qwen3", **sampling):
    """Return (prompt, rollout) pairs of the torch engine, swapped to the next version before the given ticks."""
    receive = {version: dict(policy.weights()) for version, policy in of_version.items()}.__getitem__
    settings = {"rule": rule, "sampling": Sampling(**sampling), "swaps": swap_at, "receive": receive}
    return samples(Policy(tiny_model(name)), PROMPTS, slots=4, **settings)


def test_rollouts_across_two_swaps_replay_up_to_rounding():
    versions = policies("qwen3")
    pairs = sample(versions, swap_at=(4, 9))
    assert all(set(rollout.versions.tolist()) == {0, 1, 2} for _, rollout in pairs)
    difference = largest_difference(versions, pairs)
    assert (difference.rollouts, difference.tokens) == (4, 4 * 14)
    assert difference.largest < 2e-5 and difference.mean <= difference.largest


@pytest.mark.parametrize("wrong", ["a version late", "a stale head"])
def test_an_incomplete_swap_is_detected(wrong):
    true = policies("qwen3-untied")
    output = policies("qwen3-untied")
    if wrong == "a stale head":  # the engine has the new body and the old head
        true[1].model.lm_head.weight.data.copy_(true[0].model.lm_head.weight)
        true[2].model.lm_head.weight.data.copy_(true[0].model.lm_head.weight)
    pairs = sample(true, swap_at=(6,), name="qwen3-untied")
    if wrong == "a version late":
        pairs = [
            (prompt, dataclasses.replace(rollout, versions=np.roll(rollout.versions, 1))) for prompt, rollout in pairs
        ]
    assert largest_difference(output, pairs).largest > 0.05


# ----------------------------------------------------------------------------------------------------- during a run


def test_only_rollouts_of_the_trainers_version_are_compared():
    versions = policies("qwen3")
    old, crossing, new = sample(versions), sample(versions, swap_at=(0, 5)), sample(versions, swap_at=(0,))
    difference = check_current(versions[1], 1, [*old, *crossing, *new])
    assert difference is not None and (difference.rollouts, difference.tokens) == (4, 56)
    assert difference.largest < 2e-5
    none = check_current(versions[1], 1, [*old, *crossing])
    assert none is not None and (none.rollouts, none.tokens) == (0, 0)
    assert sum(ratios is not None for ratios in none.log_ratios) == len(old) + len(crossing)
    assert check_current(versions[1], 1, []) is None
    assert check_current(versions[1], 1, [*new, *new], most=5).rollouts == 5


def test_inserted_tokens_are_not_compared():
    rule = LengthRule(thinking=(3, 5), answer_tokens=4, max_tokens=9, phrase=(30, 31), end_tag=(31,))
    versions = policies("qwen3")
    pairs = sample(versions, rule=rule)
    injected = sum(int((~rollout.sampled).sum()) for _, rollout in pairs)
    difference = check_current(versions[0], 0, pairs)
    assert injected >= 2 and difference.tokens == sum(len(rollout) for _, rollout in pairs) - injected
    assert difference.largest < 2e-5
