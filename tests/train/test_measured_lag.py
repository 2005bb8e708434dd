"""The lag set by `rollouts.lag_ticks = "measure"`, against values computed by hand."""

from types import SimpleNamespace

import pytest
import torch

from scalerl.config import LAB
from scalerl.config.base import replace
from scalerl.training.progress import Progress
from scalerl.training.session import Session
from scalerl.types import GeneratorStats


@pytest.mark.parametrize(("update_s", "lag"), [(0.02, 9), (0.2, 30)])
def test_the_lag_is_one_and_a_half_times_the_longer_of_update_and_batch(update_s, lag):
    # 4 completions of 15 tokens over 10 slots are 6 steps; a step takes 1 s / 100, so updates take 2 or 20 steps
    batch = SimpleNamespace(length_B=torch.tensor([16, 17, 16, 18]), prompt_length_B=torch.tensor([1, 2, 1, 3]))
    saved = []
    run = SimpleNamespace(
        config=replace(LAB, rollouts=replace(LAB.rollouts, slots=10, lag_ticks="measure")),
        progress=Progress(generator=GeneratorStats(tick=100, tokens=500, flops=0.0, slot_steps=1000, busy_s=1.0)),
        learner=SimpleNamespace(rehearse=lambda batch: update_s),
        records=SimpleNamespace(directory=SimpleNamespace(save_config=saved.append)),
    )
    Session._measure_lag(run, batch)
    assert run.config.rollouts.lag_ticks == lag == saved[0].rollouts.lag_ticks
