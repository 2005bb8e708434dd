"""Evaluations in a process of their own: the results of a run that pauses, after stops, kills and late results."""

import contextlib
import os
import signal
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
import runs
from pydantic import ValidationError

from scalerl.core.errors import ConfigError
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import Remote
from scalerl.core.types import EvalPoint
from scalerl.training.config.overrides import read_config
from scalerl.training.engines.pipeline import Interrupted
from scalerl.training.engines.replay import ReplayMismatch
from scalerl.training.learner.checkpoint import load_plain
from scalerl.training.loop import due
from scalerl.training.loop.due import evaluate_if_due
from scalerl.training.loop.evaluator import EVALUATED_WEIGHTS, Evaluated, Evaluator, EvaluatorDied, Snapshot
from scalerl.training.loop.progress import TrainingFailed

OVERLAP = ["--evaluation.overlap", "true"]
APART = ("eval_devices", "eval_flops", "replay_difference")
"""Columns that say what an overlapped evaluation took, or where its replay is reported."""

# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def overlapped(lab_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "overlapped"
    return path, runs.train(lab_model, path, *OVERLAP)


@pytest.mark.slow
def test_points_rows_and_weights_are_those_of_a_run_that_pauses(overlapped, lab_model, tmp_path):
    runs.train(lab_model, tmp_path / "paused")
    paused, beside = runs.outcome(tmp_path / "paused"), runs.outcome(overlapped[0])
    for file in ("points.jsonl", "metrics.jsonl"):
        for row in [*paused[file], *beside[file]]:
            for name in APART:
                row.pop(name, None)
    assert [point["step"] for point in beside["points.jsonl"]] == [0, 6, 12, 18, 24]
    assert beside == paused


@pytest.mark.slow
def test_a_point_has_the_cost_of_its_evaluation_apart_from_training(overlapped):
    points = runs.rows(overlapped[0], "points.jsonl")
    assert {point["eval_devices"] for point in points} == {1}
    assert all(point["eval_flops"] > 0 and 0 < point["replay_difference"] < 1e-4 for point in points)
    assert all(point["eval_wait_s"] >= 0 and point["eval_s"] > 0 for point in points)
    assert points[0]["device_hours"] == points[0]["flops"] == 0
    assert "evaluation every 6 steps, beside training: 16 held-out prompts x 2 samples" in overlapped[1]


