"""Whole runs under faults from outside: jumps of the wall clock, and scoring processes that are killed."""

import contextlib
import itertools
import os
import signal
import subprocess
import time

import pytest
import runs
from jumping_clock import JUMPS, JumpingClock, can_jump

from scalerl.training.status import read_status


@pytest.fixture(scope="module")
def undisturbed(lab_model, tmp_path_factory):
    """A run with a reward function: its directory, its words and its outcome."""
    place = tmp_path_factory.mktemp("scored")
    words = ["train", "--model", str(lab_model), *runs.scored(place)]
    before = os.getcwd()
    os.chdir(place)
    try:
        code, text = runs.call(*words, "--run-dir", "whole")
        assert code == 0, text
        yield place, words, runs.outcome(place / "whole")
    finally:
        os.chdir(before)


@pytest.mark.slow
@pytest.mark.skipif(not can_jump(), reason="needs gcc and LD_PRELOAD")
def test_jumps_of_the_wall_clock_change_neither_bits_nor_measured_times(undisturbed, tmp_path):
    place, words, expected = undisturbed
    clock, began = JumpingClock(tmp_path), time.monotonic()
    process = subprocess.Popen(
        runs.command(*words, "--run-dir", "jumped"), env=clock.environment, stdout=-1, stderr=-2, text=True
    )
    jumps, path = itertools.cycle(JUMPS), place / "jumped"
    done = 0
    while process.poll() is None:
        clock.set(next(jumps))
        done += (path / "status.json").exists()
        time.sleep(0.5)
    took_s = time.monotonic() - began
    text, _ = process.communicate()
    assert process.returncode == 0 and done >= 3, text
    assert runs.outcome(path) == expected and "timed out" not in text, text
    assert read_status(path).state == "finished"
    hours = [row["device_hours"] for row in runs.rows(path, "metrics.jsonl")]
    assert len(hours) == 12 and hours == sorted(hours) and hours[0] > 0 and hours[-1] < 8 * took_s / 3600
    times = [row[name] for row in runs.rows(path, "metrics.jsonl") for name in ("step_s", "scoring_wait_s")]
    assert len(times) == 24 and all(0 <= seconds < took_s for seconds in times)


@pytest.mark.slow
def test_killed_scoring_processes_change_no_bit(undisturbed):
    place, words, expected = undisturbed
    process, kills, last = runs.start([*words, "--run-dir", "killed"]), 0, 0.0
    while process.poll() is None:
        scoring = list((place / "scorers").iterdir())
        if scoring and time.monotonic() - last > 3.0:
            with contextlib.suppress(ProcessLookupError):  # the pool has just ended it
                os.kill(int(scoring[0].name), signal.SIGKILL)
                kills, last = kills + 1, time.monotonic()
            scoring[0].unlink(missing_ok=True)
        time.sleep(0.005)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and kills >= 2, text
    assert runs.outcome(place / "killed") == expected and "counted as failed" not in text
