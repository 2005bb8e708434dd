"""Helpers of the trainer compute micro-batches in other threads and do not change the results."""

import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from runs import wait_for
from test_learner import batch, make

from scalerl.core.types import GeneratorStats
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.batch import StepSettings
from scalerl.training.learner.cpu import RESULTS_AHEAD, Helpers
from scalerl.training.loop.run import waited


def test_results_of_several_threads_are_returned_in_order():
    helpers, threads = Helpers(2), set()

    def task(number):
        threads.add(threading.current_thread().name)
        wait_for(lambda: len(threads) >= 2)
        time.sleep(0.002 * (number % 3))
        return number

    for _ in range(3):
        threads.clear()
        assert list(helpers.in_order([partial(task, number) for number in range(12)])) == list(range(12))
    assert list(helpers.in_order([threading.current_thread], helped=False)) == [threading.current_thread()]
    assert list(helpers.in_order([])) == []
    helpers.close()


def test_an_error_is_raised_at_its_turn_and_ends_the_computation():
    helpers, done = Helpers(1), []

    def task(number):
        if number == 3:
            raise BadGradient("the third")
        done.append(number)
        time.sleep(0.002)
        return number

    results = helpers.in_order([partial(task, number) for number in range(50)])
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BadGradient, match="the third"):
        next(results)
    seen = len(done)
    time.sleep(0.02)
    assert len(done) == seen < 50  # no task runs after the caller has left
    helpers.close()


def test_a_helper_holds_at_most_a_few_results():
    helpers, started = Helpers(1), []

    def task(number):
        started.append(number)
        return number

    results = helpers.in_order([partial(task, number) for number in range(20)])
    assert next(results) == 0
    wait_for(lambda: len(started) == 1 + RESULTS_AHEAD)
    time.sleep(0.02)  # in which the helper could do all other tasks
    assert len(started) == 1 + RESULTS_AHEAD  # the first, and those that wait for their turn
    assert list(results) == list(range(1, 20))
    helpers.close()


@pytest.mark.parametrize("budget", [1, 12, 30])
def test_helpers_change_no_bit_of_weights_and_metrics(budget):
    given = replace(batch(rows=12), weights_BT=torch.rand(12, 10) * batch(rows=12).trained_BT)
    alone, helped = (make(micro_batch_tokens=budget, helpers=count) for count in (0, 2))
    for _ in range(4):
        assert alone.step(given).to_dict() == helped.step(given).to_dict()
    for one, other in zip(alone.policy.parameters(), helped.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    helped.close()


def test_helpers_are_used_if_generators_have_waited():
    def at(busy_s, idle_s):
        return GeneratorStats(0, 0, 0.0, busy_s=busy_s, idle_s=idle_s)

    assert waited(at(10.0, 1.0), at(20.0, 1.3)) and not waited(at(10.0, 1.0), at(20.0, 1.1))
    assert not waited(at(10.0, 1.0), at(10.0, 1.0))  # the first batch
    given, threads = replace(batch(rows=12), settings=StepSettings(idle_cores=False)), set()
    learner = make(micro_batch_tokens=1, helpers=1)
    original = learner._gradients

    def noted(*arguments):
        threads.add(threading.current_thread())
        if idle_cores:
            wait_for(lambda: len(threads) == 2)
        return original(*arguments)

    learner._gradients, idle_cores = noted, False
    learner.step(given)
    assert threads == {threading.main_thread()}
    idle_cores = True
    learner.step(replace(given, settings=StepSettings(idle_cores=True)))
    learner.close()
