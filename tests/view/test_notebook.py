"""Records in notebooks: a short repr, HTML with the printed lines and a picture, plots that load matplotlib late."""

import base64
import html
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from simulated_runs import run, write
from watched import add_points

import scalerl
from scalerl.reading.curves import Curve, CurveError, advise, compare, fit, forecast
from scalerl.training.config import LAB
from scalerl.training.loop.run_dir import RunDirectory

matplotlib.use("Agg")


def png_in(text):
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    return base64.b64decode(data)


FITTED = fit(run())


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (FITTED, ["the ceiling of this climb", "the steepness", "2,550 device-hours", str(advise(FITTED))]),
        (forecast(FITTED, at=["2x", 20_000]), ["at 20,000 device-hours", "one evaluation", str(advise(FITTED))]),
        (
            compare(run(), run(seed=1, asymptote=0.5), names=("a<b", "grpo")),
            ["a<b has the higher", "difference of ceilings", "next gain of grpo"],
        ),
    ],
)
def test_a_notebook_shows_the_decision_what_print_shows_and_a_picture(shown, words):
    text = shown._repr_html_()
    assert "<pre" in text and "a<b" not in text and png_in(text)[:4] == b"\x89PNG" and "<script" not in text
    for word in words:
        assert word.partition(",")[0] in html.unescape(text), word


@pytest.mark.parametrize(
    ("shown", "start"),
    [
        (run(), "Curve(simulated: 41 points to 16,000 device-hours, metric 0."),
        (FITTED, f"Fit(A = {FITTED.asymptote:.3f}, 41 "),
        (forecast(FITTED), "Forecast(now 0."),
        (compare(run(), run(seed=1)), "Comparison('the first"),
    ],
)
def test_the_repr_of_a_record_is_one_short_line(shown, start):
    text = repr(shown)
    assert text.startswith(start.replace("'the first", "'The first") if "Comparison" in start else start)
    assert "\n" not in text and len(text) < 260 and "array(" not in text


def test_curves_and_fits_draw_themselves_and_share_axes():
    axes = Figure().subplots()
    assert run().plot(axes, name="dapo") is axes and FITTED.plot(axes, name="grpo", scale="log") is axes
    assert [text.get_text()[:4] for text in axes.get_legend().get_texts()][:2] == ["dapo", "grpo"]
    new = run().plot(scale="linear", dark=True)
    assert new.get_xscale() == "linear" and new.lines


def test_matplotlib_is_loaded_when_something_is_drawn():
    code = (
        "import sys, scalerl; from scalerl.reading.curves import Curve, fit\n"
        "f = fit(Curve(range(1, 9), [.1, .2, .3, .38, .44, .48, .5, .51])); repr(f)\n"
        "assert 'matplotlib' not in sys.modules and 'scalerl.reading.pages' not in sys.modules\n"
        "f._repr_html_(); assert 'matplotlib' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_in_a_notebook_shows_its_step_and_its_forecast_or_why_there_is_none(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", LAB)
    directory.close()
    add_points(tmp_path / "run", range(3))
    text = scalerl.load(tmp_path / "run")._repr_html_()
    assert "step 0 of" in text and "No forecast yet: " in text and "at least 5 points" in text
    add_points(tmp_path / "run", range(3, 30))
    text = scalerl.load(tmp_path / "run")._repr_html_()
    assert "the ceiling of this climb" in text and png_in(text)


@pytest.mark.slow
def test_a_report_is_written_from_python(tmp_path):
    pytest.importorskip("plotly")
    place = scalerl.report(run(), [run(seed=1), run(seed=2)], tmp_path / "page.html", figures=tmp_path / "figures")
    text = place.read_text()
    assert place == tmp_path / "page.html" and '"kind":"runs"' in text and "Comparison of two recipes" in text
    assert (tmp_path / "figures" / "curves.pdf").exists()
    path = write(tmp_path / "a.jsonl", run())
    assert "Run report" in scalerl.report(path, output=tmp_path / "one.html").read_text()
    with pytest.raises(scalerl.ConfigError, match="is an input of this command"):
        scalerl.report(path, output=path)
    with pytest.raises(CurveError):
        scalerl.report(tmp_path / "none.jsonl", output=tmp_path / "two.html")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stepz": 3}, "did you mean steps"),
        ({"recipe__los": "gspo"}, "did you mean recipe.loss"),
        ({"recipe": {"nme": "x"}}, "did you mean 'name'"),
    ],
)
def test_an_unknown_field_of_train_is_an_error_with_a_suggestion(fields, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(scalerl.ConfigError, match=message) as error:
        scalerl.train(progress=False, **fields)
    assert "--" not in str(error.value).partition(";")[0] and list(tmp_path.iterdir()) == []


def test_a_curve_without_a_fit_draws_its_points():
    young = Curve([0.0, 1.0, 2.0], [0.1, 0.2, 0.3], axis="step")
    (line,) = young.plot(Figure().subplots(), scale="linear").lines
    np.testing.assert_array_equal(line.get_ydata(), [0.1, 0.2, 0.3])
