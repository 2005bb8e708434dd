"""The coordinator with every schedule over one to three simulated engines and a trainer of random speed."""

from collections import Counter
from dataclasses import replace

import pytest
from coordinator_runs import (
    ACTIVATIONS,
    LENGTHS,
    PIPELINES,
    ROUNDS,
    SAVED,
    SEED,
    Sizes,
    bits,
    curriculum,
    make,
    played,
    start,
)

from scalerl.training.engines.activation import AtTick
from scalerl.training.engines.coordinator import Coordinator, sample_key
from scalerl.training.engines.engine import Request, WaitEnded, Work, generate
from scalerl.training.engines.schedule import PipelineSchedule
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.machines import simulation
from scalerl.training.machines.simulated_engine import ExactSimulatedEngine
from scalerl.training.machines.simulation import Stuck, visit_of

schedules = pytest.mark.parametrize("schedule", PIPELINES + ROUNDS, ids=lambda s: "-".join(map(str, s)))
activations = pytest.mark.parametrize("activation", [*ACTIVATIONS, "on arrival"])


# ---------------------------------------------------------------------------------------------------- the staleness


@activations
@pytest.mark.parametrize("schedule", [s for s in PIPELINES if s[2] != "mask"], ids=lambda s: "-".join(map(str, s)))
def test_no_trained_token_is_staler_than_k_updates_under_wait_and_drop(schedule, activation):
    for trial in (0, 1):
        for batch in played(schedule, activation, trial)[1]:
            for group in batch.groups.values():
                oldest = min(int(r.versions.min()) for r in group.rollouts)
                assert batch.number - schedule[1] <= oldest == group.oldest_version
                assert max(int(r.versions.max()) for r in group.rollouts) <= batch.number


@activations
@pytest.mark.parametrize("schedule", ROUNDS, ids=["1", "4"])
def test_a_frozen_round_is_sampled_with_its_first_version(schedule, activation):
    for batch in played(schedule, activation)[1]:
        opened = batch.number - batch.number % schedule[1]
        seen = {int(v) for group in batch.groups.values() for r in group.rollouts for v in r.versions}
        assert seen == {opened}


# ------------------------------------------------------------------------------------------------------ exactly once


@schedules
def test_every_group_is_complete_and_each_rollout_comes_from_its_random_stream(schedule):
    sizes, batches = played(schedule, "lag 3")
    for batch in batches:
        for group in batch.groups.values():
            keys = [sample_key(SEED, group.visit, sample) for sample in range(sizes.group_size)]
            assert [len(r) for r in group.rollouts] == [LENGTHS(Request((0, 0), (1,), key)) for key in keys]


def test_groups_are_handed_out_for_scoring_once_and_dropped_ones_are_reported():
    """Slots for four batches and k = 1, so that about half of the groups miss their deadline."""
    schedule = ("pipeline", 1, "drop")
    trainer = make(schedule, "lag 3", Sizes(engines=2, slots=24, per_batch=3, group_size=4))
    coordinator, fresh, late = trainer.coordinator, Counter(), Counter()
    coordinator.fresh, coordinator.late = _Kept(fresh), _Kept(late)
    start(trainer, schedule)
    batches = list(trainer.batches(1000))
    in_batches = Counter(index for batch in batches for index in batch.groups)
    dropped = sum(len(batch.dropped) for batch in batches)
    assert dropped > 20 and sum(late.values()) == dropped and set(late.values()) == {1}
    assert set(fresh.values()) == {1} and in_batches.keys() <= fresh.keys()
    assert fresh.keys() <= in_batches.keys() | late.keys() and not in_batches.keys() & late.keys()
    assert not any(engine.occupancy().busy for engine in coordinator.engines)  # dropped groups were canceled


class _Kept(list):
    """A list that counts appended items by index, also after it is emptied."""

    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def append(self, item):
        self.counter[item[0]] += 1

    def extend(self, items):
        self.counter.update(items)


# ------------------------------------------------------------------------------------------------------- no deadlock


