"""The timing simulation, compared with hand calculations and with the simulation in decode steps."""

import time

import numpy as np
import pytest

from scalerl.cluster.lengths import cut, lognormal, read_lengths
from scalerl.cluster.simulation import Simulation, Speeds
from scalerl.cluster.speed import steps_from_rates, updates_from_rate
from scalerl.cluster.timed_engine import Shared, TimedEngine
from scalerl.config.base import replace
from scalerl.config.placement import Placement
from scalerl.config.presets import LAB
from scalerl.config.recipe import Interruption, NoLengthControl, PipelineRL, PpoOffPolicy
from scalerl.core.errors import ConfigError
from scalerl.rollouts.engine import Request
from scalerl.rollouts.local.simulated import CalendarEngine, by_key, lognormal_lengths, measure_rule


def requests(*keys):
    return [Request((0, number), (1,), key) for number, key in enumerate(keys)]


def half_a_second(running, context):
    return 0.5


def test_an_asynchronous_engine_finishes_sequences_on_time():
    shared = Shared()
    engine = TimedEngine(1, lambda r: r.key, half_a_second, shared, lockstep=False)
    engine.submit(requests(3, 2))
    ends = []
    for until in (1.4, 1.5, 2.4, 2.5, 4.0):
        shared.until = until
        ends += [(done.id[1], until) for done in engine.poll()]
    assert ends == [(0, 1.5), (1, 2.5)]  # three steps of half a second, then two
    assert engine.empty_s == pytest.approx(1.5) and engine.work.tokens == 5 and engine.work.slot_steps == 5


def test_context_and_running_sequences_determine_the_speed():
    seen = []

    def step(running, context):
        seen.append((running, context))
        return 1.0

    engine = TimedEngine(2, lambda r: r.key, step, Shared(), lockstep=True, prompt_tokens=10.0)
    engine.submit(requests(1, 3, 2))
    for _ in range(3):
        engine.poll()
    # two prompts; then one with one more token and a new one; then 10 + 2 and 10 + 1
    assert seen == [(2, 20.0), (2, 21.0), (2, 23.0)]


def test_tokens_have_the_version_in_use():
    shared = Shared()
    engine = TimedEngine(1, lambda r: r.key, half_a_second, shared, lockstep=False, swap_s=0.25)
    engine.submit(requests(3))
    shared.until = 0.5
    assert engine.poll() == []
    engine.swap(7)
    shared.until = 1.75  # a pause of a quarter, and two more steps
    (done,) = engine.poll()
    assert shared.spans == {(0, 0): ((0, 1.0), (7, 2.0))}
    assert len(done.rollout) == 3 and done.rollout.versions[0] == 0 and engine.pause_s == 0.25


def test_a_canceled_sequence_frees_its_slot_and_never_finishes():
    shared = Shared()
    engine = TimedEngine(1, lambda r: r.key, half_a_second, shared, lockstep=False)
    engine.submit(requests(4, 2))
    shared.until = 0.5
    engine.poll()
    engine.cancel({(0, 0)})
    shared.until = 1.5
    assert [done.id for done in engine.poll()] == [(0, 1)] and not engine.occupancy().busy


def test_in_lockstep_the_engine_finishes_the_same_sequences_as_a_calendar_of_steps():
    lengths = by_key(lognormal_lengths(20.0))
    timed = TimedEngine(8, lengths, half_a_second, Shared(), lockstep=True)
    calendar = CalendarEngine(8, lengths)
    for engine in (timed, calendar):
        engine.submit([Request((i, 0), (1,), 977 * i) for i in range(60)])
    ended = [([d.id for d in timed.poll()], [d.id for d in calendar.poll()]) for _ in range(400)]
    assert all(sorted(ours) == sorted(theirs) for ours, theirs in ended)
    assert sum(len(ours) for ours, _ in ended) == 60
    assert timed.work.tokens == calendar.work.tokens


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


def test_slower_generation_determines_the_speed_of_the_run():
    figures = Simulation(small(), speeds(0.25), TENS).run(40)
    assert figures.tokens_per_s == pytest.approx(80, rel=0.03) and figures.occupancy == pytest.approx(1, abs=0.02)
    assert figures.updates_per_h == pytest.approx(3600, rel=0.03)
    assert figures.trainer_idle == pytest.approx(0.75, abs=0.02) and figures.generator_idle < 0.03


def test_slower_training_determines_the_speed_and_staleness_reaches_the_bound():
    figures = Simulation(small(k=2), speeds(1.5, transfer_s=0.5), TENS).run(40)
    assert figures.updates_per_h == pytest.approx(1800, rel=0.02) and figures.trainer_idle < 0.02
    assert figures.tokens_per_s == pytest.approx(40, rel=0.03)
    assert figures.staleness_max == 2 and figures.stale_share == 0
    assert 1 < figures.staleness_mean <= 2


