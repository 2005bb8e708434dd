"""An exception of a user's code is a failure with its reason, whatever its class; only a signal is an interruption."""

import asyncio
import signal
import threading
from contextlib import closing

import pytest

from scalerl.core.child_signals import Stopped
from scalerl.core.errors import outcome
from scalerl.core.plugins import PluginError, call
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import CallerEnded, LocalRemote, host
from scalerl.training.config import Scoring
from scalerl.training.rewards.pool import ScoringPool


class Own(BaseException):
    """An exception of a user, outside of Exception."""


CLASSES = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Own]


def raiser(error):
    def fails():
        raise error

    return fails


def in_thread(action):
    """Return the result of an action in another thread, to which Python delivers no signals."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("kind", CLASSES)
def test_what_user_code_raises_is_its_failure(kind):
    def fails():
        with pytest.raises(PluginError, match=rf"mine.reply raised \S*{kind.__name__} \(.*test_interruptions.py:\d+\)"):
            call(raiser(kind()), "mine.reply")
        return outcome(raiser(kind())).exception()

    assert isinstance(in_thread(fails), kind)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped(signal.SIGTERM)])
def test_a_signal_ends_the_command_inside_user_code(error):
    with pytest.raises(type(error)):
        call(raiser(error), "mine.reply")
    with pytest.raises(type(error)):
        outcome(raiser(error))


class Answers:
    def __init__(self):
        self.given = []

    def answer(self, kind, content):
        self.given.append((kind, content))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_process_reports_what_ends_it_to_its_caller(kind):
    answers = Answers()
    host(answers, lambda end: raiser(kind("why"))())
    ((answer, (reason, trace)),) = answers.given
    assert answer == "failed" and reason == f"{kind.__name__}: why" and "test_interruptions.py" in trace


def test_a_process_whose_caller_has_ended_ends_without_a_word():
    answers = Answers()
    with pytest.raises(CallerEnded):
        host(answers, lambda end: raiser(CallerEnded())())
    assert not answers.given


def own_process():
    import os

    return os.getpid()


def interrupted():
    raise KeyboardInterrupt


def left():
    raise SystemExit(0)


def test_a_scoring_process_outlives_what_its_calls_raise():
    with closing(ScoringPool(1, None, Scoring())) as pool:
        first = pool.schedule(own_process, limit_s=60).result()
        for function, text in ((interrupted, "KeyboardInterrupt"), (left, "SystemExit: 0")):
            with pytest.raises(PluginError, match=text):
                pool.schedule(function, limit_s=60).result()
        assert pool.schedule(own_process, limit_s=60).result() == first


def test_a_process_that_user_code_leaves_is_a_death_with_its_reason():
    """Before, the exit code was 0 and the reason was lost."""
    remote = LocalRemote(leaves, "the engine")
    try:
        with pytest.raises(ProcessDied, match="the engine failed: SystemExit: 0"):
            remote.receive(60.0)
    finally:
        remote.end()


def leaves(end):
    raise SystemExit(0)
