"""Tests that a checkpoint is written while training goes on, and that a failed one leaves the last one whole."""

import errno
import os
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_model

from scalerl.training.config import LAB
from scalerl.training.learner import single
from scalerl.training.learner.checkpoint import CheckpointStore, load_state
from scalerl.training.learner.single import SingleLearner
from scalerl.training.loop import saved
from scalerl.training.loop.run import Run
from scalerl.training.models.policy import Policy


@pytest.fixture
def held(monkeypatch):
    """An event without which no part of a learner is written."""
    may, before = threading.Event(), single.save_state

    def slow(*words):
        assert may.wait(30.0)
        before(*words)

    monkeypatch.setattr(single, "save_state", slow)
    yield may
    may.set()


def test_the_weights_of_the_call_are_written_although_training_goes_on(tmp_path, held):
    learner = SingleLearner(Policy(tiny_model("qwen3")), LAB.recipe)
    expected = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    done = learner.begin_save(tmp_path)
    with torch.no_grad():
        for master in learner._masters:
            master.add_(1.0)
    assert not done.done()
    held.set()
    done.result()
    found = load_state(tmp_path, "learner")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_large_learner_on_cpu_is_written_without_a_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(single, "COPIED", 10)
    learner = SingleLearner(Policy(tiny_model("qwen3")), LAB.recipe)
    copies, before = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: copies.append(k.get("copy")) or before(self, *a, **k))
    assert learner.begin_save(tmp_path).done() and True not in copies


class Parts:
    """A run as far as checkpoints need it, with a generator that saves at once."""

    def __init__(self, path, save):
        self.snapshots = []
        clock = SimpleNamespace(paused=lambda: saved_nothing(), add=lambda seconds: None)
        directory = SimpleNamespace(config=LAB, cursors=dict, row_digests=lambda cursors: {}, path=path)
        records = SimpleNamespace(directory=directory, points=[])
        pipeline = SimpleNamespace(
            mark=lambda: None, snapshot=lambda step, path: self.snapshots.append(step), snapshots_done=self.done
        )
        stateful = SimpleNamespace(state=dict)
        self.store = CheckpointStore(path, keep=2)
        self.run = SimpleNamespace(
            records=records, pipeline=pipeline, progress=saved.Progress(), curriculum=stateful, scoring=stateful,
            compute=SimpleNamespace(clock=clock, generated_s=lambda: 0.0, device_hours=0.0),
            learner=SimpleNamespace(begin_save=save), store=self.store, inputs={}, saves={}, saved_by_generator=set(),
            evaluator=None,
        )  # fmt: skip

    def done(self, wait_for=()):
        found, self.snapshots = self.snapshots, []
        assert set(wait_for) <= set(found)
        return found

    def write(self, step):
        self.run.progress.step = step
        saved.save(self.run)

    def commit(self, wait=False):
        saved.commit(self.run, wait)


class saved_nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def test_a_checkpoint_is_complete_only_when_its_weights_are(tmp_path):
    saves = []
    parts = Parts(tmp_path, lambda path: saves.append(Future()) or saves[-1])
    parts.write(4)
    parts.commit()
    assert parts.store.steps() == []  # the generator has saved, the learner has not
    saves[0].set_result(None)
    parts.commit()
    assert parts.store.steps() == [4]


def test_only_one_checkpoint_is_written_at_a_time(tmp_path):
    saves = []
    parts = Parts(tmp_path, lambda path: saves.append(Future()) or saves[-1])
    parts.write(4)
    thread = threading.Thread(target=parts.write, args=(8,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and len(saves) == 1
    saves[0].set_result(None)
    thread.join(60.0)
    saves[1].set_result(None)
    parts.commit(wait=True)
    assert len(saves) == 2 and parts.store.steps() == [4, 8]


@pytest.mark.parametrize("at", ["next step", "next checkpoint", "end"])
def test_a_failed_save_is_an_error_that_leaves_the_last_checkpoint_whole(tmp_path, at):
    saves = []
    parts = Parts(tmp_path, lambda path: saves.append(Future()) or saves[-1])
    parts.write(4)
    saves[0].set_result(None)
    parts.commit(wait=True)
    parts.write(8)
    saves[1].set_exception(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(OSError, match="No space left"):
        parts.write(12) if at == "next checkpoint" else parts.commit(wait=at == "end")
    assert parts.store.steps() == [4]
    assert CheckpointStore(tmp_path, keep=2).steps() == [4]  # the next start removes the half one


def test_the_end_of_a_run_waits_for_what_is_written(tmp_path):
    saves = []
    parts = Parts(tmp_path, lambda path: saves.append(Future()) or saves[-1])
    parts.write(4)
    closed = SimpleNamespace(close=lambda: None)
    ended = SimpleNamespace(
        saves=parts.run.saves, pipeline=closed, evaluator=closed, learner=closed, scoring=closed, records=closed
    )
    thread = threading.Thread(target=Run.close, args=(ended,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    saves[0].set_exception(OSError(errno.ENOSPC, "full"))  # reported by whatever ended the run
    thread.join(60.0)
    assert not thread.is_alive()
