"""Damaged logs: each gives a message or a repair with a note, and never a traceback."""

import contextlib
import json
import math
import os
import shutil
import struct
from pathlib import Path

import builders
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from robustness.campaign import within

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.logs import IMPORTERS, read
from scalerl.reading.tables.events import event_files
from scalerl.reading.tables.forms import read_table


def save(directory, text, name="run.log"):
    path = directory / name
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    return path


def refusal(path, **choices):
    with pytest.raises(CurveError) as caught:
        read(path, **choices)
    return str(caught.value)


def test_missing_files_empty_directories_and_unknown_sources_are_refused(tmp_path):
    assert "no such file or directory" in refusal(tmp_path / "nothing")
    assert "looked for trainer_state.json" in refusal(tmp_path)
    path = save(tmp_path, builders.verl_jsonl())
    assert "allowed: trl, verl, prime-rl" in refusal(path, source="verle")
    assert "devices must be a positive number" in refusal(path, devices=-1)
    assert "allowed: step, seconds" in refusal(path, columns={"hours": "x"})
    assert "has no column 'x' (for step)" in refusal(path, columns={"step": "x"})


def test_a_pipe_among_event_files_does_not_block(tmp_path):
    pytest.importorskip("tensorboard", reason="reads event files")
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs/events.out.tfevents.2")
    (tmp_path / "logs/events.out.tfevents.3").mkdir()
    (tmp_path / "logs/events.out.tfevents.4").symlink_to("events.out.tfevents.2")
    with within(20.0, "a pipe"):
        assert "a directory without a known log" in refusal(tmp_path / "logs")
        assert "not a regular file" in refusal(tmp_path / "logs/events.out.tfevents.2")
        events = next((Path(__file__).parent / "logs").rglob("*tfevents*"))
        shutil.copy(events, tmp_path / "logs/events.out.tfevents.1")
        assert {path.name for path in event_files(tmp_path / "logs")} == {"events.out.tfevents.1"}


def test_a_broken_record_of_tensorboard_with_a_right_checksum_is_one_line(tmp_path):
    record = b"\xff\xff\xff\xff"
    checksum = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c
    size = struct.pack("<Q", len(record))
    whole = size + struct.pack("<I", checksum(size)) + record + struct.pack("<I", checksum(record))
    sound = next((Path(__file__).parent / "logs").rglob("*tfevents*")).read_bytes()
    text = refusal(save(tmp_path, sound + whole, "events.out.tfevents.1"))
    assert "a record is broken" in text and "copy the file again" in text and "\n" not in text


def test_rows_of_tensorboard_behind_a_wrong_byte_are_missed_in_a_note(tmp_path):
    pytest.importorskip("tensorboard")
    sound = next((Path(__file__).parent / "logs").rglob("*tfevents*")).read_bytes()
    middle = len(sound) // 2
    flipped = sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
    whole, part = (
        read_table(save(tmp_path, content, f"events.out.tfevents.{number}"))
        for number, content in enumerate((sound, flipped))
    )
    last = part.column("step").max()
    assert whole.notes == () and 0 < last < whole.column("step").max()
    assert part.notes == (
        f"events.out.tfevents.1 is damaged behind step {last:g}: later rows cannot be read; copy it again",
    )


def test_a_log_of_two_frameworks_is_refused_with_both_names(tmp_path):
    row = {"step": 1, "timing_s/step": 60.0, "timing/sync_weights": 1.0}
    output = refusal(save(tmp_path, json.dumps(row) + "\n"))
    assert "verl by timing_s/step" in output and "skyrl by timing/sync_weights" in output and "--from" in output


def test_of_several_metrics_one_is_chosen_and_the_others_are_offered(tmp_path):
    rows = [{"step": s, "data": {**builders.verl_row(s), "val-core/aime/acc/mean@4": 0.1}} for s in builders.STEPS]
    path = save(tmp_path, builders.jsonl(rows))
    imported = read(path)
    assert imported.metric == "val-core/aime/acc/mean@4" and imported.others[0] == "val-core/gsm8k/acc/mean@4"
    assert "instead: --metric val-core/gsm8k/acc/mean@4" in imported.lines()[1]
    assert len(read(path, task="gsm8k").rows) == 6 and len(read(path, metric="val-core/aime/acc/mean@4").rows) == 30
    assert "it has aime, gsm8k" in refusal(path, task="math")
    assert "val-core/gsm8k/acc/mean@4" in refusal(path, metric="val-core/gsm8k/mean@4")


