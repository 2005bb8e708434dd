"""Pass rates that are recorded in the curriculum."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from scalerl.rollouts.pipeline import RolloutBatch
from scalerl.training.progress import Progress
from scalerl.training.session import Session
from scalerl.types import GeneratorStats


@pytest.mark.parametrize(("passed", "of"), [(9, 10), (18, 20), (27, 30), (7, 10), (3, 5)])
def test_pass_rates_are_computed_in_double_precision(passed, of):
    """In single precision 9/10, 18/20 and 27/30 are below 0.9, so such prompts would never be retired."""
    told = []
    curriculum = SimpleNamespace(record=lambda visit, rate: told.append(rate))
    run = SimpleNamespace(curriculum=curriculum, progress=Progress(), _lately=deque())
    taken = RolloutBatch(0, (SimpleNamespace(group=SimpleNamespace(visit=None)),), GeneratorStats(0, 0, 0.0))
    Session.record_pass_rates(run, taken, (torch.arange(of) < passed)[None])
    assert told == [passed / of]
