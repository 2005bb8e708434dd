"""The functions of `import scalerl` take whatever has the points of a run, as the commands read it."""

import io
import json

import numpy as np
import pytest
from simulated_runs import run

import scalerl
from scalerl.cli.main import main
from scalerl.core.calls import CallError, NoSuchName
from scalerl.reading.curves import Curve, CurveError, fit_together
from scalerl.reading.logs import read

pandas = pytest.importorskip("pandas")

MADE = run(last=8000.0)
OTHER = run(asymptote=0.5, last=8000.0, seed=1)


def rows_of(curve, compute="compute", metric="metric"):
    return [{compute: c, metric: m} for c, m in zip(curve.compute.tolist(), curve.metric.tolist(), strict=True)]


ROWS = rows_of(MADE, "global_step", "eval_accuracy")
"""Rows as a trainer logs them, with other names than those of points."""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run.csv"
    pandas.DataFrame(ROWS).to_csv(file, index=False)
    return file


class Frame:
    """A data frame of a package that has columns by name and nothing else."""

    columns = ("global_step", "eval_accuracy")

    def __getitem__(self, name):
        return [row[name] for row in ROWS]


def test_a_fit_is_that_of_the_command_from_a_path_a_frame_rows_columns_and_a_series(path, capsys):
    assert main(["fit", str(path), "--json"]) == 0
    asymptote = json.loads(capsys.readouterr().out)["asymptote"]["mean"]
    frame = pandas.DataFrame(ROWS)
    given = (
        path, str(path), frame, frame.set_index("global_step"), frame.set_index("global_step")["eval_accuracy"],
        frame.to_dict("list"), frame.to_dict(), frame.to_records(index=False), ROWS, tuple(ROWS), iter(ROWS), Frame(),
        read(path), Curve.read(path),
    )  # fmt: skip
    for data in given:
        found = scalerl.fit(data)
        assert (found.asymptote.mean, found.curve.axis) == (asymptote, "step")
    assert scalerl.fit(MADE.compute, MADE.metric.tolist()).asymptote.mean == asymptote


def test_the_options_of_the_commands_choose_column_devices_bounds_and_axis():
    table = pandas.DataFrame(ROWS).rename(columns={"global_step": "iteration", "eval_accuracy": "quality"})
    table = table.assign(took=3600.0, quality=100 * table.quality)
    roles = {"columns": {"step": "iteration", "seconds": "took"}, "metric": "quality"}
    by_hours = scalerl.fit(table, devices=2, bounds=(0, 100), **roles).curve
    assert (by_hours.axis, by_hours.bounds, by_hours.last_compute) == ("device_hours", (0, 100), 2 * MADE.last_compute)
    by_step = scalerl.forecast(table, at=20_000, compute="step", bounds=(0, 100), **roles)
    assert (by_step.fit.curve.axis, by_step.at[0].compute) == ("step", 20_000)
    counted = scalerl.Curve.read(ROWS, answers=256)
    assert counted.answers.tolist() == [256.0] * len(MADE)


def test_frames_and_fits_are_forecast_advised_backtested_and_compared_alike(path):
    frame, found = pandas.DataFrame(ROWS), scalerl.fit(path)
    for data in (frame, found):
        assert scalerl.forecast(data, at=np.array([16_000])).at == scalerl.forecast(path, at="2x").at
        assert scalerl.advise(data).gain == scalerl.advise(path).gain
        assert scalerl.backtest(data, 0.5).splits[0].forecast == scalerl.backtest(path, [0.5]).splits[0].forecast
    other = rows_of(OTHER, "global_step", "eval_accuracy")
    by_frame = scalerl.compare([frame, found], other, names=("long", "short"))
    assert by_frame.sentence.startswith("long is ahead of short")
    alone = scalerl.fit_together([frame, other])
    assert alone.asymptote == fit_together([Curve.read(ROWS), Curve.read(other)]).asymptote


def test_a_dict_has_the_recipes_of_a_comparison_by_name_and_the_runs_of_other_calls():
    given = scalerl.compare([MADE, MADE], OTHER, names=("base", "new"))
    assert scalerl.compare({"base": [MADE, MADE], "new": OTHER}).sentence == given.sentence
    together = scalerl.fit_together([MADE, OTHER]).fits
    again = scalerl.fit_together({"a": MADE, "b": OTHER}).fits
    assert [one.asymptote for one in again] == [one.asymptote for one in together]


