import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs

from scalerl.cli import exits
from scalerl.core import stop_signals

NAMES = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def read_until(process, text, seconds=120.0):
    """Read the output of a process until a text appears; return all of it."""
    printed, until = "", time.monotonic() + seconds
    while text not in printed:
        assert time.monotonic() < until, printed
        piece = os.read(process._out, 1 << 16).decode(errors="replace")
        assert piece, printed
        printed += piece
    return printed


@pytest.mark.parametrize("number", NAMES)
def test_an_early_signal_ends_the_command_with_128_plus_its_number(number, handlers, capsys):
    code = exits.guarded(lambda: os.kill(os.getpid(), number) or 0)
    error = capsys.readouterr().err
    assert code == 128 + number and error.count("\n") == 1
    assert f"stopped before the end by {number.name}" in error


def test_a_signal_while_the_modules_are_imported_is_one_line():
    number = signal.SIGTERM
    code = (
        "import os, sys; sys.argv = ['scalerl']\n"
        "class Kill:\n    def find_spec(self, name, *rest):\n"
        f"        name == 'scalerl.cli.main' and os.kill(os.getpid(), {number})\n"
        "sys.meta_path.insert(0, Kill()); import scalerl.cli"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = f"scalerl: stopped before the start by {number.name}\n"
    assert (ended.returncode, ended.stderr) == (128 + number, line)


@pytest.mark.parametrize("number", NAMES)
def test_a_flag_remembers_its_signal(number, handlers, capsys):
    flag = stop_signals.StopFlag()
    assert not flag()
    os.kill(os.getpid(), number)
    assert flag() and flag.signal == number
    assert "stopping after this step, with a checkpoint" in capsys.readouterr().err
    with pytest.raises(stop_signals.Stopped):
        os.kill(os.getpid(), number)


def test_the_second_signal_ends_a_process_that_is_inside_a_c_function():
    code = (
        "import hashlib; from scalerl.core.stop_signals import StopFlag, watch_signals\n"
        "watch_signals(); flag = StopFlag(); flag()\n"
        "print('ready', flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # minutes, without a Python step
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        while "stopping after this step" not in process.stderr.readline():  # else the two may arrive in another order
            pass
        process.send_signal(signal.SIGHUP)
        _, error = process.communicate()
    assert process.returncode == 128 + signal.SIGHUP
    assert "stopped at once by SIGHUP" in error and "Traceback" not in error


@pytest.mark.slow
def test_a_signal_during_the_warm_start_ends_it_and_leaves_no_files(tmp_path):
    process = runs.start(["train", "--run-dir", str(tmp_path / "run")], SCALERL_CACHE=str(tmp_path / "cache"))
    printed = read_until(process, "warm start: training")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=20)
    assert process.returncode == 143 and "Traceback" not in printed + text, printed + text
    assert "stopped before the end by SIGTERM" in text
    assert not (tmp_path / "run").exists() and not list((tmp_path / "cache").glob("warm-*"))


@pytest.mark.slow
def test_a_signal_while_the_generator_starts_stops_before_the_first_step(lab_model, tmp_path):
    path = tmp_path / "run"
    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL])
    runs.wait_for(lambda: runs.children(process.pid), what="the generator")
    os.killpg(process.pid, signal.SIGHUP)  # as a terminal that is closed does: to the generator too
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 129 and "Traceback" not in text, text
    assert runs.rows(path, "metrics.jsonl") == []


@pytest.mark.slow
def test_all_processes_end_within_a_second_after_the_trainer_was_killed(lab_model, tmp_path):
    words = ["--run-dir", str(tmp_path / "run"), *runs.SMALL, "--placement.generators", "2", "--rollouts.slots", "8"]
    process = runs.start(["train", "--model", str(lab_model), *words])
    runs.wait_for(lambda: len(runs.descendants(process.pid)) >= 4, what="generator and two engines")
    started = runs.descendants(process.pid)
    process.kill()
    assert not runs.left_of(started, 20.0)


def ignores(pid, number):
    """Return whether a process ignores a signal; also true if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return bool(int(next(line for line in lines if line.startswith("SigIgn:")).split()[1], 16) >> (number - 1) & 1)
    return True


@pytest.mark.slow
def test_no_process_of_a_run_under_nohup_ends_by_a_hangup(lab_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--model", str(lab_model), "--run-dir", "run", *runs.scored(tmp_path)]
    command = ["nohup", *runs.command(*words, "--placement.generators", "2", "--rollouts.slots", "8")]
    with open("out", "w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            runs.wait_for(lambda: len(runs.rows(tmp_path / "run", "metrics.jsonl")) >= 2, 120, "two steps")
            pids = [process.pid, *runs.descendants(process.pid)]
            assert len(pids) >= 5 and [pid for pid in pids if not ignores(pid, signal.SIGHUP)] == []
            os.killpg(process.pid, signal.SIGHUP)
            assert process.wait(timeout=120) == 0, Path("out").read_text()
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("engines", [1, 2])
def test_one_sigterm_ends_a_run_whose_generator_or_engine_is_stopped(lab_model, tmp_path, engines):
    path = tmp_path / "run"
    more = ["--placement.generators", "2", "--rollouts.slots", "8"] * (engines - 1)
    words = ["--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, "--steps", "200", *more]
    process = runs.start(["train", *words])
    runs.wait_for(lambda: list(path.glob("checkpoints/step_*")), what="a checkpoint")
    started = runs.descendants(process.pid)
    workers = {pid for pid in started if "resource_tracker" not in runs.command_of(pid)}
    direct = workers & set(runs.children(process.pid))
    stopped = max(direct if engines == 1 else workers - direct)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 143 and "Traceback" not in text, text
    assert f"process {stopped} is stopped (SIGSTOP)" in text and "continue from step" in text, text
    assert started and not runs.left_of(started, 20.0)
    last = max(int(step.name[5:]) for step in path.glob("checkpoints/step_*") if step.name[5:].isdecimal())
    assert f"resumed at step {last}" in runs.finish("resume", str(path), "--steps", str(last + 4))
