"""Records of a dead process: one line for the user, and its traceback in errors.log."""

import errno
import socket
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from scalerl.core.errors import RunFailed
from scalerl.core.processes import ProcessDied, fault
from scalerl.training.config.placement import Placement
from scalerl.training.engines.pipeline import WorkerDied
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.ranks import LearnerDied, LearnerGroup, TransferDied
from scalerl.training.loop import complete
from scalerl.training.loop.run_dir import recorded


def raised(error):
    """Return an exception with the traceback of a function."""
    try:
        raise error
    except type(error) as found:
        return fault(found)


def test_a_failed_process_is_described_in_one_line_and_its_traceback_is_appended_to_a_file(tmp_path):
    for number in (1, 2):
        output, trace = raised(ValueError(f"no such\nlayer: {number}"))
        assert output == f"ValueError: no such layer: {number}"
        message = recorded(LearnerDied(f"trainer rank {number} failed: {output}", trace), tmp_path)
        assert message == (
            f"trainer rank {number} failed: ValueError: no such layer: {number} (traceback: {tmp_path}/errors.log)"
        )
    text = (tmp_path / "errors.log").read_text()
    assert text.count("Traceback (most recent call last)") == 2 and text.count("raise error") == 2
    assert text.index("trainer rank 1 failed") < text.index("trainer rank 2 failed")


def test_a_full_disk_does_not_hide_the_message(tmp_path):
    message = recorded(LearnerDied("rank 1 failed: KeyError: 3", "Traceback ..."), tmp_path / "gone")
    assert message.startswith("rank 1 failed: KeyError: 3 (its traceback could not be written to ")


class Run:
    """Runs of one directory: each start of training raises the next error of a list, and then one ends well."""

    def __init__(self, monkeypatch, tmp_path, errors, backend="local", restarts=3):
        self.errors, self.starts, self.closed, self.notes = list(errors), 0, 0, []
        self.path, self.placement = tmp_path, Placement(backend=backend, restarts=restarts)
        monkeypatch.setattr(complete, "_trained", self.train)
        monkeypatch.setattr(complete, "resume", lambda path, steps, display, stop: self.session())

    def session(self):
        self.starts += 1

        def close():
            self.closed += 1

        records = SimpleNamespace(directory=SimpleNamespace(path=self.path), ended=lambda state: None, points=[1])
        store = SimpleNamespace(steps=lambda: [7])
        config = SimpleNamespace(placement=self.placement)
        return SimpleNamespace(records=records, config=config, store=store, close=close)

    def train(self, session):
        if self.errors:
            raise self.errors.pop(0)
        return complete.RunEnd(self.path, [], True)

    def complete(self):
        display = SimpleNamespace(start=lambda: None, stop=lambda: None, note=self.notes.append)
        return complete.complete(lambda *arguments: self.session(), display, lambda: False)


def test_a_run_on_one_machine_survives_a_transfer_that_its_trainer_could_not_end(monkeypatch, tmp_path):
    """As it survives a server that dies a second earlier; other deaths of the trainer end it."""
    run = Run(monkeypatch, tmp_path, [TransferDied("trainer rank 1 of 1 did not answer in time")] * 3)
    assert run.complete().finished and run.starts == 4 and run.closed == 4
    assert len(run.notes) == 3 and "going back to the last checkpoint" in run.notes[0]


@pytest.mark.parametrize(
    "errors",
    [[TransferDied("late")] * 4, [LearnerDied("killed")], [WorkerDied("ended")], [TransferDied("a"), LearnerDied("b")]],
)
def test_a_run_on_one_machine_ends_with_other_deaths_and_after_its_restarts(errors, monkeypatch, tmp_path):
    run = Run(monkeypatch, tmp_path, errors)
    with pytest.raises(RunFailed, match=f"{errors[-1]}.*\n?.*continue with: scalerl resume"):
        run.complete()
    assert run.starts == len(errors)


@pytest.mark.parametrize(("into_engines", "kind"), [(True, TransferDied), (False, LearnerDied)])
def test_only_a_transfer_into_running_engines_counts_as_one_that_the_engines_may_have_stopped(into_engines, kind):
    class Ranks:
        def call(self, method, *arguments, timeout_s):
            raise LearnerDied("trainer rank 1 of 1 was killed", "Traceback ...")

    channel = WeightChannel()
    channel.into_engines = into_engines
    group = LearnerGroup(Ranks(), [channel], step_timeout_s=1, transfer_timeout_s=1)
    with pytest.raises(ProcessDied) as caught:
        group.send(1, channel)
    assert type(caught.value) is kind and caught.value.trace == "Traceback ..."


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "metrics.jsonl"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_fills_during_a_run_is_told_with_its_host_and_what_is_safe(error, monkeypatch, tmp_path):
    run = Run(monkeypatch, tmp_path, [error])
    with pytest.raises(RunFailed) as caught:
        run.complete()
    text = str(caught.value)
    assert text.startswith(f"{socket.gethostname()}:{tmp_path}: the trainer could not write (")
    assert "MB are free there, and the checkpoint of step 7 is whole" in text
    assert text.endswith(f"continue with: scalerl resume {tmp_path}") and run.closed == 1