TWO_RUNS = [{"run": run, "compute": n, "pass_rate": 0.1 * n} for run in ("a", "b") for n in range(6)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: scalerl.fit(5), "got a int; allowed: the path of a file"),
        (lambda: scalerl.fit([0.1, 0.2]), r"numbers alone.* write scalerl.fit\(compute, metric\)"),
        (lambda: scalerl.fit([MADE, MADE]), r"got a list of 2 runs; .*fit_together\(runs\)"),
        (lambda: scalerl.fit(), r"missing a required argument: 'data'; it is fit\(data, metric=None"),
        (lambda: scalerl.fit(ROWS, x="step"), "no option 'x': write columns={'step': 'step'}"),
        (lambda: scalerl.fit(ROWS, tassk="a"), "no option 'tassk' .did you mean 'task'"),
        (lambda: scalerl.fit(ROWS, columns=["step"]), "columns must be names by role"),
        (lambda: scalerl.fit(MADE, metric="acc"), "is a Curve, which has been read; give metric="),
        (lambda: scalerl.forecast(scalerl.fit(MADE), devices=8), "has been read already; give devices= to scalerl.fit"),
        (lambda: scalerl.compare([ROWS, ROWS]), r"two recipes: compare\(first, second\) or compare\({'base': first"),
        (lambda: scalerl.fit(TWO_RUNS), "has 2 runs, told apart by the column run: .*choose by run="),
        (lambda: scalerl.fit(io.StringIO("a,b")), "got an open file; give its path"),
        (lambda: scalerl.train(steps="many"), "keywords: steps: got 'many'"),
        (lambda: scalerl.train(model="m", data="p.jsonl", reward=len), "data.reward: got a function; .*import path"),
        (lambda: scalerl.frontier([MADE, MADE], {"lr": 1}, 100), "settings must be a list of 2 dicts"),
        (lambda: scalerl.reading.curves.fit("run.csv"), "got a str; allowed: a Curve"),
        (lambda: scalerl.load(__file__), r"is a file; .* scalerl.fit\("),
        (lambda: scalerl.train({}), "got a dict as the configuration"),
        (lambda: scalerl.fit(MADE).predict("2x"), "compute must be numbers"),
    ],
)
def test_a_wrong_call_says_what_was_got_and_the_call_that_works(wrong, message):
    with pytest.raises(scalerl.UserError, match=message) as caught:
        wrong()
    assert isinstance(caught.value, CurveError | CallError | scalerl.ConfigError) and "\n" not in str(caught.value)


def test_too_few_points_say_which_evaluations_became_one():
    levels = [0.1, 0.2, 0.3, 0.34, 0.4]
    logged = [{"global_step": step, "eval_accuracy": y} for step, y in zip((0, 10, 20, 20, 30), levels, strict=True)]
    with pytest.raises(CurveError, match=r"got 4.*the mean counts: 1, at step 20"):
        scalerl.fit(logged)
    again = [{"global_step": step, "eval_accuracy": y} for step, y in zip((0, 10, 20, 10, 20), levels, strict=True)]
    with pytest.raises(CurveError, match=r"got 3.*the last counts: 2, at step 10, 20"):
        scalerl.fit(again)
    with pytest.raises(CurveError, match=r"got 3 .*same compute: 2 at 0 FLOPs, 2 at 4 TFLOP"):
        scalerl.fit([0, 0, 4e12, 4e12, 8e12], levels, compute="flops")


def test_names_of_other_packages_are_answered_with_the_name_here():
    found = scalerl.fit(MADE)
    for owner, name, answer in (
        (scalerl, "read_csv", "scalerl.Curve.read"),
        (found, "params", "fit.asymptote"),
        (found, "asymptot", "did you mean 'asymptote'"),
        (found.asymptote, "ci", "estimate.low"),
        (found.curve, "to_frame", "pandas.DataFrame"),
    ):
        assert not hasattr(owner, name)
        with pytest.raises(NoSuchName, match=answer):
            getattr(owner, name)


@pytest.mark.parametrize("column", ["seed", None])
def test_points_of_two_runs_are_never_averaged(column):
    step = np.arange(0.0, 200.0, 10.0)
    levels = {"0": 0.2 + 0.4 * step / (step + 60.0), "1": 0.2 + 0.6 * step / (step + 60.0)}
    rows = [
        {"step": x, "pass_rate": level, **({column: name} if column else {})}
        for name, level_K in levels.items()
        for x, level in zip(step, level_K, strict=True)
    ]
    with pytest.raises(CurveError, match=f"2 runs, told apart by {f'the column {column}' if column else 'restarts'}"):
        scalerl.fit(rows)
    one = scalerl.fit(rows, run="1" if column else "2")
    assert one.curve.metric[-1] == levels["1"][-1] and len(one.curve) == len(step)


def test_the_metric_of_points_is_read_alike_with_and_without_its_name():
    points = [{"compute": row["compute"], "pass_rate": row["metric"]} for row in rows_of(MADE)]
    assert scalerl.fit(points, metric="pass_rate").asymptote == scalerl.fit(points).asymptote


def test_a_report_of_frames_is_written(tmp_path):
    pytest.importorskip("plotly")
    page = scalerl.report([ROWS], [rows_of(OTHER, "global_step", "eval_accuracy")], tmp_path / "page.html")
    assert "rows 2" in page.read_text()
