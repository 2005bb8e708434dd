"""The timing simulation, compared with hand calculations."""

import numpy as np
import pytest

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import replace
from scalerl.training.config.length import Interruption, NoLengthControl
from scalerl.training.config.placement import Placement
from scalerl.training.config.presets import LAB
from scalerl.training.config.recipe import PipelineRL, PpoOffPolicy
from scalerl.training.engines.engine import Request
from scalerl.training.engines.engine import step as decode
from scalerl.training.machines.measured import lognormal
from scalerl.training.machines.simulated_engine import Clock, ExactSimulatedEngine, SimulatedEngine
from scalerl.training.machines.simulation import simulate_run
from scalerl.training.machines.speed import Speeds
from scalerl.training.placement.sizes import RunSizes


def requests(*keys):
    return [Request((0, number), (1,), key) for number, key in enumerate(keys)]


def engine_of(slots, **speeds):
    """Return a clock and an engine whose decode steps take half a second; the key of a request is its length."""
    clock = Clock()
    speeds = {"step_seconds": lambda running, context: 0.5, **speeds}
    return clock, SimulatedEngine(slots, lambda r: r.key, Speeds(**speeds), clock)


def test_an_asynchronous_engine_finishes_sequences_on_time():
    clock, engine = engine_of(1)
    engine.submit(requests(3, 2))
    ends = []
    for until in (1.4, 1.5, 2.4, 2.5, 4.0):
        clock.until = until
        ends += [(done.id[1], until) for done in engine.poll()]
    assert ends == [(0, 1.5), (1, 2.5)]  # three steps of half a second, then two
    assert engine.empty_s == pytest.approx(1.5) and engine.work.tokens == 5 and engine.work.slot_steps == 5


def test_in_lockstep_context_and_running_sequences_determine_the_speed():
    seen = []

    def step(running, context):
        seen.append((running, context))
        return 1.0

    engine = ExactSimulatedEngine(2, lambda r: r.key, Speeds(step, prompt_tokens=10.0))
    engine.submit(requests(1, 3, 2))
    ended = [[done.id[1] for done in decode(engine)] for _ in range(4)]
    # two prompts; then one with one more token and a new one; then 10 + 2 and 10 + 1; then nothing
    assert seen == [(2, 20.0), (2, 21.0), (2, 23.0)] and engine.now == 3.0
    assert ended == [[0], [], [1, 2], []]


# ------------------------------------------------------------------------------------------------------ whole runs


def small(k=8, stale="wait", engine="vllm", generators=2, slots=8, off_policy=None):
    """Return a configuration with 8 completions per batch, all of 10 tokens."""
    recipe = replace(
        LAB.recipe, prompts_per_step=4, generations_per_prompt=2, length=NoLengthControl(max_tokens=10),
        off_policy=off_policy or PipelineRL(max_lag=k, stale=stale),
    )  # fmt: skip
    return replace(
        LAB,
        recipe=recipe,
        placement=Placement(engine=engine, generators=generators),
        rollouts=replace(LAB.rollouts, slots=slots, expected_tokens=10),
    )


TENS = np.full(64, 10, np.int64)


def speeds(update_s, transfer_s=0.0):
    """Return speeds: a decode step takes 0.1 s, so two engines with four slots sample 80 tokens/s."""
    return Speeds(lambda running, context: 0.1, lambda lengths: update_s, transfer_s)


def test_slower_training_determines_the_speed_and_staleness_reaches_the_bound():
    figures = simulate_run(RunSizes.of(small(k=2)), speeds(1.5, transfer_s=0.5), TENS, 40)
    assert figures.updates_per_h == pytest.approx(1800, rel=0.02) and figures.trainer_idle < 0.02
    assert figures.tokens_per_s == pytest.approx(40, rel=0.03)
    assert figures.staleness_max == 2 and figures.stale_share == 0
    assert 1 < figures.staleness_mean <= 2


def test_on_policy_generation_and_training_alternate():
    figures = simulate_run(RunSizes.of(small(k=0)), speeds(1.0), TENS, 40)
    assert figures.updates_per_h == pytest.approx(1800, rel=0.05)  # one second each
    assert figures.trainer_idle == pytest.approx(0.5, abs=0.03) and figures.generator_idle == pytest.approx(
        0.5, abs=0.03
    )
    assert figures.staleness_max == 0


def test_a_frozen_round_is_generated_and_then_trained():
    figures = simulate_run(RunSizes.of(small(off_policy=PpoOffPolicy(batches=2))), speeds(1.0), TENS, 40)
    # two batches take two seconds; the first is trained while the second is sampled, then the second: three in all
    assert figures.updates_per_h == pytest.approx(2 * 3600 / 3, rel=0.05) and figures.staleness_max == 1


# --------------------------------------------------------------------------------------------------- speeds, lengths


def test_lengths_have_the_requested_mean_after_length_control():
    control = Interruption(thinking_tokens=(50, 60), answer_tokens=9, phrase="</think>")
    lengths = lognormal(40.0, 0.8, control)
    assert lengths.mean() == pytest.approx(40, abs=0.5) and lengths.min() >= 1 and 60 < lengths.max() <= 69
    with pytest.raises(ConfigError, match=r"mean length: got 90 tokens; allowed: 1 to 6\d"):
        lognormal(90.0, 0.8, control)
