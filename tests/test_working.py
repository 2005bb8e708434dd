"""Signs of life: whatever takes long says so, and the first signal is acknowledged at once."""

import io
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest
import runs
from rich.console import Console

from scalerl import cli
from scalerl.cli.main import COMMANDS
from scalerl.core import stop_signals, working
from scalerl.core.working import CLEAR, Working, elapsed_text
from scalerl.training.config import LAB
from scalerl.training.loop.display import RunDisplay


class Clock:
    """Monotonic seconds that a test sets; the thread that shows a line looks at them all the time."""

    def __init__(self, monkeypatch):
        self.now, self._looks = 100.0, 0
        monkeypatch.setattr(working, "time", self)
        monkeypatch.setattr(working, "REDRAW_S", 0.001)

    def monotonic(self):
        self._looks += threading.current_thread().name == "working"
        return self.now

    def on(self, seconds):
        """Let seconds pass, and wait until the thread has shown what is due."""
        self.now += seconds
        enough = self._looks + 6  # a look takes up to two, and the first may be of the time before
        runs.wait_for(lambda: self._looks >= enough)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_outside_a_terminal_a_line_is_printed_after_every_silence_of_30_s(clock, capsys):
    with Working("reading prompts") as shown:
        clock.on(29)
        assert capsys.readouterr().err == ""
        clock.on(1)
        shown.on("aime-24: sampling", 120, 1512)
        clock.on(29)
        clock.on(1)
    out, error = capsys.readouterr()
    assert out == "" and error.splitlines() == ["reading prompts, 30 s", "aime-24: sampling, 120 of 1,512, 30 s"]


def test_a_command_that_ends_soon_shows_nothing(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Working("short"):
        clock.on(1.9)
    assert sys.stderr.getvalue() == ""


def test_a_terminal_has_one_line_that_is_removed_before_other_output_and_at_the_end(clock, monkeypatch):
    terminal, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with Working("simulating") as shown:
        clock.on(2)
        drawn = terminal.getvalue()
        assert drawn.startswith(f"{CLEAR}simulating, 2 s") and "\n" not in drawn
        shown._ended.set()
        shown._thread.join()
        print("result")
        assert terminal.getvalue().endswith(CLEAR) and out.getvalue() == "result\n"
    assert sys.stdout is out and terminal.getvalue().endswith(CLEAR)


def test_durations_are_short_texts():
    assert [elapsed_text(s) for s in (0.4, 59.9, 60, 125, 3600, 3780.0)] == [
        "0 s", "59 s", "1 min 0 s", "2 min 5 s", "1 h 0 min", "1 h 3 min",
    ]  # fmt: skip


def row(step):
    import test_display

    return {**test_display.ROW, "step": step}


def test_a_run_in_a_log_prints_its_phase_and_its_step_after_every_silence(clock):
    console = Console(file=io.StringIO(), width=140)
    shown = RunDisplay(LAB, console)
    shown.start()
    clock.on(30)
    shown.phase("evaluating")
    clock.on(30)
    shown.phase("training")
    shown.step(row(1))
    clock.on(30)
    shown.stop()
    lines = [line for line in console.file.getvalue().splitlines() if line.endswith(" s")]
    assert lines == ["starting, 30 s", "evaluating, 30 s", "step 2/240, 30 s"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_shows_that_it_works(terminal, tmp_path):
    """`scalerl recipes`, which waits for the line, with standard error as a terminal or a pipe."""
    code = (
        "import sys, threading\n"
        "from scalerl.core import working\n"
        "from scalerl.cli import main, recipes\n"
        "working.FIRST_S, working.EVERY_S, working.REDRAW_S = 0, 0, 0.01\n"
        "shown, line = threading.Event(), working.Working.line\n"
        "working.Working.line = property(lambda self: (shown.set(), line.fget(self))[1])\n"
        "recipes.print_recipes = lambda: (shown.wait(60), print('result'))\n"
        "sys.exit(main(['recipes']))"
    )
    ours, theirs = pty.openpty() if terminal else os.pipe()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0 and done.stdout == b"result\n"
    assert "scalerl recipes, 0 s" in shown and (CLEAR in shown) == terminal


# ------------------------------------------------------------------------------------------------------------- Ctrl-C


BUSY = """
import ctypes, sys, threading, time
from scalerl.core import stop_signals
mutex, lib = (ctypes.c_int * 16)(), ctypes.CDLL(None)
lib.pthread_mutex_lock(mutex)
def unlock():
    while mutex[0] != 2:  # glibc: it is locked, and somebody waits
        time.sleep(0.001)
    print('ready', flush=True)
    sys.stdin.readline()
    lib.pthread_mutex_unlock(mutex)
stop_signals.watch_signals(); flag = stop_signals.StopFlag(); {asked}
threading.Thread(target=unlock, daemon=True).start()
lib.pthread_mutex_lock(mutex)  # without a step of Python, until the test writes a line
print('stopped', bool(flag.signal), flush=True)
"""
PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_is_acknowledged_at_once_inside_a_c_function(number):
    code = BUSY.format(asked="flag()")
    with subprocess.Popen([sys.executable, "-c", code], **PIPES, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        line = process.stderr.readline() + process.stderr.readline()  # the C function has not ended yet
        assert "stopping after this step, with a checkpoint (interrupt again" in line
        out, error = process.communicate("\n")
    assert process.returncode == 0 and "stopped True" in out and error == ""  # said once


def test_a_signal_before_there_is_anything_to_save_is_acknowledged_if_the_command_does_not_end_soon():
    with subprocess.Popen([sys.executable, "-c", BUSY.format(asked="0")], **PIPES, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline() + process.stderr.readline()
        assert line.strip() == "stopping (interrupt again to stop immediately)"
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()  # `communicate` would close the input, which ends the C function
    assert process.returncode == 130 and "stopped at once by SIGINT" in error


def test_what_is_kept_depends_on_the_command(handlers, capsys, monkeypatch):
    def interrupted(*_):
        raise stop_signals.Stopped(signal.SIGINT)

    for verb, text in (
        ("train", "; saved results are kept; `scalerl resume` continues a run"), ("plan", ""),
        ("study", "; finished runs are kept; `scalerl study resume` continues"),
    ):  # fmt: skip
        monkeypatch.setattr(f"scalerl.cli.{COMMANDS[verb].module}.run_{verb}", interrupted)
        assert cli.main([verb]) == 130
        assert capsys.readouterr().err == f"scalerl: stopped before the end by SIGINT{text}\n"
    monkeypatch.setattr("scalerl.cli.eval.eval_config", interrupted)
    assert cli.main(["eval", "model"]) == 130
    assert capsys.readouterr().err == "scalerl: stopped before the end by SIGINT; nothing was saved\n"


# --------------------------------------------------------------------------------------------------------- make train
