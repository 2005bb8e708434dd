import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import EvalPoint
from scalerl.training.config import LAB
from scalerl.training.loop import run_dir
from scalerl.training.loop.run_dir import ROW_FILES, RunDirectory

POINT = EvalPoint(100, 0.021, 3.1e14, 4200000, "arithmetic", 0.412, 0.006, 1000, 16)


def test_files_of_a_run_killed_before_it_saved_its_configuration_are_ignored(tmp_path):
    (tmp_path / "rollouts").mkdir()
    (tmp_path / ".lock").touch()
    assert RunDirectory.create(tmp_path, LAB).path == tmp_path


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    held = RunDirectory.create(tmp_path / "run", LAB)
    with pytest.raises(ConfigError, match="another process"):
        RunDirectory.resume(tmp_path / "run")
    assert held.path == tmp_path / "run"


def test_points_are_read_and_rows_after_a_checkpoint_are_removed(tmp_path):
    run = RunDirectory.create(tmp_path / "run", LAB)
    run.add_points([POINT])
    run.append("metrics.jsonl", [{"step": 1, "loss": 0.5}])
    cursors = run.cursors()
    run.add_points([POINT])
    run.append("metrics.jsonl", [{"step": 2, "loss": float("nan")}])
    assert (tmp_path / "run/metrics.jsonl").read_text().endswith('"loss": null}\n')
    assert run.rewind({"cursors": cursors}) == []
    assert run.points() == [POINT] and (tmp_path / "run/metrics.jsonl").read_text() == '{"step": 1, "loss": 0.5}\n'


def counted(path):
    """Return a run with a row in every file, and the state of a checkpoint that counts them."""
    run = RunDirectory.create(path, LAB)
    for name in ROW_FILES:
        run.append(name, [{"step": 1, "text": "abc"}])
    cursors = run.cursors()
    return run, {"cursors": cursors, "row_digests": run.row_digests(cursors)}


def test_rows_are_on_disk_before_a_checkpoint_counts_them(tmp_path, monkeypatch):
    run, _ = counted(tmp_path / "run")
    synced = []
    monkeypatch.setattr("scalerl.training.loop.run_dir.sync", synced.append)
    assert set(run.cursors()) == set(ROW_FILES)
    assert synced == [run.path / name for name in ROW_FILES]


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts/samples.jsonl", "rollouts/samples.bin"])
def test_truncated_samples_do_not_stop_a_run_and_get_no_nul_bytes(tmp_path, name):
    run, state = counted(tmp_path / "run")
    run.append(name, [{"step": 2}])
    state["cursors"][name] = 99
    whole = (run.path / name).read_text()
    (run.path / name).write_text(whole + '{"half')
    run.check_rows(state)
    (note,) = run.rewind(state)
    assert name in note and "99" in note
    assert (run.path / name).read_text() == whole


@pytest.mark.parametrize(
    ("content", "rows"), [(b"", 0), (b"half", 0), (b"a\n", 2), (b"a\nbb\nhalf", 5), (b"a\n" + b"x" * 50, 2)]
)
def test_the_last_whole_row_is_found_from_the_end(tmp_path, monkeypatch, content, rows):
    monkeypatch.setattr(run_dir, "BLOCK_BYTES", 4)
    (tmp_path / "rows").write_bytes(content)
    assert run_dir._whole_rows(tmp_path / "rows") == rows
