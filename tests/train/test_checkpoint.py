import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.manifest import Damaged, check_files
from scalerl.training.config import LAB
from scalerl.training.learner.checkpoint import TRAINER_FORMAT, CheckpointStore, load_state, save_state
from scalerl.training.loop.run_dir import RunDirectory
from scalerl.training.loop.saved import sound_checkpoint


def test_only_committed_checkpoints_count_and_only_the_last_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20, 30):
        save_state(store.begin(step), "trainer", {"step": step})
        before = store.steps()
        assert step not in before
        store.commit(step)
    assert store.steps() == [20, 30] and load_state(store.latest(), "trainer") == {"step": 30}


def test_the_parts_of_a_checkpoint_are_on_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    happened, fsync, rename = [], os.fsync, Path.rename
    file_of = lambda descriptor: Path(os.readlink(f"/proc/self/fd/{descriptor}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda descriptor: happened.append(file_of(descriptor)) or fsync(descriptor))
    monkeypatch.setattr(Path, "rename", lambda path, to: happened.append(("rename", path.name)) or rename(path, to))
    store = CheckpointStore(tmp_path, keep=2)
    temporary = store.begin(10)
    save_state(temporary, "trainer", {"step": 10})
    save_state(temporary, "learner", {"weights": np.arange(4.0)})
    store.commit(10)
    named = happened.index(("rename", temporary.name))
    assert {"trainer.json", "learner.safetensors", temporary.name} <= set(happened[:named])
    assert tmp_path.name in happened[named:]


def test_a_failed_write_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save_state(store.begin(10), "trainer", {"step": 10})
    store.commit(10)
    monkeypatch.setattr(
        "scalerl.training.learner.checkpoint.save_file", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(OSError, match="No space left"):
        save_state(store.begin(20), "trainer", {"a": np.zeros(2)})
    assert load_state(CheckpointStore(tmp_path, keep=1).latest(), "trainer") == {"step": 10}


@pytest.fixture
def two(tmp_path):
    """A store with the checkpoints of steps 10 and 20, each of every kind of file."""
    (tmp_path / "checkpoints").mkdir()
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (10, 20):
        path = store.begin(step)
        save_state(path, "trainer", {"format": TRAINER_FORMAT, "step": step, "cursors": {}})
        save_state(path, "generator", {"tokens": np.arange(step), "sampling_version": step})
        (path / "learner").mkdir()
        (path / "learner/__0_0.distcp").write_bytes(b"shard" * step)  # of several ranks
        (path / "learner/.metadata").write_bytes(b"shapes")
        store.commit(step)
    return store


NAMES = (
    "trainer.json", "generator.safetensors", "learner/__0_0.distcp",
    
)  # fmt: skip


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FAULTS = {
    "missing": (lambda path: path.unlink(), r"{name} is missing; \d+ bytes were written"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), r"{name} has \d+ bytes; \d+ were written"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), r"{name} has \d+ bytes; \d+ were written"),
    "empty": (lambda path: path.write_bytes(b""), r"{name} has 0 bytes; \d+ were written"),
    "flipped": (flip, r"{name} has other contents than were written \(xxh3_128 \w{{12}}, expected \w{{12}}\)"),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_damage_in_any_part_is_detected(two, name, kind):
    harm, expected = FAULTS[kind]
    harm(two.path(20) / name)
    with pytest.raises(Damaged, match=f"^{expected.format(name=name)}$"):
        check_files(two.path(20))
    check_files(two.path(10))


def run_of(store):
    run = RunDirectory.create(store.directory.parent / "run", LAB)
    run.path.joinpath("metrics.jsonl").write_text("{}\n")
    return run


def test_the_newest_undamaged_checkpoint_is_resumed_and_damaged_ones_are_renamed(two):
    run, notes = run_of(two), []
    assert sound_checkpoint(run, two, notes.append).path == two.path(20) and not notes
    flip(two.path(20) / "generator.safetensors")
    assert sound_checkpoint(run, two, notes.append).path == two.path(10)
    assert two.steps() == [10] and (two.directory / "damaged_step_000020-001/generator.safetensors").exists()
    assert notes[0].startswith("the checkpoint of step 20 cannot be used: generator.safetensors has other contents")
    assert notes[1] == "going back to the checkpoint of step 10; the steps since then are trained again"


def test_checkpoints_of_another_format_are_refused_and_kept(two):
    for step in (10, 20):
        save_state(two.begin(step), "trainer", {"format": 2, "cursors": {}})
        two.commit(step)
    with pytest.raises(ConfigError, match=r"step 20: it has the format 2; .*scalerl train .*/config\.toml"):
        sound_checkpoint(run_of(two), two, pytest.fail)
    assert two.steps() == [10, 20]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert sound_checkpoint(run_of(store), store, pytest.fail) is None


@pytest.mark.parametrize("moment", ["before the new one has its name", "before the old one is removed"])
def test_a_kill_during_the_replacement_of_a_checkpoint_leaves_one(two, moment):
    final, replaced = two.path(20), two.directory / ".replaced_step_000020"
    if moment == "before the new one has its name":
        save_state(two.begin(20), "trainer", {"step": "half"})
        final.rename(replaced)
    else:
        shutil.copytree(final, replaced)
    again = CheckpointStore(two.directory, keep=2)
    assert again.steps() == [10, 20] and not list(two.directory.glob(".r*"))
    check_files(again.latest())


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_it(tmp_path, monkeypatch):
    def killed_at_the_first_file(path, **options):
        if path.exists():
            next(path.iterdir()).unlink()

    store = CheckpointStore(tmp_path, keep=1)
    for step in (10, 20):
        save_state(store.begin(step), "trainer", {"step": step})
        if step == 20:
            monkeypatch.setattr(shutil, "rmtree", killed_at_the_first_file)
        store.commit(step)
    assert store.steps() == [20]
    monkeypatch.undo()
    assert CheckpointStore(tmp_path, keep=1).steps() == [20] and not list(tmp_path.glob(".step*"))