def test_a_coordinator_without_prompts_for_a_batch_is_stuck():
    trainer = make(("pipeline", 8, "wait"), "lag 3", Sizes(engines=1, slots=4, per_batch=3, group_size=1))
    trainer.start(first=2)
    with pytest.raises(Stuck):
        list(trainer.batches(1))
    assert trainer.coordinator.stuck()


def request(index):
    return Request((index, 0), (1,), sample_key(SEED, visit_of(index), 0))


# ------------------------------------------------------------------------------------------- independence of the clock


@pytest.mark.parametrize("engines", [2, 3])
@schedules
def test_batches_do_not_depend_on_when_updates_arrive(schedule, engines):
    for activation in ACTIVATIONS:
        runs, ends = [], set()
        for delays in (1, 2, 3):  # enters the seed of the trainer's times
            sizes = Sizes(engines, slots=5, per_batch=3, group_size=2, delays=delays)
            trainer = make(schedule, activation, sizes)
            start(trainer, schedule)
            runs.append(bits(trainer.batches(1000)))
            ends.add(trainer.clock.now)
        assert runs[0] == runs[1] == runs[2] and len(ends) == 3  # the trainers were not equally fast


# ------------------------------------------------------------------------------------------------------------ resume


def interrupted(schedule, activation, sizes, at, path, **other):
    """Run until a version is active, save, and continue; return batches before it, all batches, drawn visits."""
    trainer = make(schedule, activation, sizes)
    before, marks = [], {}

    def save(version, drawn):
        if version == at:
            save_state(path, "generator", trainer.coordinator.state() | other)
            marks["drawn"], marks["batches"] = drawn, len(before)

    trainer.on_activation = save
    start(trainer, schedule)
    for batch in trainer.batches(1000):
        before.append(batch)
    return before[: marks["batches"]], before, marks["drawn"]


def resumed(schedule, activation, sizes, drawn, path):
    trainer = make(schedule, activation, sizes)
    state = load_state(path, "generator", {prompt.reference: prompt for prompt in simulation._PROMPTS})
    trainer.coordinator.load_state(state)
    again = trainer.resume(state["sampling_version"], drawn)
    return again + list(trainer.batches(1000))


@schedules
def test_a_restored_coordinator_continues_with_the_same_batches(schedule, tmp_path):
    for activation in ("lag 0", "lag 60"):
        for at in SAVED if schedule[2] == "drop" else (*SAVED, 25):
            sizes = Sizes.draw(schedule, activation, at)
            _, batches, drawn = interrupted(schedule, activation, sizes, at, tmp_path)
            assert bits(resumed(schedule, activation, sizes, drawn, tmp_path)) == bits(batches[at:])


@schedules
def test_without_a_saved_state_sequences_are_sampled_again_and_none_is_lost(schedule, tmp_path):
    for at in SAVED if schedule[2] == "drop" else (*SAVED, 25):
        sizes = Sizes.draw(schedule, "again", at)
        _, batches, drawn = interrupted(schedule, "lag 3", sizes, at, tmp_path, engines=[])
        fewer = replace(sizes, engines=1) if at == 6 else sizes
        rest = resumed(schedule, "lag 3", fewer, drawn, tmp_path)
        done = [group.visit.index for batch in batches[:at] + rest for group in batch.groups.values()]
        done += [visit.index for batch in batches[:at] + rest for visit in batch.dropped]
        assert sorted(done) == list(range(curriculum(schedule, sizes)))
        assert [batch.number for batch in rest] == list(range(at, at + len(rest)))
        for batch in rest:
            for group in batch.groups.values():
                keys = [sample_key(SEED, group.visit, sample) for sample in range(sizes.group_size)]
                assert [len(r) for r in group.rollouts] == [LENGTHS(Request((0, 0), (1,), key)) for key in keys]
                if schedule[2] in ("wait", "drop"):
                    assert batch.number - group.oldest_version <= schedule[1]


