"""Pass rates that are recorded in the curriculum."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from scalerl.core.types import GeneratorStats
from scalerl.training.engines.pipeline import RolloutBatch
from scalerl.training.loop.progress import Progress
from scalerl.training.loop.run import record_pass_rates


@pytest.mark.parametrize(("passed", "of"), [(9, 10), (18, 20), (27, 30), (7, 10), (3, 5)])
def test_pass_rates_are_computed_in_double_precision(passed, of):
    """In single precision 9/10, 18/20 and 27/30 are below 0.9, so such prompts would never be retired."""
    assert recorded((torch.arange(of) < passed)[None], torch.ones(1, of, dtype=torch.bool)) == [("record", passed / of)]


def test_rollouts_without_a_reward_do_not_enter_the_pass_rate_and_a_prompt_without_any_keeps_its_last_one():
    # 9 of 9 rollouts with a reward pass, then 1 of 2; the last group has none
    passed = torch.tensor([[True] * 9 + [False], [True] + [False] * 9, [False] * 10])
    counted = torch.tensor([[True] * 9 + [False], [True] * 2 + [False] * 8, [False] * 10])
    assert recorded(passed, counted) == [("record", 1.0), ("record", 0.5), ("forget",)]


def recorded(passed, counted):
    """Return the calls of the curriculum for a batch."""
    calls = []
    curriculum = SimpleNamespace(
        record=lambda visit, rate: calls.append(("record", rate)), forget=lambda visit: calls.append(("forget",))
    )
    run = SimpleNamespace(curriculum=curriculum, progress=Progress(), recent_stats=deque())
    groups = (SimpleNamespace(group=SimpleNamespace(visit=None)),) * len(passed)
    taken = RolloutBatch(0, groups, GeneratorStats(0, 0, 0.0))
    record_pass_rates(run, taken, SimpleNamespace(passed_PG=passed, counted_PG=counted))
    assert run.progress.trained_groups == len(passed)
    return calls
