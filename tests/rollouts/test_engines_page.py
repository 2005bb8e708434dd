"""The complete engine of the examples, run with the coordinator."""

import math
import runpy

import numpy as np
import pytest
from doc_pages import ROOT
from scripted_worker import visits

from scalerl.training.engines.activation import AtTick
from scalerl.training.engines.coordinator import Coordinator, NewVersion
from scalerl.training.engines.schedule import PipelineSchedule


@pytest.fixture(scope="module")
def engine_class():
    return runpy.run_path(str(ROOT / "examples/uniform_engine.py"))["UniformEngine"]


def train(engines, updates, size=3, k=4):
    """Run a coordinator with a simulated trainer; return the batches."""
    coordinator = Coordinator(engines, PipelineSchedule(size, AtTick(5), k), group_size=2, seed=0, evaluators=engines)
    coordinator.begin(0, visits(0, size * (k + 1)))
    batches = []
    while len(batches) < updates:
        for formed in coordinator.step():
            batches.append(formed)
            coordinator.receive(NewVersion(formed.number + 1, visits=visits(size * (k + 1 + formed.number), size)))
    return batches[:updates]


@pytest.mark.parametrize("count", [1, 2])
def test_the_engine_of_the_example_trains_within_the_staleness_bound(engine_class, count):
    asked = []
    engines = [engine_class(4, vocabulary=8, longest=20, receive=asked.append) for _ in range(count)]
    batches = train(engines, updates=20)
    groups = [(formed.number, group) for formed in batches for group in formed.groups.values()]
    assert len(groups) == 60 and max(number - group.oldest_version for number, group in groups) <= 4
    lengths = [len(rollout) for _, group in groups for rollout in group.rollouts]
    # a stop has probability 1/8: the mean of a geometric length cut at 20 is 8 (1 - (7/8)^20) = 7.45
    assert abs(np.mean(lengths) - 8 * (1 - (7 / 8) ** 20)) < 1.5
    for _, group in groups:
        for rollout in group.rollouts:
            np.testing.assert_allclose(rollout.logps, -math.log(8), rtol=1e-6)
            assert rollout.truncated == (rollout.tokens[-1] != 0) and (np.diff(rollout.versions) >= 0).all()
    assert sorted(set(asked)) == list(range(max(asked) + 1)) and len(asked) == count * (max(asked) + 1)