def test_after_a_restore_untrained_groups_are_handed_out_for_scoring_again():
    """Lengths of 1, batches of 2, 5 visits: two batches, and a group that is in no batch; nothing was trained."""
    coordinators = []
    for _ in range(2):
        engine = ExactSimulatedEngine(8, lambda request: 1)
        coordinators.append(Coordinator([engine], PipelineSchedule(2, AtTick(60), 8), 1, SEED))
    original, copy = coordinators
    original.begin(0, [visit_of(i) for i in range(5)])
    assert [sorted(batch.groups) for batch in original.step()] == [[0, 1], [2, 3]]
    assert [index for index, _ in original.fresh] == [0, 1, 2, 3, 4]
    copy.load_state(original.state())
    assert [index for index, _ in copy.fresh] == [0, 1, 2, 3, 4]
    assert [sorted(batch.groups) for batch in copy.untrained()] == [[0, 1], [2, 3]] and list(copy.finished) == [4]


def test_the_engine_with_the_most_room_takes_the_next_group():
    """Slots of 4 and 2, each with room for one more request: 5 and 3; groups of 2."""
    engines = [ExactSimulatedEngine(slots, lambda request: 9) for slots in (4, 2)]
    coordinator = Coordinator(engines, PipelineSchedule(4, AtTick(0), 8), 2, SEED)
    coordinator.begin(0, [visit_of(i) for i in range(9)])
    coordinator.step()
    # room: (5, 3) -> 0; (3, 3) -> 0; (1, 3) -> 1; (1, 1) -> 0; (-1, 1) -> 1; (-1, -1): the other four visits wait
    assert [[i, engine] for i, _, _, engine in coordinator.state()["open"]] == [[0, 0], [1, 0], [2, 1], [3, 0], [4, 1]]
    assert [engine.occupancy().running for engine in engines] == [4, 2]
    assert [engine.occupancy().waiting for engine in engines] == [2, 2]
    for _ in range(2):
        coordinator.step()
    # three ticks of six slots: work is the sum over engines
    assert sum((e.work for e in engines), Work()) == Work(steps=6, tokens=18, slot_steps=18, flops=18.0)
    stats = coordinator.stats()
    assert (stats.tick, stats.tokens, stats.slot_steps, stats.flops) == (3, 18, 18, 18.0)


def test_parked_sequences_are_counted_times_the_time_that_they_wait():
    class Parking(ExactSimulatedEngine):
        def occupancy(self):
            return replace(super().occupancy(), parked=3)

    engines = [Parking(4, lambda request: 3), ExactSimulatedEngine(2, lambda request: 3), Parking(4, lambda request: 3)]
    coordinator = Coordinator(engines, PipelineSchedule(2, AtTick(0), 1), 2, SEED)
    coordinator.begin(0, [visit_of(i) for i in range(4)])
    coordinator.step()
    assert coordinator.stats().parked_s == pytest.approx(6 * coordinator.seconds.busy) and coordinator.seconds.busy > 0
    restored = Coordinator(engines, PipelineSchedule(2, AtTick(0), 1), 2, SEED)
    restored.load_state(coordinator.state())
    assert restored.stats().parked_s == coordinator.stats().parked_s


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("samples", [1, 4])
def test_an_evaluation_holds_only_the_sequences_under_way(engines, samples):
    """Groups leave as they are complete, and engines of 4 slots never hold more requests than they need soon."""
    fleet = [ExactSimulatedEngine(4, lambda request: 1 + request.id[0] % 3) for _ in range(engines)]
    complete, held, submitted = [], [], 0
    for engine in fleet:

        def submit(requests, inner=engine.submit):
            nonlocal submitted
            submitted += len(requests)
            inner(requests)

        engine.submit = submit
    for index, group in generate(fleet, [visit_of(i) for i in range(200)], samples, SEED, "evaluate"):
        complete.append(index)
        assert len(group.rollouts) == samples and group.visit == visit_of(index)
        held.append(submitted - samples * len(complete))
    assert sorted(complete) == list(range(200)) and submitted == 200 * samples
    assert max(held) <= engines * (3 * 4 + 4 + 4) + 4 * samples * engines


def test_an_evaluation_that_is_stopped_drops_what_it_has_submitted():
    engine, stops = ExactSimulatedEngine(4, lambda request: 5), iter([False, False, True])
    with pytest.raises(WaitEnded):
        list(generate([engine], [visit_of(i) for i in range(50)], 2, SEED, "evaluate", stop=lambda: next(stops)))
    assert not engine.occupancy().busy
