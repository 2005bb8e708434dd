"""Asynchronous engines that die at random: every sequence comes back exactly once, with its versions."""

import random
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scripted_engine import STOP, ScriptedDecoder

from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import PipelineRL
from scalerl.training.engines import served
from scalerl.training.engines.activation import OnArrival
from scalerl.training.engines.coordinator import Coordinator, NewVersion
from scalerl.training.engines.engine import NO_WEIGHTS, Request
from scalerl.training.engines.hosted import HostedEngines
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.slot_engine import SlotEngine
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.schedule import SCHEDULES
from scalerl.training.engines.served import EngineHandle, Restarter, Swap
from scalerl.training.machines.simulation import visit_of

SLOTS = 8


def pair(swap_s=0.0, decode_s=0.0):
    """Return an engine and an evaluator whose tokens equal the version that sampled them."""

    def receive(version):
        time.sleep(swap_s)
        return {"version": version}

    decoder = ScriptedDecoder(mean_tokens=6.0, delay_s=decode_s)
    rule = LengthRule(None, NEVER, 25)
    return [SlotEngine(decoder, SLOTS, rule, (STOP,), refill=1, receive=receive) for _ in range(2)]


class Mortal(EngineHandle):
    """A handle that dies, becomes silent, or fails in its engine on demand."""

    def __init__(self, **delays):
        self.engines = pair(**delays)
        self.runner = HostedEngines(self.engines, "generator 1 of 1")
        self.dead, self.silent, self.stopped, self.has_finished, self.reports = False, False, False, False, 0

    def post(self, command):
        self._check()
        self.runner.post(command)

    def report(self, wait_s):
        self._check()
        report = None if self.silent else self.runner.report(wait_s)
        self.reports += report is not None
        self.has_finished |= report is not None and any(report.finished)
        return report

    def _check(self):
        """Raise if it is dead, as the client of a server does in every call."""
        if self.dead:
            raise EngineDied("generator 1 of 1 ended: killed")

    def stop(self):
        self.stopped = True
        self.runner.stop()


class World:
    """A restarter and all its lives."""

    def __init__(self, placement=None, sending=lambda: True, **delays):
        self.handles, self.notes = [], []

        def make():
            self.handles.append(Mortal(**delays))
            return self.handles[-1]

        placement = placement or Placement()
        self.restarter = Restarter(make, "generator 1 of 1", SLOTS, placement, self.notes.append, sending)
        self.restarter.pair()
        self.engine, self.evaluator = self.restarter.engines


@pytest.fixture
def later(monkeypatch):
    """A function that lets seconds pass, as far as the limits of a restarter are concerned."""
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(served, "time", clock)
    return lambda seconds: passed.__setitem__(0, passed[0] + seconds)


def requests(n, first=0):
    return [Request((i, 0), (1, 2), 1000 + i) for i in range(first, first + n)]


def wait_for(condition, engine, seconds=60.0):
    """Poll an engine until a condition holds; return the finished sequences."""
    until, finished = time.monotonic() + seconds, []
    while not condition(finished):
        assert time.monotonic() < until, "nothing came"
        finished += engine.poll(0.01)
    return finished


def test_a_swap_does_not_stop_sampling_and_every_token_has_the_version_that_sampled_it():
    world = World(decode_s=0.002)
    world.engine.swap(0)
    world.engine.submit(requests(300))
    finished = []
    for version in range(1, 6):
        world.engine.swap(version)
        finished += wait_for(lambda _, v=version: world.engine.version == v, world.engine)
        finished += world.engine.poll(0.05)
    finished += wait_for(lambda more: len(finished) + len(more) == 300, world.engine)
    assert len({f.id for f in finished}) == len(finished) == 300
    mixed = 0
    for f in finished:
        sampled = f.rollout.tokens[f.rollout.tokens != STOP]
        np.testing.assert_array_equal(sampled, f.rollout.versions[: len(sampled)])
        mixed += len(set(f.rollout.versions.tolist())) > 1
    assert mixed > 5  # weights changed in flight


def test_unfinished_sequences_of_a_dead_engine_are_sampled_again_with_the_latest_weights():
    world = World(decode_s=0.005)
    world.engine.swap(3)
    world.engine.submit(requests(40))
    finished = wait_for(lambda finished: len(finished) >= 5, world.engine)
    left = 40 - len(finished)
    world.handles[0].dead = True
    assert world.engine.poll() == [] and world.handles[0].stopped
    world.engine.swap(7)
    assert world.engine.version == NO_WEIGHTS  # 7 is only requested
    again = wait_for(lambda more: len(more) == left, world.engine)
    assert sorted(f.id for f in finished + again) == [(i, 0) for i in range(40)]
    assert {int(v) for f in again for v in f.rollout.versions} == {7}
    assert (world.engine.work.restarts, world.engine.work.resampled) == (1, left)
    assert len(world.handles) == 2 and "40" not in world.notes[0] and f"its {left} unfinished" in world.notes[0]


