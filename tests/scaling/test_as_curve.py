"""fit and compare take whatever has the points of a curve."""

import json
from collections import namedtuple

import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import CurveError, advise, compare, fit, forecast

MADE = run(last=8000.0)
ROWS = [{"device_hours": c, "pass_rate": m} for c, m in zip(MADE.compute.tolist(), MADE.metric.tolist(), strict=True)]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "points.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


class Frame:
    """A data frame as pandas and polars have them: named columns."""

    columns = ("device_hours", "pass_rate")

    def __getitem__(self, name):
        return [row[name] for row in ROWS]


def test_a_fit_is_the_same_from_arrays_a_file_rows_columns_and_a_frame(path):
    asymptote = fit(MADE).asymptote
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    for data in (path, str(path), ROWS, tuple(ROWS), columns, Frame()):
        assert fit(data).asymptote == asymptote
        assert fit(data).curve.axis == "device_hours"
    assert fit(MADE.compute, MADE.metric).asymptote == asymptote
    assert fit(MADE.compute.tolist(), list(MADE.metric)).curve.axis == "compute"


def test_pandas_and_polars_frames():
    for name in ("pandas", "polars"):
        library = pytest.importorskip(name) if name == "pandas" else None
        if library is not None:
            assert fit(library.DataFrame(ROWS)).asymptote == fit(MADE).asymptote


def test_runs_are_compared_by_their_paths(path):
    by_path, by_curve = compare(str(path), [path, path]), compare(MADE, [MADE, MADE])
    assert by_path.measured == by_curve.measured


def test_one_amount_of_compute_needs_no_list():
    fitted = fit(MADE)
    assert forecast(fitted, at="2x").at[0] == forecast(fitted, at=["2x"]).at[0] == forecast(fitted, at=16_000).at[0]
    assert advise(fitted).budget == 16_000.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "got a int; allowed: a Curve"),
        (([0.1, 0.2, 0.3],), "compute and metric as two arguments"),
        (([],), "got a list"),
        ((np.arange(5.0),), "got a ndarray"),
        (("no such file.jsonl",), "no such file"),
        ((MADE, [0.1, 0.2]), "with a metric, the first argument is the compute"),
        (([1, 2, 3], [0.1, 0.2]), "same length"),
        (([1, 2, 3], [0.1, 0.2, 0.3]), "at least 5 points"),
        ((namedtuple("Thing", "a")(1),), "got a Thing"),
    ],
)
def test_anything_else_is_an_error_with_what_is_allowed(arguments, message):
    with pytest.raises(CurveError, match=message):
        fit(*arguments)
