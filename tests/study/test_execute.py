"""Execution: order, slices, failures and kills, with scripted processes that do not depend on time."""

import os
import tomllib
from pathlib import Path

import pytest
from simulated_study import point_row

from scalerl.core.errors import ConfigError
from scalerl.core.run_files import RunKey
from scalerl.training.config import QUICK
from scalerl.training.config.base import replace
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.execute import Execution, execute, target_step
from scalerl.training.study.plan import Arm, Plan

BASE = replace(QUICK, steps=40)


def plan(*names, seeds=(0, 1), **fields):
    arms = [Arm(name=name, changes={"recipe": {"loss": {"max_ratio": 2.0 + i}}}) for i, name in enumerate(names)]
    return Plan(**{"name": "t", "reference": names[0], "seeds": seeds, "base": BASE, "arms": arms, **fields})


class Scripted:
    """A job that runs for a number of polls and then has written the files of a run."""

    def __init__(self, workers, command, log):
        self.workers, self.command, self.left = workers, command, workers.looks
        self.run = next(word for word in command if "seed-" in word and not word.endswith(".toml"))
        self.log = log

    def poll(self):
        self.left -= 1
        if self.left > 0:
            return None
        self.workers.active -= 1
        arm = self.run.split(os.sep)[-2]
        if arm in self.workers.failing:
            self.log.write_text("working\nscalerl: step 3: the loss is not a number\nAll saved results are kept\n")
            return 1
        os.makedirs(self.run, exist_ok=True)
        with open(f"{self.run}/config.toml", "a"), open(f"{self.run}/points.jsonl", "a") as file:
            file.write(point_row(min(self.target(), self.workers.most), 0.5))
        self.log.write_text("trained\n")
        return 0

    def target(self):
        if "--steps" in self.command:
            return int(self.command[self.command.index("--steps") + 1])
        file = Path(next(word for word in self.command if word.endswith(".toml")))
        return tomllib.loads(file.read_text())["steps"]

    def terminate(self):
        self.workers.stopped.append(self.run)


class ScriptedWorkers:
    def __init__(self, count=1, looks=1, failing=(), most=10**9):
        self.count, self.looks, self.failing, self.most = count, looks, failing, most
        self.started, self.stopped, self.active, self.busiest = [], [], 0, 0

    def start(self, command, log):
        self.active += 1
        self.busiest = max(self.busiest, self.active)
        job = Scripted(self, command, log)
        self.started.append((os.sep.join(job.run.split(os.sep)[-2:]), command[3], job.target()))
        return job


class Quiet:
    def __init__(self):
        self.notes = []

    def update(self, states):
        pass

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("scalerl.training.study.execute.PROCESSES_POLL_S", 0.0)


def run(study, workers, shares=(1.0,), stop=lambda: False):
    execution = Execution(study, workers, Quiet(), stop)
    execute(execution, shares)
    return execution


def test_every_arm_gets_its_first_seed_before_any_gets_its_second(tmp_path):
    workers = ScriptedWorkers()
    run(StudyDirectory.create(tmp_path / "s", plan("a", "b")), workers)
    assert workers.started == [
        ("a/seed-0", "train", 40), ("b/seed-0", "train", 40), ("a/seed-1", "train", 40), ("b/seed-1", "train", 40),
    ]  # fmt: skip


def test_a_failed_arm_is_reported_with_its_error_and_the_others_continue(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "scalerl.training.study.execute.by_forecast", lambda study: (["a", "b"], "both may be the best")
    )
    study, workers = StudyDirectory.create(tmp_path / "s", plan("a", "b")), ScriptedWorkers(failing=("a",))
    execution = run(study, workers, shares=(0.5, 1.0))
    assert execution.failures == {RunKey("a", s): "scalerl: step 3: the loss is not a number" for s in (0, 1)}
    assert [study.step(RunKey("b", s)) for s in (0, 1)] == [40, 40]
    assert [name for name, _, _ in workers.started].count("a/seed-0") == 1  # not retried in the second slice
    assert "a/seed-0 failed with exit code 1: scalerl: step 3" in execution.display.notes[0]


