import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_rows import lines

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.curves.curve import thinned

ROWS = [
    {"step": 0, "device_hours": 0.0, "flops": 0.0, "tokens": 0, "task": "arithmetic", "pass_rate": 0.10},
    {"step": 100, "device_hours": 0.02, "flops": 3e14, "tokens": 42, "task": "arithmetic", "pass_rate": 0.41},
    {"step": 200, "device_hours": 0.04, "flops": 6e14, "tokens": 84, "task": "arithmetic", "pass_rate": 0.52},
]


def test_a_file_a_run_directory_and_a_csv_give_the_same_curve(tmp_path):
    (tmp_path / "points.jsonl").write_text(lines(ROWS))
    (tmp_path / "points.csv").write_text("device_hours,pass_rate\n0.0,0.1\n0.02,0.41\n0.04,0.52\n")
    curves = [Curve.read(tmp_path), Curve.read(tmp_path / "points.jsonl"), Curve.read(tmp_path / "points.csv")]
    for curve in curves:
        assert curve.compute.tolist() == [0.0, 0.02, 0.04]
        assert curve.metric.tolist() == [0.10, 0.41, 0.52]


def test_an_incomplete_last_line_is_left_out_with_a_note(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text(lines(ROWS) + '{"step": 300, "device_h')
    curve = Curve.read(path)
    assert len(curve) == 3
    assert curve.notes == ("the last line of points.jsonl is incomplete (was the run killed?) and was left out",)


def test_unsorted_rows_are_sorted_and_equal_compute_is_averaged_with_notes():
    curve = Curve([4, 1, 4, 0], [0.5, 0.2, 0.7, 0.1], stderr=[0.03, 0.01, 0.04, 0.01])
    assert curve.compute.tolist() == [0.0, 1.0, 4.0]
    assert curve.metric.tolist() == pytest.approx([0.1, 0.2, 0.6])
    # standard error of a mean of two: sqrt(0.03^2 + 0.04^2) / 2
    assert curve.stderr == pytest.approx([0.01, 0.01, 0.025])
    assert len(curve.notes) == 2


def test_rows_without_a_number_are_left_out_with_a_note():
    curve = Curve([0, 1, 2, 3], [0.1, np.nan, 0.3, 0.4])
    assert curve.compute.tolist() == [0.0, 2.0, 3.0]
    assert curve.notes == ("left out because they have no number (NaN or empty): 1 row",)


def test_mixed_tasks_need_a_choice():
    rows = [*ROWS, {"device_hours": 0.0, "task": "programs", "pass_rate": 0.3}]
    with pytest.raises(CurveError, match="arithmetic, programs"):
        Curve.from_rows(rows)
    assert len(Curve.from_rows(rows, task="arithmetic")) == 3
    with pytest.raises(CurveError, match="'maths'"):
        Curve.from_rows(rows, task="maths")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"compute": [-1, 2], "metric": [0.1, 0.2]}, "compute must be >= 0; got -1"),
        ({"compute": [1, 2], "metric": [0.1, 52.0]}, "percentage"),
        ({"compute": [1, 2], "metric": [0.1, -0.5]}, "reward"),
        ({"compute": [1, 2], "metric": [0.1, np.inf]}, "finite"),
        ({"compute": [0, 0], "metric": [0.1, 0.2]}, "every point is at compute 0"),
        ({"compute": [1, 2], "metric": [0.1, 0.2], "bounds": (1, 0)}, "ascending"),
        ({"compute": [1, 1e308], "metric": [0.1, 0.2]}, "1e.308"),
        ({"compute": [1, 10**400], "metric": [0.1, 0.2]}, "too large"),
    ],
)
def test_data_that_cannot_be_repaired_is_an_error(arguments, message):
    with pytest.raises(CurveError, match=message):
        Curve(**arguments)


def test_the_arrays_are_read_only_copies():
    mine = np.array([0.0, 1.0])
    curve = Curve(mine, [0.1, 0.2])
    mine[1] = 99.0
    assert curve.last_compute == 1.0
    with pytest.raises(ValueError, match="read-only"):
        curve.compute[0] = 5.0


def test_early_points_are_left_out_but_the_one_at_zero_stays():
    curve = Curve([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4])
    assert curve.between(2).compute.tolist() == [0.0, 2.0, 3.0]
    assert curve.first(2).compute.tolist() == [0.0, 1.0]
    with pytest.raises(CurveError, match="no evaluation"):
        curve.between(4)


def test_thinning_averages_neighbors():
    curve = Curve(np.arange(10.0), np.arange(10.0) / 10)
    thin = thinned(curve, 5)
    assert thin.compute.tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert thin.metric.tolist() == pytest.approx([0.05, 0.25, 0.45, 0.65, 0.85])
    assert thin.notes == ("10 points were averaged in groups to 5",)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1)), min_size=1, max_size=60))
def test_any_pairs_of_allowed_numbers_make_an_ascending_curve_or_a_clear_error(pairs):
    compute, metric = zip(*pairs, strict=True)
    try:
        curve = Curve(compute, metric)
    except CurveError as error:
        assert "every point is at compute 0" in str(error)
        return
    assert (np.diff(curve.compute) > 0).all()
    assert len(curve) == len(set(compute))
    assert min(metric) - 1e-9 <= curve.metric.min() <= curve.metric.max() <= max(metric) + 1e-9


def test_the_number_of_answers_gives_standard_errors():
    # (0.25 * 100 + 1) / 102 = 0.2549; sqrt(0.2549 * 0.7451 / 100) = 0.04358
    curve = Curve([0, 1, 2, 3], [0.25, 0.5, 0.75, 1.0]).with_answers(100)
    assert curve.stderr[0] == pytest.approx(0.04358, abs=1e-5) and (curve.stderr > 0).all()
    percent = Curve([0, 1, 2, 3], [25, 50, 75, 100], bounds=(0, 100)).with_answers(100)
    assert percent.stderr == pytest.approx(100 * curve.stderr)
    rows = [{"step": i, "pass_rate": p, "answers": 100} for i, p in enumerate([0.25, 0.5, 0.75, 1.0])]
    assert Curve.from_rows(rows).stderr == pytest.approx(curve.stderr)
    assert Curve.from_rows([{**row, "stderr": 0.01} for row in rows]).stderr == pytest.approx(0.01)


@pytest.mark.parametrize("answers", [0.5, float("nan")])
def test_a_number_of_answers_is_at_least_one(answers):
    with pytest.raises(CurveError, match="at least 1"):
        Curve([0, 1], [0.1, 0.2]).with_answers(answers)
