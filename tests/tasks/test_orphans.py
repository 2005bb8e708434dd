"""Processes for programs and rewards end with their parent, even if it is killed."""

import os
import signal
import subprocess
import sys

import pytest
import runs

BUSY = """
import sys, time
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.sandbox.box import Box
from scalerl.training.rewards.sandbox.detect import offer
box = Box(offer(Sandbox(mode=sys.argv[1])))
deadline = time.monotonic() + 60
box.begin("stdin", deadline, program="while True: pass")
box.send(b"I", b"", deadline)
print("begun", flush=True)
box.receive(deadline)
"""

SCORER = """
import re, time
from scalerl.training.config import Scoring
from scalerl.training.rewards.pool import ScoringPool
if __name__ == "__main__":
    pool = ScoringPool(1, None, Scoring())
    pool.schedule(re.match, "(a+)+$", "a" * 64 + "b", limit_s=600)  # for ever, with the interpreter's lock held
    print("begun", flush=True)
    time.sleep(60)
"""
STARTING = """
import time
from scalerl.core.processes import ChildContext
class Slow:
    def __reduce__(self):
        return sum, (range(10**11),)
if __name__ == "__main__":
    ChildContext().Process(target=print, args=(Slow(),)).start()
    print("begun", flush=True)
    time.sleep(60)
"""


def killed(process):
    """Kill a process after it has started its children; return the children that are left 20 s later."""
    started = runs.descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert started
    return runs.left_of(started, 20.0)


@pytest.mark.parametrize("mode", ["bubblewrap", "unsafe"])
def test_a_busy_program_ends_with_its_parent(mode):
    words = [sys.executable, "-c", BUSY, mode]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.skip(process.stderr.read())
        assert line == "begun\n"
        runs.wait_for(lambda: any(seconds_of(pid) > 0.5 for pid in runs.descendants(process.pid)), what="the program")
        assert not killed(process)


def seconds_of(pid):
    """Return the seconds of CPU time that a process has used."""
    stat = runs._stat(pid)
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") if stat else 0.0


@pytest.mark.parametrize("script", [SCORER, STARTING], ids=["scoring", "starting"])
def test_a_stopped_process_ends_with_its_parent(script, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(script)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        runs.wait_for(lambda: any(seconds_of(pid) > 0.5 for pid in runs.descendants(process.pid)), what="its child")
        assert not killed(process)
