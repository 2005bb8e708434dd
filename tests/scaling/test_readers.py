"""Files of points are read line by line into packed columns; what they say does not change."""

import tracemalloc
from array import array

import pytest
from json_rows import lines

from scalerl.core.files import parse_json
from scalerl.scaling import Curve, CurveError
from scalerl.scaling.readers import TOGETHER, read_table, table_of_rows


def rows(count, **more):
    return [{"step": 10 * i, "device_hours": 0.5 * i, "pass_rate": 0.2, "task": "maths", **more} for i in range(count)]


def test_columns_of_numbers_are_packed_and_all_others_are_lists():
    table = table_of_rows([
        {"step": 1, "rate": 0.5, "maybe": None, "flag": True, "task": "a", "bounds": [0, 2], "huge": 2**70, "both": 1},
        {"step": 2, "rate": 1.5, "maybe": 0.25, "flag": False, "task": "a", "bounds": [0, 2], "huge": 1, "both": 0.5},
    ])  # fmt: skip
    assert {name: type(cells).__name__ for name, cells in table.items()} == {
        "step": "array", "rate": "array", "maybe": "list", "flag": "list", "task": "list", "bounds": "list",
        "huge": "list", "both": "list",
    }  # fmt: skip
    assert {name: list(cells) for name, cells in table.items()} == {
        "step": [1, 2], "rate": [0.5, 1.5], "maybe": [None, 0.25], "flag": [True, False], "task": ["a", "a"],
        "bounds": [[0, 2], [0, 2]], "huge": [2**70, 1], "both": [1, 0.5],
    }  # fmt: skip
    assert [type(cell) for cell in (table["step"][0], table["both"][0], table["both"][1])] == [int, int, float]


@pytest.mark.parametrize("before", [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1])
@pytest.mark.parametrize("late", [0.5, 7, "word", None, 2**70])
def test_a_column_that_begins_or_changes_late_keeps_its_cells_in_their_rows(before, late):
    made = [*rows(before), *rows(2, late=late, pass_rate=late), *rows(1)]
    table = table_of_rows(made)
    expected = {name: [row.get(name) for row in made] for name in dict.fromkeys(name for row in made for name in row)}
    assert {name: list(cells) for name, cells in table.items()} == expected and list(table) == list(expected)
    assert [list(map(type, table[name])) for name in expected] == [list(map(type, expected[name])) for name in expected]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_file_of_many_rows_takes_a_few_bytes_a_cell(ending, tmp_path):
    """20,000 rows of six cells as dicts took 15 MB, with the text and its lines 30 MB."""
    made, path = rows(20_000, stderr=0.0125, prompts=512), tmp_path / f"points.{ending}"
    if ending == "jsonl":
        path.write_text(lines(made))
    else:
        text = [",".join(made[0]), *(",".join(map(str, row.values())) for row in made)]
        path.write_text("\n".join([*text, ""]))
    tracemalloc.start()
    try:
        table, _ = read_table(path)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table["step"]) == 20_000
    assert now < (1.5e6 if ending == "jsonl" else 8e6) and peak - now < 8e6


def test_one_task_of_several_is_picked_from_packed_columns():
    made = [row for row in rows(6) for row in (row, {**row, "task": "code", "pass_rate": 0.7})]
    table = table_of_rows(made)
    assert isinstance(table["pass_rate"], array)
    assert Curve.from_rows(made, task="code").metric.tolist() == [0.7] * 6
    assert Curve.from_rows(made, task="maths").compute.tolist() == [0.5 * i for i in range(6)]
    assert len(Curve.from_rows([*rows(6), {**rows(1)[0], "device_hours": 9.0, "task": None}])) == 7
    with_none = [*made, {**rows(1)[0], "device_hours": 9.0, "task": None}]
    assert len(Curve.from_rows(with_none, task="maths")) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n \n\n", "is empty; a curve needs a row"),
        (b'{"step": 1}\n{"step": \xff}\n', r"byte 21 is not UTF-8"),
        (b'\xef\xbb\xbf{"step": 1}\n{"step": \xc3', r"byte 24 is not UTF-8"),
        (b'{"step": 1}\n\0\0\0', "contains zero bytes"),
        (b"\xff\xfe{\0", "byte 0 is not UTF-8"),
        (b'\n\n{"step": 1}\n[2]\n{"step": 3}\nno\n', r"2 of 4 lines are not JSON objects, the first is line 4 \(\[2\]"),
        (b'{"step": 1,\n', "1 of 1 lines are not JSON objects, the first is line 1 .*column 12"),
    ],
)  # fmt: skip
def test_files_that_are_no_points_say_where(content, message, tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_bytes(content)
    with pytest.raises(CurveError, match=message):
        read_table(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_of_any_system_is_read_with_quoted_lines(end, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(end.join(["", "  step, pass_rate,note", "1,0.2,a", "", '2,0.3,"b\nc"', "3,0.4,"]) + end, newline="")
    table, notes = read_table(path)
    assert notes == () and list(table) == ["step", "pass_rate", "note"]
    assert [list(cells) for cells in table.values()] == [["1", "2", "3"], ["0.2", "0.3", "0.4"], ["a", "b\nc", None]]


def test_a_csv_with_rows_of_other_widths_says_the_first(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("step,pass_rate\n1,0.2\n2\n3,0.4,5\n4,0.5\n")
    with pytest.raises(CurveError, match=r"2 of 4 lines are not rows of 2 cells like the header, the first is line 3"):
        read_table(path)
    path.write_text("step,pass_rate\n")
    assert {name: list(cells) for name, cells in read_table(path)[0].items()} == {"step": [], "pass_rate": []}


def test_a_growing_file_ends_with_its_last_whole_line(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text(lines(rows(3)) + '{"step": 30, "device_hours": 1.5, "pass_rate": 0.2}')
    assert len(read_table(path)[0]["step"]) == 4
    assert len(read_table(path, growing=True)[0]["step"]) == 3
    assert parse_json(path.read_text().splitlines()[-1])["step"] == 30