def test_on_policy_generation_and_training_alternate():
    figures = Simulation(small(k=0), speeds(1.0), TENS).run(40)
    assert figures.updates_per_h == pytest.approx(1800, rel=0.05)  # one second each
    assert figures.trainer_idle == pytest.approx(0.5, abs=0.03) and figures.generator_idle == pytest.approx(
        0.5, abs=0.03
    )
    assert figures.staleness_max == 0


def test_a_frozen_round_is_generated_and_then_trained():
    figures = Simulation(small(off_policy=PpoOffPolicy(batches=2)), speeds(1.0), TENS).run(40)
    # two batches take two seconds; the first is trained while the second is sampled, then the second: three in all
    assert figures.updates_per_h == pytest.approx(2 * 3600 / 3, rel=0.05) and figures.staleness_max == 1


def test_engines_in_lockstep_match_the_simulation_in_decode_steps():
    population = lognormal_lengths(40.0)
    batch_ticks = float(population.mean())
    recipe = replace(LAB.recipe, length=NoLengthControl(max_tokens=400), off_policy=PipelineRL(max_lag=8))
    for rule in ("wait", "mask"):
        changed = replace(recipe, off_policy=PipelineRL(max_lag=8, stale=rule))
        config = replace(LAB, recipe=changed, rollouts=replace(LAB.rollouts, slots=256, expected_tokens=40))
        one_second = Speeds(lambda running, context: 1.0, lambda lengths: batch_ticks / 2)
        ours = Simulation(config, one_second, population).run(120)
        theirs = measure_rule(rule, slots=256, updates=150)
        assert ours.occupancy == pytest.approx(theirs.occupancy, abs=0.03)
        assert ours.stale_share == pytest.approx(theirs.stale_share, abs=0.02)


@pytest.mark.parametrize("stale", ["wait", "mask", "drop"])
def test_stale_tokens_are_masked_dropped_or_waited_for(stale):
    long = lognormal_lengths(10.0, sigma=1.0)
    config = replace(
        small(k=2, stale=stale, slots=16), recipe=replace(
            small(k=2, stale=stale).recipe, length=NoLengthControl(max_tokens=100)
        ),
    )  # fmt: skip
    figures = Simulation(config, speeds(0.05), long).run(60)
    assert (figures.stale_share > 0) == (stale == "mask") and (figures.dropped_share > 0) == (stale == "drop")
    assert (figures.staleness_max <= 2) == (stale != "mask")


def test_simulating_hundreds_of_engines_takes_seconds():
    config = small(generators=128, slots=128 * 64, k=2)
    config = replace(config, recipe=replace(config.recipe, prompts_per_step=256, generations_per_prompt=16))
    began = time.process_time()
    figures = Simulation(config, Speeds(steps_from_rates([(64, 2500.0)]), lambda lengths: 0.01), TENS).run(8)
    assert figures.tokens_per_s == pytest.approx(128 * 2500, rel=0.1)
    assert time.process_time() - began < 60


# --------------------------------------------------------------------------------------------------- speeds, lengths


def test_rates_are_converted_to_seconds_per_step():
    flat = steps_from_rates([(64, 3200.0)])
    assert flat(64, 0) == flat(1, 0) == 0.02  # a step costs nearly the same, full or not
    line = steps_from_rates([(10, 100.0), (30, 200.0)])  # 0.1 s and 0.15 s
    assert [line(n, 0) for n in (1, 10, 20, 30, 50)] == pytest.approx([0.1, 0.1, 0.125, 0.15, 0.2])
    assert updates_from_rate(50.0, trained_share=0.5)(np.asarray([30, 70])) == 1.0


def test_lengths_have_the_requested_mean_after_length_control():
    control = Interruption(thinking_tokens=(50, 60), answer_tokens=9, phrase="</think>")
    lengths = lognormal(40.0, 0.8, control)
    assert lengths.mean() == pytest.approx(40, abs=0.5) and lengths.min() >= 1 and 60 < lengths.max() <= 69
    with pytest.raises(ConfigError, match=r"mean length: got 90 tokens; allowed: 1 to 6\d"):
        lognormal(90.0, 0.8, control)


def test_an_interrupted_length_is_its_limit_plus_an_answer():
    control = Interruption(thinking_tokens=(50, 50), answer_tokens=1, phrase="</think>")
    assert cut(np.asarray([10.0, 49.6, 50.4, 1e6]), control).tolist() == [10, 50, 51, 51]
    assert cut(np.asarray([0.2, 30.0]), NoLengthControl(max_tokens=20)).tolist() == [1, 20]


def test_lengths_are_read_from_numbers_and_objects(tmp_path):
    file = tmp_path / "lengths.jsonl"
    file.write_text('12\n{"completion_tokens": 30}\n\n{"tokens": 7, "reward": 1}\n')
    assert read_lengths(file).tolist() == [12, 30, 7]
    for content, message in (('{"reward": 1}\n', "line 1: got"), ("0\n", "line 1"), ("\n", "has no lengths")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_lengths(file)
    with pytest.raises(ConfigError, match=r"none.jsonl: no such file"):
        read_lengths(tmp_path / "none.jsonl")