@pytest.mark.slow
def test_a_stop_and_kills_during_an_evaluation_lose_and_double_nothing(overlapped, lab_model, tmp_path):
    path = tmp_path / "killed"

    def without_evaluator(process):
        """Suspend the evaluation process while it loads the model; return its id."""
        runs.wait_for(lambda: len(runs.children(process.pid)) == 2, what="the evaluation process")
        pid = runs.children(process.pid)[1]  # started after the generator
        # it is nicer once it is about to load the model; before that it may outlive its parent
        usual = os.getpriority(os.PRIO_PROCESS, process.pid)
        runs.wait_for(lambda: os.getpriority(os.PRIO_PROCESS, pid) > usual, what="the niceness of the process")
        os.kill(pid, signal.SIGSTOP)
        return pid

    process = runs.start(["train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *OVERLAP])
    without_evaluator(process)
    # training goes on until step 6, where the evaluation of step 0 is waited for
    runs.wait_for(lambda: (path / "checkpoints/step_000004").exists(), what="the checkpoint of step 4")
    runs.wait_for(lambda: len(runs.rows(path, "metrics.jsonl")) == 6, what="step 6")
    assert runs.rows(path, "points.jsonl") == []
    assert (path / f"checkpoints/step_000004/{EVALUATED_WEIGHTS}.safetensors").exists()
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT and "stopped at step 6; continue with" in text, text
    checkpoint = path / "checkpoints/step_000006"
    assert load_plain(checkpoint, "trainer")["evaluating"]["step"] == 0

    process = runs.start(["resume", str(path)])
    without_evaluator(process)
    started = runs.descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not runs.left_of(started, 60)  # the suspended one too

    process = runs.start(["resume", str(path)])
    pid = without_evaluator(process)
    os.kill(pid, signal.SIGKILL)  # replaced by the run
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "was killed by signal 9 during the evaluation of step 0" in text, text
    assert "another process repeats it" in text
    assert runs.outcome(path) == runs.outcome(overlapped[0])


# ------------------------------------------------------------------------------------- the trainer's side, by hand

SNAPSHOT = Snapshot(step=3, device_hours=0.1, flops=5.0, tokens=7)


class Scripted(Remote):
    """A process whose answers are a list of (kind, content)."""

    died = EvaluatorDied
    name = "the evaluation process (1)"

    def __init__(self, answers):
        self.answers, self.messages, self.stopped = list(answers), [], False

    def tell(self, method, *arguments):
        self.messages.append((method, *arguments))

    def poll(self, wait_s=0.0):
        return bool(self.answers)

    def read(self):
        return self.answers.pop(0)

    def end(self, wait_s=0.0):
        self.stopped = True


class Channel:
    """A channel that records what it holds."""

    def __init__(self):
        self.held = {}

    def receive(self, version):
        return self.held[version]

    def drop(self, version):
        del self.held[version]


def evaluator_of(*scripts):
    processes, notes = [Scripted(script) for script in scripts], []
    rest = iter(processes)
    one = Evaluator(lambda: next(rest), Channel(), notes.append)
    one.start()
    return one, processes, notes


def send(version, channel):
    channel.held[version] = {"w": version}


BUILT, KILLED = ("done", None), ("ended", "was killed by signal 9")
DONE = ("done", Evaluated([], [], []))


def test_a_result_is_taken_once_and_the_next_snapshot_replaces_its_weights():
    one, (process,), notes = evaluator_of([BUILT, DONE, DONE])
    one.begin(SNAPSHOT, send)
    assert one.channel.held == {3: {"w": 3}} and one.under_way == SNAPSHOT
    assert one.result(60) == DONE[1] and one.under_way is None
    one.begin(replace(SNAPSHOT, step=5), send)
    assert one.channel.held == {5: {"w": 5}} and [message[1].step for message in process.messages] == [3, 5]
    assert not notes


def test_a_killed_process_is_replaced_and_evaluates_the_same_weights():
    one, processes, notes = evaluator_of([BUILT, KILLED], [KILLED], [BUILT, DONE])
    one.begin(SNAPSHOT, send)
    assert one.result(60) == DONE[1]
    asked = [("evaluate", SNAPSHOT)]
    assert [process.messages for process in processes] == [asked, [], asked]  # the second one was never ready
    assert [process.stopped for process in processes] == [True, True, False]
    assert len(notes) == 2 and all("repeats it" in note and "step 3" in note for note in notes)
    assert one.channel.held == {3: {"w": 3}}


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ([[KILLED]] * 3, "was killed by signal 9 during the evaluation of step 3"),
        (
            [[BUILT, ("failed", ("ValueError: no", "Traceback ..."))]],
            "failed during the evaluation of step 3: ValueErr",
        ),
    ],
)
def test_a_process_that_fails_or_is_killed_again_and_again_ends_the_run(scripts, message):
    one, _, _ = evaluator_of(*scripts)
    one.begin(SNAPSHOT, send)
    with pytest.raises(ProcessDied, match=message):
        one.result(60)
    assert one.under_way == SNAPSHOT  # a checkpoint still has it


def test_a_checkpoint_is_complete_when_both_its_parts_are(tmp_path):
    import torch

    one, _, _ = evaluator_of([BUILT, DONE])
    one.begin(SNAPSHOT, lambda version, channel: channel.held.update({version: {"w": torch.tensor([1.5])}}))
    learner = Future()
    both = one.save_with(learner, tmp_path)
    runs.wait_for(lambda: (tmp_path / f"{EVALUATED_WEIGHTS}.safetensors").exists())
    assert not both.done()
    learner.set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        both.result(timeout=60)


# --------------------------------------------------------------------------------------------- when results are used


class Late:
    """An evaluator whose results arrive after so many questions, or only when they are waited for."""

    def __init__(self, after):
        self.after, self.under_way, self.spent_s, self._left = after, None, 0.0, 0

    def begin(self, snapshot, send):
        assert self.under_way is None
        self.under_way, self._left = snapshot, self.after

    def result(self, wait_s=0.0):
        self._left -= 1
        if self._left >= 0 and not wait_s:
            return None
        snapshot, self.under_way = self.under_way, None
        return Evaluated([point(snapshot)], [{"step": snapshot.step}], (f"note {snapshot.step}",))


def point(snapshot):
    return EvalPoint(
        step=snapshot.step, device_hours=snapshot.device_hours, flops=snapshot.flops, tokens=snapshot.tokens,
        task="arithmetic", pass_rate=0.5, stderr=0.01, prompts=4, samples_per_prompt=2,
    )  # fmt: skip