def test_resume_starts_unfinished_runs_and_retries_failed_ones(tmp_path):
    study = StudyDirectory.create(tmp_path / "s", plan("a", "b"))
    run(study, ScriptedWorkers(failing=("b",)))
    again = ScriptedWorkers()
    run(StudyDirectory.create(tmp_path / "s", plan("a", "b")), again)
    assert again.started == [("b/seed-0", "train", 40), ("b/seed-1", "train", 40)]
    third = ScriptedWorkers()
    run(StudyDirectory.open(tmp_path / "s"), third)
    assert third.started == []


def test_slices_end_at_evaluations_and_dropped_arms_do_not_continue(tmp_path, monkeypatch):
    assert [target_step(BASE, share) for share in (0.01, 0.3, 0.5, 0.99, 1.0)] == [8, 16, 16, 40, 40]
    study, workers = StudyDirectory.create(tmp_path / "s", plan("a", "b", seeds=(0,))), ScriptedWorkers()
    monkeypatch.setattr("scalerl.training.study.execute.by_forecast", lambda study: (["b"], "a is behind"))
    execution = run(study, workers, shares=(0.5, 1.0))
    assert execution.display.notes == ["a is behind"]
    assert workers.started == [("a/seed-0", "train", 16), ("b/seed-0", "train", 16), ("b/seed-0", "resume", 40)]


def test_a_run_that_ended_because_every_prompt_was_solved_is_finished(tmp_path):
    study = StudyDirectory.create(tmp_path / "s", plan("a", "b", seeds=(0,)))
    run(study, ScriptedWorkers(most=24))
    again = ScriptedWorkers()
    execution = run(study, again)
    assert again.started == [] and set(execution.states.values()) == {"finished"}


def test_a_stop_request_stops_running_jobs_and_starts_no_others(tmp_path):
    study, workers = StudyDirectory.create(tmp_path / "s", plan("a", "b")), ScriptedWorkers(looks=5)
    looks = iter([False, False] + [True] * 50)
    run(study, workers, stop=lambda: next(looks))
    assert len(workers.started) == 1 and len(workers.stopped) == 1


def test_a_run_of_a_killed_study_is_awaited_and_not_started_twice(tmp_path):
    import fcntl

    study = StudyDirectory.create(tmp_path / "s", plan("a", "b", seeds=(0,)))
    left = study.run(RunKey("a", 0))
    left.mkdir(parents=True)
    lock = os.open(left / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    looks = []

    def stop():
        looks.append(study.in_training(RunKey("a", 0)))
        if len(looks) == 5:
            os.close(lock)  # the process ends
        return False

    workers = ScriptedWorkers()
    execution = run(study, workers, stop=stop)
    assert looks[:5] == [True] * 5 and workers.started == [("b/seed-0", "train", 40), ("a/seed-0", "train", 40)]
    assert execution.display.notes == ["a/seed-0: a process from an earlier start is still running; waiting for it"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (plan("a", "c"), "arms.b.*arms.c"),
        (plan("a", "b", base=replace(BASE, steps=80)), "base.steps is 40 there and 80"),
    ],
)
def test_a_directory_with_another_plan_is_an_error_that_lists_the_changes(tmp_path, other, message):
    StudyDirectory.create(tmp_path / "s", plan("a", "b"))
    before = (tmp_path / "s/study.toml").read_text()
    with pytest.raises(ConfigError, match=message):
        StudyDirectory.create(tmp_path / "s", other)
    assert (tmp_path / "s/study.toml").read_text() == before


def test_two_processes_cannot_execute_one_study(tmp_path):
    study = StudyDirectory.create(tmp_path / "s", plan("a", "b"))
    study.hold()
    with pytest.raises(ConfigError, match="another process is running this study"):
        study.hold()
