"""Every source becomes one sparse table; files of points are read strictly, line by line."""

from decimal import Decimal

import numpy as np
import pytest
from json_rows import lines

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.tables.forms import read_table
from scalerl.reading.tables.table import FLUSHED, MOST_WORDS, table_of


def rows(count, **more):
    return [{"step": 10 * i, "device_hours": 0.5 * i, "pass_rate": 0.2, "task": "maths", **more} for i in range(count)]


def cells(table, name):
    index, values = table.cells[name]
    return dict(zip(index.tolist(), values.tolist(), strict=True))


def test_numbers_of_any_type_are_cells_and_texts_are_words():
    table = table_of([
        {"step": 1, "rate": 0.5, "maybe": None, "flag": True, "task": "a", "bounds": [0, 2], "huge": 2**70},
        {"step": np.int64(2), "rate": "57.9%", "maybe": Decimal("0.25"), "task": 7, "list": [1, 2], "huge": 10**400},
    ])  # fmt: skip
    assert {name: cells(table, name) for name in table.cells} == {
        "step": {0: 1.0, 1: 2.0}, "rate": {0: 0.5, 1: 0.579}, "maybe": {1: 0.25}, "task": {1: 7.0},
        "huge": {0: 2.0**70},
    }  # fmt: skip
    assert table.labels("task").tolist() == ["a", "7"] and table.labels("bounds").tolist() == ["[0, 2]", None]


@pytest.mark.parametrize(("before", "late"), [(0, 0.5), (FLUSHED - 1, "word"), (FLUSHED + 1, 7)])
def test_a_column_that_begins_or_changes_late_keeps_its_cells_in_their_rows(before, late):
    made = [*rows(before), *rows(2, late=late, pass_rate=late), *rows(1)]
    table = table_of(made)
    assert table.size == before + 3
    for name in ("step", "pass_rate", "late"):
        numbers = [row.get(name) if isinstance(row.get(name), int | float) else np.nan for row in made]
        np.testing.assert_array_equal(table.column(name), numbers)
    assert ("late" in table.words) == (late == "word")


def test_one_task_of_several_is_picked():
    made = [row for row in rows(6) for row in (row, {**row, "task": "code", "pass_rate": 0.7})]
    assert Curve.from_rows(made, task="code").metric.tolist() == [0.7] * 6
    assert Curve.from_rows(made, task="maths").compute.tolist() == [0.5 * i for i in range(6)]
    assert len(Curve.from_rows([*rows(6), {**rows(1)[0], "device_hours": 9.0, "task": None}])) == 7
    with_none = [*made, {**rows(1)[0], "device_hours": 9.0, "task": None}]
    assert len(Curve.from_rows(with_none, task="maths")) == 6
    with pytest.raises(CurveError, match="more than 2000 tasks"):
        Curve.from_rows([{**rows(1)[0], "task": f"task {n}"} for n in range(MOST_WORDS + 1)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n\n", "is empty"),
        (b'{"step": 1, "pass_rate": 0.5}\n\0\0\0 1\n', "is binary"),
        (b'\n\n{"step": 1, "pass_rate": 0.5}\n[2]\n{"step": 3}\nno\n',
         r"2 of 4 lines are not JSON objects, the first is line 2 \(\[2\]"),
        (b'{"step": 1, "pass_rate": 0.5}\n{"step": 1, "step": 2}\n', "the key 'step' occurs twice"),
    ],
)  # fmt: skip
def test_files_of_points_say_which_line_is_wrong(content, message, tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_bytes(content)
    with pytest.raises(CurveError, match=message):
        read_table(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_is_read_with_quoted_lines(end, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(end.join(["", "  step, pass_rate,note", "1,0.2,a", "", '2,0.3,"b\nc"', "3,0.4,"]) + end, newline="")
    table = read_table(path)
    assert table.notes == () and table.columns == ["step", "pass_rate", "note"]
    assert table.column("pass_rate").tolist() == [0.2, 0.3, 0.4] and table.labels("note").tolist() == [
        "a",
        "b\nc",
        None,
    ]


def test_a_csv_of_points_with_rows_of_other_widths_says_the_first(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("step,pass_rate\n1,0.2\n2\n3,0.4,5\n4,0.5\n")
    with pytest.raises(CurveError, match=r"2 of 4 lines are not rows of 2 cells like the header, the first is line 3"):
        read_table(path)
    path.write_text("step,pass_rate\n")
    assert read_table(path).size == 0


def test_a_growing_file_ends_with_its_last_whole_line(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text(lines(rows(3)) + '{"step": 30, "device_hours": 1.5, "pass_rate": 0.2}')
    assert read_table(path).size == 4
    assert read_table(path, growing=True).size == 3


def test_numbers_in_words_are_an_error_and_not_a_gap():
    with pytest.raises(CurveError, match="pass_rate must be numbers; got 'high'"):
        Curve.from_rows([*rows(5), {**rows(1)[0], "pass_rate": "high"}])