class Trained:
    """A run of ten steps, evaluated every two; the first condition holds once it sees the point of step 4."""

    def __init__(self, after, conditions=(), stop_at=None):
        self.rows, self.notes, self.phases, self.points, self.waits = [], [], [], [], 0
        directory = SimpleNamespace(append=lambda name, rows: self.rows.extend(rows), add_samples=lambda *_: None)
        self.records = SimpleNamespace(
            points=self.points, phase=self.phases.append, directory=directory,
            evaluated=lambda points, beside: self.points.extend(points),
            display=SimpleNamespace(note=self.notes.append),
        )  # fmt: skip
        self.config = SimpleNamespace(evaluation=SimpleNamespace(every=2, replayed=0), stop_when=conditions)
        stats = SimpleNamespace(tokens=0)
        self.progress = SimpleNamespace(step=0, flops=0.0, generator=stats, overruled=(), stopped_by="")
        clock = SimpleNamespace(paused=contextlib.nullcontext, add=lambda seconds: None)
        devices = SimpleNamespace(evaluating=1)
        self.compute = SimpleNamespace(device_hours=0.0, clock=clock, generated_s=lambda: 0.0, devices=devices)
        self.pipeline = SimpleNamespace(mark=self.mark)
        self.learner = SimpleNamespace(send=None, watch=lambda: None)
        self.evaluator, self._stop_at = Late(after), stop_at

    def mark(self):
        self.waits += 1

    def stop_requested(self):
        return self.progress.step == self._stop_at

    @property
    def finished(self):
        return self.progress.step >= 10 or bool(self.progress.stopped_by)

    def is_due(self, every):
        return self.progress.step % every == 0 or self.finished

    def train(self):
        evaluate_if_due(self)
        while not self.finished:
            self.progress.step += 1
            self.progress.flops += 1.0
            evaluate_if_due(self)
        return self


@pytest.mark.parametrize("after", [0, 1, 1_000])
def test_results_that_come_late_have_the_step_and_the_compute_of_their_weights(after):
    run = Trained(after).train()
    assert [(one.step, one.flops) for one in run.points] == [(n, n) for n in (0, 2, 4, 6, 8, 10)]
    assert [row["step"] for row in run.rows] == [0, 2, 4, 6, 8, 10]
    assert run.notes == [f"note {n}" for n in (0, 2, 4, 6, 8, 10)]
    assert run.evaluator.under_way is None  # the last one was waited for
    assert run.waits == {0: 0, 1: 1, 1_000: 6}[after]
    assert run.phases.count("evaluating") == run.waits == run.phases.count("training")


@pytest.mark.parametrize("after", [0, 1, 1_000])
def test_a_condition_ends_the_run_at_the_same_step_however_late_results_come(after, monkeypatch):
    def holds(conditions, points, config):
        return (conditions[0], "it fell") if any(one.step == 4 for one in points) else None

    monkeypatch.setattr(due, "first_to_stop", holds)
    run = Trained(after, conditions=("falling",)).train()
    # the point of step 4 is judged when step 6 is evaluated, which is the last evaluation
    assert run.progress.step == 6 and run.progress.stopped_by == "falling"
    assert [one.step for one in run.points] == [0, 2, 4, 6]


def test_a_stop_during_a_wait_leaves_the_evaluation_under_way():
    run = Trained(1_000, stop_at=2)
    run.evaluator.result = lambda wait_s=0.0: None
    with pytest.raises(Interrupted):
        run.train()
    assert run.progress.step == 2 and run.evaluator.under_way.step == 0 and not run.points


def test_log_probabilities_of_other_weights_end_the_run_with_the_step_of_the_weights(monkeypatch):
    run = Trained(1_000)

    def mismatch(wait_s=0.0):
        raise ReplayMismatch("they are not those that were sent")

    run.evaluator.result = mismatch
    with pytest.raises(TrainingFailed, match="step 0: they are not those that were sent"):
        run.train()


def test_servers_given_by_address_cannot_evaluate_beside_training():
    words = ["--placement.servers", '["http://a:1"]', "--placement.engine", "vllm"]
    with pytest.raises((ConfigError, ValidationError), match=r"got true with placement\.servers; allowed: false"):
        read_config(None, ["--preset", "lab", *OVERLAP, *words])