@pytest.mark.parametrize(
    ("name", "values", "bounds"),
    [
        ("val-core/a/acc/mean@4", [s / 15 - 1 for s in builders.STEPS], (-1, 1)),
        ("accuracy", [2.0 * s for s in builders.STEPS], (0, 100)),
        ("eval/reward", [0.3 + s / 37 for s in builders.STEPS], (0, 2)),  # a sum of two rewards, not a percentage
        ("eval/score", [3.7 * s for s in builders.STEPS], (0, 200)),
        ("eval/reward", [-2.3 + s / 10 for s in builders.STEPS], (-3, 1)),
        ("accuracy", [min(0.04 * s, 1.0) if s < 30 else 1.012 for s in builders.STEPS], (0, 1)),  # one stray value
    ],
)
def test_bounds_follow_from_the_name_or_the_values_and_are_stored_with_the_points(tmp_path, name, values, bounds):
    path = save(tmp_path, builders.jsonl({"step": s, name: v} for s, v in zip(builders.STEPS, values, strict=True)))
    imported = read(path)
    assert imported.bounds == bounds and imported.bounds_origin
    column = "pass_rate" if bounds == (0, 1) else "metric"
    assert all(bounds[0] <= row[column] <= bounds[1] for row in imported.rows)
    assert len(Curve.from_rows(imported.rows)) == 30 and Curve.from_rows(imported.rows).bounds == bounds
    assert "bounds must be" in refusal(path, bounds=(1, 0))
    assert "give --bounds" in refusal(path, bounds=(0.6, 0.61)) and read(path, bounds=(-500, 500)).bounds == (-500, 500)


@pytest.mark.parametrize(
    ("damage", "expect"),
    [
        (lambda text: text[:-20], "incomplete"),
        (lambda text: text.replace("\n", '\n{"step": 3, "data": {"tim{"step"\n', 1), "1 unreadable lines"),
        (lambda text: text + "\0" * 512, ""),
    ],
)
def test_damage_is_repaired_with_a_note(tmp_path, damage, expect):
    imported = read(save(tmp_path, damage(builders.verl_jsonl())))
    assert (not expect or any(expect in note for note in imported.notes)) and len(imported.rows) >= 5
    assert imported.rows[4] == {"step": 25, "device_hours": pytest.approx(25 * 8 / 60), "tokens": 120000.0,
                             "pass_rate": 0.25, "task": "gsm8k"}  # fmt: skip


def test_missing_steps_are_noted_with_the_assumption(tmp_path):
    rows = [{"step": s, "data": builders.verl_row(s)} for s in builders.STEPS if s > 10 and s not in (17, 18)]
    imported = read(save(tmp_path, builders.jsonl(rows)), metric="val-core/gsm8k/acc/mean@4")
    assert [row["device_hours"] for row in imported.rows] == pytest.approx([15 * 8 / 60, 20 * 8 / 60, 25 * 8 / 60, 4.0])
    assert any("begins at step 11" in n for n in imported.notes) and any(
        "missing in 1 places" in n for n in imported.notes
    )


COLUMNS = [
    "step", "_step", "_runtime", "time", "training/global_step", "timing_s/step", "timing_s/testing", "timing_s/gen",
    "perf/total_num_tokens", "perf/time_per_step", "perf/throughput", "val-core/a/acc/mean@4", "val-core/b/acc/mean@4",
    "step_time", "num_tokens", "eval_reward", "eval_runtime", "train_runtime", "completions/mean_length", "time/step",
    "progress/total_tokens", "progress/ckpt_step", "eval/a/avg@8", "eval/a/time", "eval/a/policy_version", "task",
    "stats/samples", "stats/completed_steps", "actor/test_success_mean", "device_hours", "pass_rate", "stderr",
]  # fmt: skip
VALUES = st.one_of(st.floats(), st.integers(-5, 40), st.sampled_from([0.5, "NaN", "x", None, True, [1], {"a": 0.1}]))


@example(rows=[{"step": 0.0, "eval_reward": -8e-270}], source=None, devices=None)
@settings(max_examples=100)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(COLUMNS), VALUES), min_size=1, max_size=8),
    source=st.sampled_from([None, *IMPORTERS]),
    devices=st.sampled_from([None, 8]),
)
def test_arbitrary_columns_give_points_or_a_message(tmp_path_factory, rows, source, devices):
    path = save(tmp_path_factory.mktemp("any"), builders.jsonl(rows))
    try:
        imported = read(path, source, devices=devices)
    except CurveError as error:
        assert len(str(error)) > 20
    else:
        low, high = imported.bounds
        assert all(low <= row.get("pass_rate", row.get("metric")) <= high for row in imported.rows) and imported.lines()
        assert all(
            math.isfinite(value) for row in imported.rows for value in row.values() if not isinstance(value, str | list)
        )


LINES = st.text('[]{}":,;\t\n -./0159eastp@_NaN', max_size=80)


@settings(max_examples=100)
@given(
    content=st.one_of(
        st.binary(max_size=200), LINES, LINES.map(lambda text: f"step:1 - val-core/a/acc/mean@1:0.5\n{text}")
    )
)
def test_arbitrary_files_give_points_or_a_message(tmp_path_factory, content):
    path = save(tmp_path_factory.mktemp("any"), content)
    with contextlib.suppress(CurveError):
        assert read(path).rows


def test_a_key_that_is_no_number_of_a_step_ends_no_command(tmp_path):
    rows = {str(step): {"reward": 0.1 + step / 100} for step in range(1, 20)}
    assert len(read(save(tmp_path, json.dumps(rows), "steps.json")).rows) == 19
    path = save(tmp_path, json.dumps({"²": {"reward": 0.5}, **rows}), "steps.json")
    with contextlib.suppress(CurveError):
        assert read(path).rows
