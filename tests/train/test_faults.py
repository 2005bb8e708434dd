"""A whole run whose scoring processes are killed."""

import contextlib
import os
import signal
import time

import pytest
import runs


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
