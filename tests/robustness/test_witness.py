"""A command that runs the user's code never ends with exit code 0 before it has finished."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import runs

from scalerl.cli import witness
from scalerl.config.trust import Code
from scalerl.training.status import Status, mark_stopped, read_status

CODE = "[Code('recipe.loss', 'mine:loss', '/home/me/mine.py', '')]"
COMMAND = """
import ctypes, os, signal, sys, time
from pathlib import Path
from scalerl.cli import exits, witness
from scalerl.config.trust import Code
exits.watch_signals()
c = ctypes.CDLL(None)
def leave(number):
    os.kill(os.getpid(), number)
    time.sleep(60)
def stop():
    flag = exits.StopFlag()
    flag()
    print(os.getpid(), flush=True)
    while not flag(): time.sleep(0.01)
    time.sleep(0.3)  # the rest of a step
    return 128 + flag.signal
def wait():
    print(os.getpid(), flush=True)
    time.sleep(60)
sys.exit(exits.guarded(lambda: witness.witnessed(CODE, lambda: ACTION)))
"""


def start(action):
    text = COMMAND.replace("CODE", CODE).replace("ACTION", action)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("action", "code", "expected_output"),
    [
        ("print('finished') or 0", 0, None),
        ("3", 3, None),
        ("(_ for _ in ()).throw(FileNotFoundError(2, 'x', 'a/b'))", 1, r"^scalerl: a/b: no such file"),
        ("c.exit(0)", 1, r"ended with exit code 0 before the command had finished.*: recipe.loss = mine:loss \(/home"),
        ("c._exit(0)", 1, "ended with exit code 0 before"),
        ("c.exit(7)", 7, "ended with exit code 7 before"),
        ("sys.exit(0)", 1, "ended with exit code 0 before"),
        ("leave(signal.SIGKILL)", 137, "ended by SIGKILL before"),
        ("c.abort()", 134, "ended by SIGABRT before"),
    ],
)
def test_only_a_command_that_returned_ends_with_exit_code_0(action, code, expected_output):
    process = start(action)
    out, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert "Traceback" not in error and error.count("\n") == (expected_output is not None), error
    if expected_output is None:
        assert out == ("finished\n" if code == 0 else "")
    else:
        assert re.search(expected_output, error), error


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_parent_or_to_both_processes_stops_the_command_in_order(number, both):
    process = start("stop()")
    child = int(process.stdout.readline())
    if both:  # as systemd and Slurm do
        os.kill(child, number)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "stopping after this step" in error and "at once" not in error


def test_the_command_ends_when_its_parent_is_killed():
    process = start("wait()")
    child = int(process.stdout.readline())
    assert child != process.pid
    process.kill()
    process.communicate(timeout=60)
    runs.wait_for(lambda: not os.path.exists(f"/proc/{child}"), 10, "the command to end")


def test_ctrl_z_suspends_both_processes_and_fg_continues_them():
    process = start("wait()")
    pids = [process.pid, int(process.stdout.readline())]
    os.kill(process.pid, signal.SIGTSTP)
    runs.wait_for(lambda: [runs._stat(pid)[0] for pid in pids] == ["T", "T"], 10, "both to be suspended")
    os.kill(process.pid, signal.SIGCONT)
    runs.wait_for(lambda: "T" not in [runs._stat(pid)[0] for pid in pids], 10, "both to continue")
    process.kill()
    process.communicate(timeout=60)


def test_an_ordinary_process_runs_the_action_itself():
    assert witness.witnessed([Code("recipe.loss", "a:b", "", "")], os.getpid) == os.getpid()


@pytest.mark.parametrize(
    ("state", "pid", "expected"), [("running", 7, "stopped"), ("running", 8, "running"), ("finished", 7, "finished")]
)
def test_only_the_status_of_the_ended_process_is_changed(tmp_path, state, pid, expected):
    status = Status(state, "before", "here", pid, 1.0, 2.0)
    (tmp_path / "status.json").write_text(json.dumps({name: getattr(status, name) for name in Status.__slots__}))
    mark_stopped(tmp_path, 7, "it left")
    assert (read_status(tmp_path).state, read_status(tmp_path).message) == (
        expected,
        "it left" if expected == "stopped" else "before",
    )


LEAVES = """
    import ctypes
    IMPORT
    def now(logp_BT, behavior_BT, advantages_B, mask_BT): ctypes.CDLL(None).exit(0)
    calls = 0
    def later(logp_BT, behavior_BT, advantages_B, mask_BT):
        global calls
        calls += 1
        if calls > 3: ctypes.CDLL(None)._exit(0)
        return -logp_BT * advantages_B[:, None]
    def reward(prompts, completions, **columns): ctypes.CDLL(None).exit(0)
    class Task:
        def rows(self, count): ctypes.CDLL(None).exit(0)
        def score(self, row, completion): return 0.5
"""


@pytest.fixture
def leaves(tmp_path, monkeypatch):
    def write(at_import=""):
        (tmp_path / "leaves.py").write_text(textwrap.dedent(LEAVES).replace("IMPORT", at_import))

    write()
    monkeypatch.chdir(tmp_path)
    return write


@pytest.mark.parametrize(
    ("words", "at_import"),
    [
        (("--recipe.loss", '{kind = "custom", function = "leaves:now"}'), ""),
        (("--recipe.loss", '{kind = "custom", function = "leaves:now"}'), "ctypes.CDLL(None).exit(0)"),
        (("--recipe.loss", '{kind = "custom", function = "leaves:now"}'), "ctypes.CDLL(None)._exit(0)"),
    ],
    ids=["exit in a call", "exit at import", "_exit at import"],
)
def test_a_plug_in_that_exits_in_c_is_one_line_and_an_error_code(leaves, words, at_import):
    leaves(at_import)
    code, text = runs.call("train", "--run-dir", "run", *words)
    assert code == 1 and "Traceback" not in text, text
    assert re.search(r"scalerl: the process was ended with exit code 0 .*leaves:now \(.*leaves.py\)\n$", text), text
    assert not os.path.exists("run")


@pytest.mark.slow
def test_a_run_that_exits_in_c_has_the_state_stopped_and_can_be_resumed(leaves, lab_model):
    words = ["--model", str(lab_model), "--run-dir", "run", *runs.SMALL, "--steps", "8", "--checkpoint.every", "2"]
    code, text = runs.call("train", *words, "--recipe.loss", '{kind = "custom", function = "leaves:later"}')
    assert code == 1 and "Traceback" not in text, text
    assert text.rstrip().endswith("continue with: scalerl resume run"), text
    status = read_status(Path("run"))
    assert status.state == "stopped" and "ended with exit code 0 before" in status.message
    steps = len(runs.rows(Path("run"), "metrics.jsonl"))
    assert 0 < steps < 8
    Path("leaves.py").write_text(Path("leaves.py").read_text().replace("calls > 3", "False"))
    code, text = runs.call("resume", "run", "--trust")
    assert code == 0 and read_status(Path("run")).state == "finished", text
    assert len(runs.rows(Path("run"), "metrics.jsonl")) == 8


@pytest.mark.slow
def test_a_reward_that_ends_its_process_in_c_is_refused_before_the_run(leaves, lab_model):
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(80)))
    code, text = runs.call("train", "--preset", "lab", "--model", str(lab_model), "--data", "rows.jsonl", *runs.RECIPE,
                           "--reward", "leaves:reward", "--run-dir", "run")  # fmt: skip
    assert code == 2 and "leaves:reward ended its process 3 times (exit code 0)" in text, text
    assert not os.path.exists("run")
