"""The curve commands: text, documented JSON, several runs at once, user errors in one line with exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call
from doc_pages import json_keys
from json_rows import write_rows
from simulated_runs import run as curve
from simulated_runs import write
from watched import write_run


def answer(capsys, *words):
    code, out, error = call(capsys, *words, "--json")
    assert code == 0, error
    return json.loads(out)


@pytest.fixture
def points(tmp_path):
    return write(tmp_path / "one.jsonl", curve())


@pytest.fixture
def sides(tmp_path):
    ours = [write(tmp_path / f"ours-{i}.jsonl", curve(seed=i, efficiency=2.6)) for i in range(2)]
    return ours, [write(tmp_path / f"theirs-{i}.jsonl", curve(seed=9 + i, efficiency=1.5)) for i in range(2)]


def test_the_keys_of_every_command_are_as_documented(capsys, points, sides):
    keys = json_keys()
    run = keys["Run"]
    fitted = answer(capsys, "fit", points)
    assert set(fitted) == run | keys["fit"] and set(fitted["advice"]) == keys["Advice"]
    assert set(fitted["advice"]["counted"]) == keys["Counted"]
    assert set(answer(capsys, "fit", points, "--explain")) == set(fitted) | {"explanation"}
    assert all(set(fitted[name]) == keys["Estimate"] for name in ("asymptote", "efficiency", "midpoint", "initial"))
    ahead = answer(capsys, "forecast", points, "--target", 0.6)
    assert set(ahead) == run | keys["forecast"] and set(ahead["forecast"]) == keys["Forecast"]
    assert set(ahead["forecast"]["at"][0]) == keys["Estimate"] | {"compute"}
    assert set(ahead["forecast"]["target"]) == set(ahead["forecast"]["done"]) == keys["Reach"]
    tested = answer(capsys, "backtest", points)
    assert set(tested) == run | keys["backtest"] and set(tested["splits"][0]) == keys["Split"]
    assert set(tested["splits"][0]["forecast"]) == set(tested["splits"][0]["baselines"]["power law"]) == keys["Error"]
    answers = answer(capsys, "compare", *sides[0], "--versus", *sides[1])
    assert set(answers) == keys["compare"] and set(answers["first"][0]) == run - {"source"}
    page = answer(capsys, "report", *sides[0], "--versus", *sides[1], "-o", points.with_name("page.html"))
    assert set(page) == keys["report"] and set(page["comparison"]) == keys["compare"]
    assert set(page["runs"][3]) == (run - {"source"}) | keys["fit"] | keys["Page run"]
    assert [each["side"] for each in page["runs"]] == [0, 0, 1, 1]


def test_several_runs_print_an_array_in_order(capsys, sides):
    answers = answer(capsys, "fit", *sides[1], *sides[0])
    assert [Path(each["source"]).stem for each in answers] == ["theirs-0", "theirs-1", "ours-0", "ours-1"]
    assert answers[0]["efficiency"]["high"] < 2 < answers[2]["efficiency"]["low"]
    _, out, _ = call(capsys, "fit", *sides[0])
    assert out.count("twice the compute should gain") == 2 and "ours-1.jsonl\n" in out


def test_excluded_points_are_not_fitted_but_the_one_before_training_is(capsys, points):
    # of 41 points at multiples of 400, those from 400 to 1600 are left out
    assert answer(capsys, "fit", points, "--exclude-below", 1601)["points"] == 37
    split = answer(capsys, "backtest", points, "--exclude-below", 1601, "--fractions", 0.5)["splits"][0]
    assert split["shown"] == 17


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "{points}", "{short}"], "short.jsonl: a fit needs at least 5 points; got 3"),
        (["fit", "{points}", "--task", "math"], "task 'math' was given, but"),
        (["forecast", "{points}", "--compute", "flops"], "has no compute column 'flops'"),
        (["report", "{points}", "{steps}"], "different compute axes (device_hours, step); name one with --compute"),
    ],
)
def test_user_errors_are_one_line_with_exit_code_2(capsys, tmp_path, points, words, message):
    short = write(tmp_path / "short.jsonl", curve(points=3))
    steps = tmp_path / "steps.csv"
    steps.write_text("step,pass_rate\n" + "".join(f"{i * 10},{0.2 + 0.02 * i}\n" for i in range(9)))
    places = {"points": points, "short": short, "steps": steps, "tmp": tmp_path}
    code, out, error = call(capsys, *(word.format(**places) for word in words))
    assert code == 2 and message in error and error.count("\n") == 1 and not out


def test_a_closed_pipe_is_not_an_error(points):
    words = [sys.executable, "-m", "scalerl.cli", "fit", *[str(points)] * 60, "--json"]
    done = subprocess.run(["bash", "-c", '"$@" | head -1', "-", *words], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[\n" and done.stderr == ""


def test_runs_get_their_shortest_unique_names(tmp_path):
    from scalerl.reading.pages.outlook import read_sources

    made = curve()
    a = write(tmp_path / "a/run/points.jsonl", made)
    b = write(tmp_path / "b/run/points.jsonl", made)
    c = write(tmp_path / "c/curve.jsonl", made)
    assert [s.name for s in read_sources([a.parent, c])] == ["run", "curve"]
    assert [s.name for s in read_sources([a, b.parent, c])] == ["a/run", "b/run", "c/curve"]


def test_a_reward_in_minus_one_to_one_needs_bounds(capsys, tmp_path):
    source, path = curve(), tmp_path / "rewards.jsonl"
    rows = zip(source.compute, 2 * source.metric - 1, strict=True)
    write_rows(path, [{"step": c, "metric": r} for c, r in rows])
    code, _, error = call(capsys, "fit", path)
    assert code == 2 and "metric must lie in [0, 1]" in error and "--bounds -1 1" in error
    fitted = answer(capsys, "fit", path, "--bounds", -1, 1)
    half = answer(capsys, "fit", write(tmp_path / "rates.jsonl", source))
    assert fitted["asymptote"]["mean"] == pytest.approx(2 * half["asymptote"]["mean"] - 1, abs=0.005)


@pytest.mark.parametrize(
    "words",
    [("compare", "OTHER"), ("report", "-o", "PAGE"), ("ls",)],
    ids=" ".join,
)
def test_a_reading_command_changes_nothing_in_a_run(tmp_path, capsys, words):
    run = write_run(tmp_path / "run", rows=30, points=31)
    other = write_run(tmp_path / "other", rows=30, points=12, seed=1)

    def state():
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in [run, *run.rglob("*")]}

    before, places = state(), {"PAGE": tmp_path / "page.html", "OTHER": other}
    verb, *rest = [places.get(word, word) for word in words]
    rest = ["--versus", *rest] if verb == "compare" else rest
    code, out, error = call(capsys, verb, run, *rest)
    assert code == 0 and out, error
    assert state() == before


@pytest.mark.parametrize("columns", [("step", "tokens"), ("flops", "compute")])
def test_the_axis_that_is_printed_is_the_axis_that_is_fitted(tmp_path, capsys, columns):
    """Of several compute columns the log's reader took one and the fit another."""
    scale = {"step": 10, "compute": 7, "tokens": 1e6, "flops": 1e12}
    rows = [
        ",".join([*(f"{scale[name] * n:g}" for name in columns), f"{0.2 + 0.4 * n / (n + 3):.4f}"]) for n in range(9)
    ]
    (tmp_path / "log.csv").write_text("\n".join([",".join([*columns, "eval_accuracy"]), *rows]) + "\n")
    values = answer(capsys, "fit", tmp_path / "log.csv")
    assert (
        values["axis"]
        == values["log"]["axis"]
        == next(a for a in ("flops", "tokens", "compute", "step") if a in columns)
    )
    assert values["last_compute"] == 8 * scale[values["axis"]]


def test_a_report_has_the_lead_at_the_compute_that_compare_has(tmp_path, capsys, sides):
    words = [*sides[0], "--versus", *sides[1], "--at", "4x"]
    lead = answer(capsys, "compare", *words)["sentence"]
    assert answer(capsys, "report", *words, "-o", tmp_path / "two.html")["comparison"]["sentence"] == lead
    code, _, error = call(capsys, "report", *sides[0], "--at", "4x", "-o", tmp_path / "one.html")
    assert code == 2 and "(--versus)" in error
