"""A log is followed while its run trains: new rows are read once, and a file that changes in any way is no error."""

import gzip
import json
import random

import pytest
from watched import add_points, write_run

from scalerl.core.status import Heartbeat
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.following import FollowedLog, Reading
from scalerl.reading.tables.lines import Console

EIGHT = Reading({"devices": 8.0})


def level(step):
    return 0.2 + 0.6 * step / (step + 30)


def row(step, low=0.0, high=1.0):
    value = low + (high - low) * level(step) + random.Random(step).gauss(0, 0.01 * (high - low))
    return {"step": step, "reward": value, "loss": 0.1, "step_time": 60.0}


def lines(first, last, **options):
    return "".join(json.dumps(row(step, **options)) + "\n" for step in range(first, last + 1))


def csv(first, last):
    return "".join(",".join(f"{cell:.6f}" for cell in row(step).values()) + "\n" for step in range(first, last + 1))


def console(first, last):
    return "".join(
        f"===== Step {step}/500 =====\n  Avg Reward: {row(step)['reward']:.4f}\n  total step time: 60.0s\n"
        for step in range(first, last + 1)
    )


HEADER = "step,reward,loss,step_time\n"


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def kinds(log):
    return [change.kind for change in log.look()]


def values(log):
    return log.source.log.values


@pytest.mark.parametrize(("make", "header"), [(lines, ""), (csv, HEADER), (console, "")])
def test_only_complete_rows_count_and_every_row_counts_once(tmp_path, make, header):
    path = tmp_path / ("run.csv" if header else "run.log")
    append(path, header + make(1, 40))
    log = FollowedLog(path, EIGHT)
    assert kinds(log) == ["forecast"] and values(log) == 40
    assert log.look() == [] and values(log) == 40
    more = make(41, 43)
    cut = len(more) - 9  # in the middle of the last line
    append(path, more[:cut])
    log.look()
    assert values(log) == 42 + (make is console)  # the open block of step 43 has its reward already
    append(path, more[cut:] + make(44, 60))
    log.look()
    assert values(log) == 60
    whole = FollowedLog(path, EIGHT)
    whole.look()
    assert log.source.log.rows == whole.source.log.rows
    assert log.outlook.advice == whole.outlook.advice


@pytest.mark.parametrize("last", ['{"step": 41, "reward": 0.5', '{"step": 41, "reward": 0.5}'])
def test_a_line_without_its_end_is_neither_an_error_nor_a_point(tmp_path, last):
    path = tmp_path / "run.jsonl"
    append(path, lines(1, 40) + last)
    log = FollowedLog(path, EIGHT)
    log.look()
    assert values(log) == 40 and not any("incomplete" in note for note in log.source.log.notes)


@pytest.mark.parametrize("odd", ['{"step": 7, "reward"\n', '{"a": 1}{"b": 2}\n'])
def test_lines_that_are_parsed_together_give_the_rows_of_lines_that_are_parsed_alone(tmp_path, monkeypatch, odd):
    text = lines(1, 300) + odd + lines(301, 1500)
    together = Console()
    table = together.read(text.splitlines(keepends=True))
    alone = Console()
    monkeypatch.setattr(alone, "_objects", lambda chunk: False)
    expected = alone.read(text.splitlines(keepends=True))
    assert (together.objects, together.bad, together.kinds, together.lines) == (
        alone.objects, alone.bad, alone.kinds, alone.lines,
    )  # fmt: skip
    assert table.size == expected.size and table.names == expected.names
    for name in table.names:
        assert all((one == other).all() for one, other in zip(table.cells[name], expected.cells[name], strict=True))


def test_a_rotated_log_continues_its_curve_and_a_new_run_replaces_it(tmp_path):
    path = tmp_path / "run.jsonl"
    append(path, lines(1, 40))
    log = FollowedLog(path, EIGHT)
    log.look()
    path.rename(tmp_path / "run.jsonl.1")  # as logrotate does
    assert kinds(log) == ["gone"] and log.look() == []
    append(path, lines(41, 45))
    assert kinds(log)[:2] == ["back", "restarted"] and values(log) == 45
    path.write_text("")  # as `> run.jsonl` does
    assert kinds(log) == ["waiting"] and "kept" in log.detail and values(log) == 45
    append(path, lines(46, 50))
    assert "restarted" in kinds(log) and values(log) == 50
    path.write_text(lines(1, 8))  # another run
    assert "restarted" in kinds(log) and values(log) == 8


