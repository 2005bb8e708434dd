"""What the curriculum is told of a batch."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from scalerl.rollouts.pipeline import RolloutBatch
from scalerl.training.session import Progress, Session
from scalerl.types import GeneratorStats


@pytest.mark.parametrize(("passed", "of"), [(9, 10), (18, 20), (27, 30), (7, 10), (3, 5)])
def test_a_pass_rate_reaches_the_share_that_it_is(passed, of):
    """In single precision 9/10, 18/20 and 27/30 are below 0.9, and such prompts were never retired."""
    told = []
    curriculum = SimpleNamespace(record=lambda visit, rate: told.append(rate))
    run = SimpleNamespace(curriculum=curriculum, progress=Progress(), _lately=deque())
    taken = RolloutBatch(0, (SimpleNamespace(group=SimpleNamespace(visit=None)),), GeneratorStats(0, 0, 0.0))
    Session.record_pass_rates(run, taken, (torch.arange(of) < passed)[None])
    assert told == [passed / of]
