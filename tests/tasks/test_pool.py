"""The processes that score: a killed process, a C-level exit and a jump of the clock change no result."""

import ctypes
import os
import signal
import time
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path

import pytest
import runs

from scalerl.training.config import Scoring
from scalerl.training.rewards.pool import ProcessEnded, ScoringPool


def waits(marker: str, value: int) -> int:
    """Wait at the first call, until the process is killed; return the value at the second."""
    if not os.path.exists(marker):
        Path(marker).write_text(str(os.getpid()))
        time.sleep(600)
    return value


def leaves_in_c(code: int) -> None:
    ctypes.CDLL(None).exit(code)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def waits_for(marker: str) -> None:
    while not os.path.exists(marker):
        time.sleep(0.01)


def ready() -> int:
    return os.getpid()


def fails(settings: Scoring) -> None:
    os._exit(3)


class TwoWords(Exception):
    def __init__(self, one, other):
        super().__init__(one)


def raises_two_words() -> None:
    raise TwoWords("no", "entry")


def returns_what_nobody_can_read() -> TwoWords:
    return TwoWords("no", "entry")


@pytest.mark.parametrize("function", [raises_two_words, returns_what_nobody_can_read])
def test_an_answer_that_cannot_be_unpickled_is_a_failed_call(shared, function):
    with pytest.raises(ProcessEnded, match=r"^once \(it failed: TypeError: .*TwoWords.* missing 1 required"):
        shared.schedule(function, limit_s=60).result(timeout=60)
    assert shared.schedule(abs, -3, limit_s=60).result(timeout=60) == 3


@pytest.fixture(scope="module")
def shared():
    """A pool with one process, shared by the tests that do not kill it."""
    with closing(ScoringPool(1, None, Scoring())) as pool:
        yield pool


def test_the_call_of_a_killed_process_is_repeated(shared, tmp_path):
    call = shared.schedule(waits, str(tmp_path / "begun"), 7, limit_s=60)
    runs.wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text(), 60, "the call")
    os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
    assert call.result() == 7


@pytest.mark.parametrize(
    ("function", "words", "message"),
    [
        (leaves_in_c, (0,), r"^3 times \(exit code 0\)$"),
        (
            kills_itself,
            (),
            r"^3 times \(it was killed by signal 9, most likely .* because memory ran out: .*\)$",
        ),
    ],
)
def test_a_call_that_always_ends_its_process_is_reported_at_once(shared, function, words, message):
    with pytest.raises(ProcessEnded, match=message):
        shared.schedule(function, *words, limit_s=600).result()
    assert shared.schedule(ready, limit_s=60).result() != os.getpid()


def test_a_jump_of_the_wall_clock_neither_ends_a_call_nor_extends_its_limit(shared, monkeypatch, tmp_path):
    shared.schedule(ready, limit_s=60).result()
    ordinary, marker = time.time, tmp_path / "go on"
    call, long = shared.schedule(waits_for, str(marker), limit_s=60), shared.schedule(time.sleep, 600, limit_s=0.5)
    for jump in (86400.0, -86400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: ordinary() + jump)
        assert not wait([call], 0.25).done
    marker.touch()
    assert call.result() is None
    with pytest.raises(TimeoutError):
        long.result()


def test_processes_that_end_at_their_start_are_given_up():
    with (
        closing(ScoringPool(1, fails, Scoring())) as pool,
        pytest.raises(ProcessEnded, match=r"^3 times \(exit code 3\)$"),
    ):
        pool.schedule(ready, limit_s=60).result()


def test_a_closed_pool_cancels_its_calls_and_leaves_no_process():
    pool = ScoringPool(2, None, Scoring())
    pids = [pool.schedule(ready, limit_s=60).result() for _ in range(4)]
    calls = [pool.schedule(time.sleep, 600, limit_s=600) for _ in range(9)]
    pool.close()
    assert all(call.done() for call in calls)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
