import math

from scalerl.core.serialization import to_plain
from scalerl.training.engines.activation import AVERAGED_BATCHES, AtTick, Following, OnArrival
from scalerl.training.engines.schedule import PipelineSchedule, RoundSchedule


def pipeline(k, per_batch=2, lag=3):
    return PipelineSchedule(per_batch, AtTick(lag), max_lag=k)


def test_k_batches_ahead_may_be_started():
    s = pipeline(k=8)
    started = 0
    while s.may_start():
        s.start()
        started += 1
    assert started == 9 * 2


def test_weights_become_active_a_fixed_number_of_ticks_after_the_batch_they_were_trained_on():
    s = pipeline(k=8, lag=3)
    for index in (s.start(), s.start()):
        s.finish(index)
    s.form(tick=10)
    assert [s.due(tick, idle=False) for tick in (10, 12, 13, 14)] == [False, False, True, True]


def test_a_batch_takes_the_first_finished_groups_unless_an_older_one_must_be_included():
    s = pipeline(k=1, per_batch=1)
    slow, quick = s.start(), s.start()
    s.finish(quick)
    assert s.form(tick=1) == [quick]  # one update of lag: `slow`, of version 0, may be trained in update 1
    s.activate(1)
    late = s.start()  # of version 1: may be trained in updates up to 2
    s.finish(late)
    assert s.form(tick=2) is None  # update 1 waits for `slow`, which would otherwise miss its deadline
    s.finish(slow)
    assert s.form(tick=3) == [slow]


def test_ppo_off_policy_freezes_a_round_and_keeps_the_order_of_starting():
    s = RoundSchedule(1, AtTick(0), batches=2)
    a, b = s.start(), s.start()
    assert not s.may_start()
    s.finish(b)
    assert s.form(tick=1) is None  # b is done, but a was started first
    s.finish(a)
    assert s.form(tick=2) == [a] and s.form(tick=2) == [b]
    s.activate(1)
    assert not s.may_start()  # the round's second update has not happened
    s.activate(2)
    assert s.may_start()


def test_a_closed_curriculum_ends_with_a_smaller_batch():
    s = pipeline(k=8, per_batch=4)
    s.finish(s.start())
    assert s.form(tick=1) is None
    s.closed = True
    assert s.form(tick=1) == [0] and s.form(tick=1) is None


def test_a_fast_generator_is_limited_in_untrained_groups():
    """Without the limit the queue grows until every group is k updates stale when it is trained."""
    staleness = {}
    for most in (math.inf, 8):
        s, ages, born, running = PipelineSchedule(4, OnArrival(), 8, "wait", most), [], {}, []
        while len(ages) < 400:  # four groups in flight; all finish before the trainer does one update
            while s.may_start() and len(running) < 4:
                born[index := s.start()] = s.active
                running.append(index)
            for index in running:
                s.finish(index)
            running.clear()
            while (chosen := s.form(0)) is not None:
                ages += [s.next_batch - 1 - born[i] for i in chosen]
            idle_generator = not s.may_start()
            if idle_generator:
                s.activate(s.active + 1)
        staleness[most] = sum(ages[100:]) / len(ages[100:])
    assert staleness[math.inf] == 8  # k
    assert staleness[8] == 1  # one batch in training, one that waits


def test_an_adaptive_lag_is_one_and_a_half_times_the_ticks_of_the_latest_batches():
    rule = Following(lag_ticks=10)
    for tick in range(0, 20 * AVERAGED_BATCHES, 20):  # one batch short of what is needed: the estimate stays
        rule = rule.formed(tick)
    assert rule.lag_ticks == 10 and rule.due(30, 20) and not rule.due(29, 20)
    rule = rule.formed(20 * AVERAGED_BATCHES)
    assert rule.lag_ticks == 30  # batches of 20 ticks
    for tick in range(20 * AVERAGED_BATCHES, 20 * AVERAGED_BATCHES + 41 * AVERAGED_BATCHES, 41):
        rule = rule.formed(tick + 41)
    assert rule.lag_ticks == 62 == -(-3 * 41 // 2)
    assert Following(lag_ticks=10).restored(to_plain(rule)) == rule
    assert Following(lag_ticks=10).restored(to_plain(AtTick(7))) == Following(lag_ticks=7)
