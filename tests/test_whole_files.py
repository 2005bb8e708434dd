"""Files are written atomically, with the user's umask, and never replace files of another kind."""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.files import atomic_file, move_into, next_directory, output_directory, write_whole
from scalerl.core.outputs import check_output, write_or_explain
from scalerl.reading.logs.points import Imported, holds_part_of


def test_commands_that_start_together_get_different_directories_and_leave_no_empty_one(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: next_directory(tmp_path / "runs", "a"), range(40)))
    assert {path.name for path in paths} == {f"a-{number:03d}" for number in range(1, 41)}
    for path in sorted(paths)[1:]:
        path.rmdir()
    with (
        output_directory(None, tmp_path / "runs", "a") as path,
        output_directory(None, tmp_path / "runs", "a") as other,
    ):
        (path / "points.jsonl").touch()
    assert path.name == "a-002" and path.exists() and other.name == "a-003" and not other.exists()
    with pytest.raises(ConfigError), output_directory(None, tmp_path / "new", "a"):
        raise ConfigError("the model is damaged")
    assert not (tmp_path / "new").exists()


def test_an_interrupted_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as temporary:
        temporary.write_text("ha")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_failed_move_keeps_the_old_file_and_explains_why(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_text("old")

    def refuse(self, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    output = write_or_explain(path, "new")
    assert os.strerror(errno.EROFS) in output and "unchanged" in output
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_pipes_and_devices_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "through")
    assert os.read(reader, 99) == b"through" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    null = os.stat("/dev/null")
    with atomic_file(type(pipe)("/dev/null")) as place:
        assert str(place) == "/dev/null"
    assert os.stat("/dev/null").st_ino == null.st_ino


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"


def test_moving_a_directory_keeps_other_files_of_the_target(tmp_path):
    for name, text in (
        ("run/model/config.json", "old"),
        ("run/model/README.md", "mine"),
        ("tmp/model/config.json", "new"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    move_into(tmp_path / "tmp", tmp_path / "run")
    assert (tmp_path / "run/model/config.json").read_text() == "new"
    assert (tmp_path / "run/model/README.md").read_text() == "mine" and not (tmp_path / "tmp").exists()


def test_an_output_may_replace_a_page_or_an_empty_file_also_through_a_link(tmp_path):
    (tmp_path / "page.html").write_text("<!DOCTYPE html>\n<html>")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("page.html")
    (tmp_path / "later").symlink_to("not-yet.html")
    for name, place in (("page.html", "page.html"), ("empty", "empty"), ("link", "page.html"), ("new", "new"),
                        ("later", "not-yet.html")):  # fmt: skip
        assert check_output(tmp_path / name, []) == tmp_path / place
    with pytest.raises(ConfigError, match="is an input of this command"):
        check_output(tmp_path / "link", [tmp_path / "page.html"])  # a page may be an input too


def imported(count):
    rows = [{"step": n, "tokens": 10.0 * n, "task": "math", "pass_rate": 0.1 * n} for n in range(count)]
    return Imported(rows, (), "table", "pass_rate", "tokens", (0.0, 1.0))


def test_points_are_replaced_only_by_points_of_the_same_log(tmp_path):
    from scalerl.reading.logs.points import write_points

    path = tmp_path / "points.jsonl"
    write_points(imported(4), path)
    grown = imported(6)
    for row in grown.rows:
        row["tokens"] += 1.0  # counted again
    assert holds_part_of(grown, path)
    grown.rows[2]["pass_rate"] += 0.05
    assert not holds_part_of(grown, path)  # another metric
    assert not holds_part_of(imported(3), path)  # a shorter log
    path.write_text("[1, 2]\n")
    assert not holds_part_of(imported(6), path)
    path.write_bytes(b"\xff")
    assert not holds_part_of(imported(6), path)
