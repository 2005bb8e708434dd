import tracemalloc

import pytest

from scalerl.core import manifest
from scalerl.core.errors import ConfigError
from scalerl.core.manifest import new_digest
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


def test_the_digest_of_rows_is_incremental(tmp_path):
    run, first = counted(tmp_path / "run")
    run.append("metrics.jsonl", [{"step": 2}])
    cursors = run.cursors()
    second = run.row_digests(cursors)
    assert second["metrics.jsonl"] != first["row_digests"]["metrics.jsonl"]
    assert second["points.jsonl"] == first["row_digests"]["points.jsonl"]
    run.check_rows({"cursors": cursors, "row_digests": second})


def test_large_row_files_are_read_in_pieces_by_the_first_checkpoint_after_a_resume(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path / "run", LAB)
    monkeypatch.setattr(manifest, "BLOCK_BYTES", 1 << 20)
    content = b"".join(b'{"step": %d, "x": "%s"}\n' % (i, b"y" * 1000) for i in range(16_000))
    (run.path / "metrics.jsonl").write_bytes(content)
    cursors = run.cursors()
    expected = new_digest()
    expected.update(content)
    del content
    tracemalloc.start()
    assert run.row_digests(cursors)["metrics.jsonl"] == expected.hexdigest()
    assert tracemalloc.get_traced_memory()[1] < 3 << 20  # of 16 MB
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "rows"), [(b"", 0), (b"half", 0), (b"a\n", 2), (b"a\nbb\nhalf", 5), (b"a\n" + b"x" * 50, 2)]
)
def test_the_last_whole_row_is_found_from_the_end(tmp_path, monkeypatch, content, rows):
    monkeypatch.setattr(run_dir, "BLOCK_BYTES", 4)
    (tmp_path / "rows").write_bytes(content)
    assert run_dir._whole_rows(tmp_path / "rows") == rows