def test_a_log_that_does_not_exist_yet_or_has_no_numbers_is_waited_for_and_each_reason_is_said_once(tmp_path):
    path = tmp_path / "run.log"
    log = FollowedLog(path, EIGHT)
    (first,) = log.look()
    assert first.kind == "waiting" and "no such file" in first.text and log.look() == []
    append(path, "loading the model\n")
    (second,) = log.look()
    assert second.kind == "waiting" and "no numbers" in second.text and log.look() == []
    append(path, lines(1, 4))
    (third,) = log.look()
    assert third.text == "4 of 5 points of training reward"
    append(path, lines(5, 12))
    assert kinds(log) == ["forecast"]


def test_binary_data_ends_the_command_unless_it_comes_later(tmp_path):
    path, content = tmp_path / "run.log", b"step\0\0reward\0\1\2\n" * 50
    path.write_bytes(content)
    with pytest.raises(CurveError, match="binary"):
        FollowedLog(path).look()
    path.write_text(lines(1, 20))
    log = FollowedLog(path, EIGHT)
    log.look()
    path.write_bytes(content)
    assert kinds(log) == ["problem"] and values(log) == 20


def test_a_compressed_log_that_is_still_written_is_waited_for(tmp_path):
    whole = gzip.compress(lines(1, 300).encode())
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    log = FollowedLog(path, EIGHT)
    assert kinds(log) == ["waiting"]
    path.write_bytes(whole)
    assert kinds(log) == ["forecast"]


def test_the_state_of_a_trainer_is_read_from_the_newest_checkpoint_and_its_summary_ends_the_run(tmp_path):
    def save(step, *more):
        rows = [{"step": s, "eval_reward": level(s), "eval_runtime": 1.0} for s in range(0, step + 1, 10)]
        rows += [{"step": s, "reward": level(s), "step_time": 60.0} for s in range(1, step + 1)]
        place = tmp_path / f"checkpoint-{step}"
        place.mkdir()
        (place / "trainer_state.json").write_text(json.dumps({"log_history": [*rows, *more]}))

    log = FollowedLog(tmp_path, EIGHT)
    assert kinds(log) == ["waiting"]
    save(60)
    assert kinds(log) == ["forecast"] and values(log) == 7
    (tmp_path / "checkpoint-60" / "model.safetensors").write_bytes(b"0")
    assert log.look() == []
    save(120, {"step": 120, "train_runtime": 7200.0})
    assert kinds(log) == ["forecast", "ended"] and values(log) == 13


def test_bounds_of_the_values_so_far_move_while_the_run_climbs(tmp_path):
    path = tmp_path / "run.jsonl"
    append(path, lines(1, 12, low=-5, high=30))
    log = FollowedLog(path, EIGHT)
    log.look()
    assert log.source.log_lines()[-1] == f"caution   {log.source.about_bounds}"
    assert "may soon pass them" in log.source.about_bounds
    append(path, lines(13, 300, low=-5, high=30))
    log.look()
    assert not log.source.about_bounds
    given = FollowedLog(path, Reading({"devices": 8.0, "bounds": (-5, 40)}))
    given.look()
    assert not given.source.about_bounds


def test_a_run_of_this_package_is_followed_by_its_own_axis_and_ends_with_its_state(tmp_path):
    run = write_run(tmp_path / "mine", rows=100, points=8, steps=400)
    log = FollowedLog(run)
    assert kinds(log) == ["forecast"] and log.source.log is None and log.source.info is not None
    assert log.look() == []
    add_points(run, range(8, 12))
    with Heartbeat(run, phase="training") as beating:
        beating.ended("stopped", "")
    assert kinds(log) == ["forecast", "ended"] and len(log.source.curve) == 12
