"""The lag set by `rollouts.lag_ticks = "measure"`, against values computed by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from scalerl.config import LAB
from scalerl.config.base import replace
from scalerl.rollouts.pipeline import RolloutBatch
from scalerl.training.progress import Progress
from scalerl.training.session import Session
from scalerl.types import GeneratorStats, Group, Prompt, Rollout, Score, ScoredGroup, Visit


@pytest.mark.parametrize(("update_s", "lag"), [(0.02, 9), (0.2, 30)])
def test_the_lag_is_one_and_a_half_times_the_longer_of_update_and_batch(update_s, lag):
    # 4 completions of 15 tokens over 10 slots are 6 steps; a step takes 1 s / 100, so updates take 2 or 20 steps
    rollout = Rollout(np.zeros(15), np.zeros(15), np.zeros(15), np.ones(15, bool), False, False)
    group = Group(Visit(Prompt("0" * 16, "q", (1,), "a", "t"), 0, 0), (rollout,) * 2, 0)
    stats = GeneratorStats(tick=100, tokens=500, flops=0.0, slot_steps=1000, busy_s=1.0)
    taken = RolloutBatch(0, (ScoredGroup(group, (Score(1.0, True),) * 2),) * 2, stats)
    saved = []
    run = SimpleNamespace(
        config=replace(LAB, rollouts=replace(LAB.rollouts, slots=10, lag_ticks="measure")),
        progress=Progress(generator=stats),
        learner=SimpleNamespace(rehearse=lambda batch: update_s),
        directory=SimpleNamespace(save_config=saved.append),
        _taken=taken,
    )
    Session._measure_lag(run, None)
    assert run.config.rollouts.lag_ticks == lag == saved[0].rollouts.lag_ticks
