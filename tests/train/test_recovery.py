"""Records of a dead process: one line for the user, and its traceback in errors.log."""

import pickle
from types import SimpleNamespace

import pytest

from scalerl.core.processes import ProcessDied, fault
from scalerl.rollouts.pipeline import WorkerDied
from scalerl.rollouts.process_engine import EngineDied
from scalerl.training import complete
from scalerl.training.learner.ranks import LearnerDied
from scalerl.training.run_dir import recorded


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


def test_a_killed_process_has_no_traceback_and_no_file_is_written(tmp_path):
    assert recorded(ProcessDied("the generator was killed by signal 9"), tmp_path) == (
        "the generator was killed by signal 9"
    )
    assert not list(tmp_path.iterdir())


def test_the_traceback_of_an_engine_is_passed_on_by_the_generator():
    assert raised(EngineDied("generator 2 failed: KeyError: 'slot'", "Traceback ...")) == (
        "generator 2 failed: KeyError: 'slot'",
        "Traceback ...",
    )


def test_a_full_disk_does_not_hide_the_message(tmp_path):
    message = recorded(LearnerDied("rank 1 failed: KeyError: 3", "Traceback ..."), tmp_path / "gone")
    assert message.startswith("rank 1 failed: KeyError: 3 (its traceback could not be written to ")


@pytest.mark.parametrize("kind", [EngineDied, LearnerDied])
def test_an_error_with_a_traceback_survives_pickling(kind):
    back = pickle.loads(pickle.dumps(kind("it failed", "Traceback ...")))
    assert (str(back), back.trace) == ("it failed", "Traceback ...")


def test_a_run_whose_generator_failed_ends_with_one_line_and_instructions(tmp_path, monkeypatch):
    ended = []
    session = SimpleNamespace(
        records=SimpleNamespace(
            directory=SimpleNamespace(path=tmp_path),
            ended=lambda state, message: ended.append((state, message)),
        ),
        checkpoints=SimpleNamespace(store=SimpleNamespace(steps=lambda: [])),
        config=SimpleNamespace(placement=SimpleNamespace(backend="local")),
        close=lambda: None,
    )
    display = SimpleNamespace(start=lambda: None, stop=lambda: None, note=lambda text: None)

    def fail(session):
        raise WorkerDied("the generator process (7) failed: KeyError: 'slot'", "Traceback ...\nKeyError: 'slot'\n")

    monkeypatch.setattr(complete, "run_to_end", fail)
    with pytest.raises(complete.RunFailed) as raised:
        complete.complete(lambda display, stop: session, display, lambda: False)
    assert str(raised.value) == (
        f"the generator process (7) failed: KeyError: 'slot' (traceback: {tmp_path}/errors.log)\n"
        f"All saved results are kept; continue with: scalerl resume {tmp_path}"
    )
    assert ended == [("failed", "the generator process (7) failed: KeyError: 'slot'")]
    assert "KeyError: 'slot'\n" in (tmp_path / "errors.log").read_text()
