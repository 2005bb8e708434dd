"""Records of a dead process: one line for the user, and its traceback in errors.log."""

import pickle

import pytest

from scalerl.core.processes import fault
from scalerl.learner.ranks import LearnerDied
from scalerl.rollouts.process_engine import EngineDied
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


def test_a_full_disk_does_not_hide_the_message(tmp_path):
    message = recorded(LearnerDied("rank 1 failed: KeyError: 3", "Traceback ..."), tmp_path / "gone")
    assert message.startswith("rank 1 failed: KeyError: 3 (its traceback could not be written to ")


@pytest.mark.parametrize("kind", [EngineDied, LearnerDied])
def test_an_error_with_a_traceback_survives_pickling(kind):
    back = pickle.loads(pickle.dumps(kind("it failed", "Traceback ...")))
    assert (str(back), back.trace) == ("it failed", "Traceback ...")