def test_the_version_in_use_is_never_one_that_was_only_requested():
    """Over random swaps and deaths, it is what the living engine loaded last; it samples with nothing else."""
    rng, world = random.Random(5), World(swap_s=0.01)
    for version in range(12):
        world.engine.swap(version)
        assert world.engine.version != version  # the transfer takes time
        if rng.random() < 0.5:
            world.handles[-1].dead = True
        until = time.monotonic() + 60.0
        while world.engine.version != version:
            assert time.monotonic() < until
            world.engine.poll(0.001)
            loaded = world.handles[-1].engines[0].version
            assert world.engine.version in (NO_WEIGHTS, *range(version)) or world.engine.version == loaded
        world.engine.submit(requests(1, first=version))
        finished = wait_for(lambda found: len(found) == 1, world.engine)
        assert {int(v) for v in finished[0].rollout.versions} == {version}
    assert len(world.handles) > 3


def test_engines_without_weights_hold_back_no_version_and_keep_only_what_they_will_load():
    """Two engines, of which one dies and does not come back: updates become active, old versions are released."""
    worlds = [World() for _ in range(2)]
    schedule = SCHEDULES["pipeline"](PipelineRL(max_lag=4), 1, OnArrival())
    coordinator = Coordinator([w.engine for w in worlds], schedule, 1, seed=0, evaluators=[w.evaluator for w in worlds])
    coordinator.begin(0, tuple(map(visit_of, range(12))))
    until = time.monotonic() + 60.0
    while not coordinator.step():
        assert time.monotonic() < until
    worlds[0].restarter._make = lambda: time.sleep(60.0)  # a start that takes long
    worlds[0].handles[-1].dead = True
    worlds[0].engine.poll()
    coordinator.receive(NewVersion(1, True, ()))
    while schedule.active < 1:
        assert time.monotonic() < until
        coordinator.step()
    assert [world.engine.version for world in worlds] == [NO_WEIGHTS, 1]
    assert coordinator.sampling_version == 1 and coordinator.needed_versions() == {1}


