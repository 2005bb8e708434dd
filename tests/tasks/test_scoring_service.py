"""Scoring in parallel with training: it starts with each finished group, and a slow verifier does not block."""

import threading
import time

import numpy as np
import pytest
from texts import decode, group

from scalerl.core.types import Prompt
from scalerl.training.config import Scoring
from scalerl.training.rewards.base import Verifier, verdict
from scalerl.training.rewards.scoring import ScoringService, ThreadScorer

PROMPT = Prompt("0" * 16, "q", (1,), "4", "t", {"level": 3})


def verdict_of(passes):
    """Return a verifier based on a function that returns whether a completion passes."""
    return lambda prompt, text: verdict(passes(prompt, text), "")


def threads(verify, workers=1):
    return ScoringService({"t": ThreadScorer("t", Verifier(verdict_of(verify)), Scoring(workers=workers))}, decode)


def test_each_worker_judges_one_group_at_a_time():
    together, most, lock, three = [0], [0], threading.Lock(), threading.Barrier(3)

    def verify(prompt, text):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        three.wait(60)
        with lock:
            together[0] -= 1
        return True

    service = threads(verify, workers=3)
    for pending in [service.submit(group(PROMPT, "a", "b")) for _ in range(9)]:
        pending.result()
    assert most[0] == 3
    service.close()


@pytest.mark.slow
def test_a_slow_verifier_does_not_idle_the_trainer_while_batches_are_in_flight():
    """3 groups x 2 completions per batch take 3 s of verification; a step takes 0.15 s; 8 batches may be ahead."""
    from scripted_worker import NumberChannel, ScriptedSpec, visits, weights

    from scalerl.training.config.recipe import PipelineRL
    from scalerl.training.engines.coordinator import NewVersion
    from scalerl.training.engines.pipeline import Pipeline

    def verify(prompt, text):
        time.sleep(0.5)
        return True

    service = ScoringService(
        {"test": ThreadScorer("test", Verifier(verdict_of(verify)), Scoring(workers=64))},
        lambda prompt, tokens: "text",
    )
    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=8), slots=54, lag_ticks=1), NumberChannel(), service.submit)
    pipeline.start(weights, 0, visits(0, 27))
    waits = []
    try:
        for step in range(16):
            batch = pipeline.take(3, now=step)
            waits.append(batch.waited_s)
            judged = [(r, s) for g in batch.groups for r, s in zip(g.group.rollouts, g.scores, strict=True)]
            assert len(judged) == 6 and all(score.passed != rollout.truncated for rollout, score in judged)
            time.sleep(0.15)
            pipeline.publish(NewVersion(step + 1, visits=visits(27 + 3 * step, 3)), weights)
    finally:
        pipeline.close()
        service.close()
    # the first batches wait for the first scores; after that verification hides behind the batches in flight,
    # where waiting for it would cost at least 1 s a step (a group's two completions one after the other)
    assert np.median(waits[8:]) < 0.1, waits