CALLS = {
    "submit to the evaluator": lambda world: world.evaluator.submit(requests(10, first=90)),
    "swap": lambda world: world.engine.swap(7),
    "cancel": lambda world: world.engine.cancel({(i, 0) for i in range(30, 40)}),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_engine_that_died_since_the_last_poll_is_replaced_at_the_next_call(call):
    world = World(decode_s=0.005)
    world.engine.swap(3)
    world.engine.submit(requests(40))
    finished = wait_for(lambda finished: len(finished) >= 5, world.engine)
    world.handles[0].dead = True
    CALLS[call](world)
    assert world.handles[0].stopped and "unfinished sequences are sampled again" in world.notes[0]
    assert world.engine.occupancy().busy and world.engine.version == NO_WEIGHTS
    expected = {(i, 0) for i in range(30 if call == "cancel" else 40)}
    expected |= {f.id for f in finished}
    finished += wait_for(lambda more: len(finished) + len(more) == len(expected), world.engine)
    assert {f.id for f in finished} == expected and len(finished) == len(expected)
    if call == "submit to the evaluator":
        more = wait_for(lambda more: len(more) == 10, world.evaluator)
        assert {f.id for f in more} == {(i, 0) for i in range(90, 100)}
    assert len(world.notes) == 1 and world.engine.work.restarts == 1 and len(world.handles) == 2


def test_an_engine_that_dies_before_its_first_weights_is_replaced():
    world = World(decode_s=0.001)
    made = world.restarter._make

    def broken():
        world.restarter._make = made
        handle = made()
        post = handle.post

        def dying(command):
            handle.dead |= isinstance(command, Swap)
            post(command)

        handle.post = dying
        return handle

    world.restarter._make = broken
    world.engine.swap(3)
    world.engine.submit(requests(40))
    wait_for(lambda finished: len(finished) >= 5, world.engine)
    world.handles[0].dead = True
    wait_for(lambda _: len(world.handles) == 3 and not world.engine.occupancy().busy, world.engine)
    assert len(world.notes) == 2 and world.engine.work.restarts == 2


def test_a_restarted_engine_waits_for_weights_without_limit_until_a_transfer_is_under_way(later):
    """An update of the trainer takes longer than a transfer may; then it sends, and the engine does not load."""
    under_way = []
    world = World(Placement(transfer_timeout_s=600), sending=lambda: bool(under_way))
    world.engine.swap(1)
    wait_for(lambda _: world.engine.version == 1, world.engine)
    world.handles[0].dead = True
    wait_for(lambda _: len(world.handles) == 2, world.engine)
    for engine in world.handles[1].engines:
        engine._receive = lambda version: time.sleep(1e3)  # pushed weights do not come
    world.handles[1].runner.post = lambda command: None
    later(6000)
    wait_for(lambda _: world.handles[1].reports > 3, world.engine)
    assert len(world.handles) == 2 and len(world.notes) == 1
    under_way.append(True)
    world.engine.poll()
    later(601)
    wait_for(lambda _: len(world.handles) == 3, world.engine)
    assert "transfer of version 1 of the weights took more than 600 s" in world.notes[1]


@pytest.mark.parametrize(
    ("placement", "delays", "reason"),
    [
        (Placement(silence_timeout_s=60), {}, "has not answered for 61 s"),
        (Placement(silence_timeout_s=60), {"decode_s": 600.0}, "has sampled no token for 61 s"),
    ],
    ids=["silent", "stuck"],
)
def test_an_engine_that_hangs_counts_as_dead_with_the_reason_in_the_note(placement, delays, reason, later):
    world = World(placement, **delays)
    world.engine.swap(1)
    wait_for(lambda _: world.engine.version == 1, world.engine)
    if "decode_s" not in delays:
        world.engine.submit(requests(1, first=9))
        wait_for(lambda found: found, world.engine)
    world.engine.submit(requests(4))
    world.engine.swap(1)
    world.handles[0].silent = reason.startswith("has not")
    world.engine.poll()
    later(61)
    wait_for(lambda _: world.notes, world.engine)
    assert reason in world.notes[0] and world.handles[0].stopped


def test_a_bug_in_the_engine_stops_the_run_after_three_consecutive_deaths():
    world = World()
    made = world.restarter._make

    def fail(*arguments):
        raise ValueError("no such slot: 99")

    def broken():
        handle = made()
        handle.engines[0].poll = fail
        return handle

    world.restarter._make = broken
    world.handles[0].engines[0].poll = fail
    world.engine.swap(0)
    world.engine.submit(requests(4))
    with pytest.raises(EngineDied, match=r"died 3 times without finishing a sequence(.|\n)*no such slot: 99"):
        wait_for(lambda found: False, world.engine)
    assert len(world.notes) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stale", ["mask", "drop"])
def test_a_pipeline_over_dying_engines_trains_every_prompt_once_within_the_bound(stale):
    rng = random.Random(f"6 {stale}")
    worlds = [World(decode_s=0.0005) for _ in range(3)]
    schedule = SCHEDULES["pipeline"](PipelineRL(max_lag=2, stale=stale), 3, OnArrival())
    coordinator = Coordinator([w.engine for w in worlds], schedule, 2, seed=0, evaluators=[w.evaluator for w in worlds])
    updates, drawn, trained, dropped = 30, 12, Counter(), Counter()
    coordinator.begin(0, tuple(map(visit_of, range(drawn))))
    deaths = sorted(rng.sample(range(2, updates - 2), 6))
    versions = Counter()
    ready, steps = [], 0
    while (done := coordinator.schedule.next_batch) < updates or ready:
        # three deaths without a finished sequence between them would end the run, as they should
        at_work = [world for world in worlds if world.engine.requests and world.handles[-1].has_finished]
        if deaths and done >= deaths[0] and at_work:
            deaths.pop(0)
            rng.choice(at_work).handles[-1].dead = True
        steps += 1
        for formed in coordinator.step():
            trained.update(g.visit.index for g in formed.groups.values())
            dropped.update(v.index for v in formed.dropped)
            for group in formed.groups.values():
                for rollout in group.rollouts:
                    sampled = rollout.tokens[rollout.tokens != STOP]
                    np.testing.assert_array_equal(sampled, rollout.versions[: len(sampled)])
                    versions.update((formed.number - rollout.versions).tolist())
            wanted = 3 + len(formed.dropped)
            new = tuple(map(visit_of, range(drawn, drawn + wanted)))
            drawn += wanted
            ready.append((steps + rng.randrange(10), NewVersion(formed.number + 1, True, new)))
        coordinator.fresh.clear()
        coordinator.late.clear()
        while ready and ready[0][0] <= steps:
            coordinator.receive(ready.pop(0)[1])
    assert len(trained) == sum(trained.values()) == 3 * coordinator.schedule.next_batch  # no group is trained twice
    assert not trained.keys() & dropped.keys() and len(dropped) == sum(dropped.values())
    underway = {o.visit.index for o in coordinator._open.values()} | {v.index for v in coordinator._queue}
    underway |= {g.visit.index for g in coordinator.finished.values()} | {v.index for v in coordinator._dropped}
    underway |= {v.index for u in coordinator._updates.values() for v in u.visits}
    assert trained.keys() | dropped.keys() | underway == set(range(drawn))  # no group is lost
    assert min(versions) >= 0
    if stale != "mask":
        assert max(versions) <= 2
    stats = coordinator.stats()
    assert stats.restarts > 0 and stats.resampled > 0
