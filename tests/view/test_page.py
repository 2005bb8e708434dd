"""The page in a browser: figures, sorting, narrow and wide windows in light and dark, no network."""

import json
import re

import numpy as np
import pytest
from simulated_runs import run as curve
from simulated_runs import write

from scalerl.reading.curves import Curve
from scalerl.reading.pages.analysis import analyze
from scalerl.reading.pages.figure import Line, Points
from scalerl.reading.pages.frozen import frozen, write_page
from scalerl.reading.pages.outlook import read_sources
from scalerl.reading.pages.page import page
from scalerl.reading.pages.page_figures import FIGURES

pytest.importorskip("plotly", reason="the page needs the extra `report`")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two recipes with two runs each; one name with HTML, one run with problems in its data."""
    root = tmp_path_factory.mktemp("page")
    ours = [write(root / f"ours {i}.jsonl", curve(seed=i, asymptote=0.60 + 0.01 * i)) for i in range(2)]
    theirs = [
        write(root / "<b>theirs & co.jsonl", curve(seed=5, asymptote=0.52, efficiency=1.4)),
        write(root / "theirs-short.jsonl", curve(seed=6, points=7, asymptote=0.53, efficiency=1.4)),
    ]
    return ours, theirs


@pytest.fixture(scope="module")
def studied(files):
    return analyze(*(read_sources(side) for side in files))


@pytest.fixture(scope="module")
def page_file(studied, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, page(studied))
    return path


def block(made, kind, title=""):
    """Return the first block of a kind, with this title if one is given."""
    return next(one for one in made["blocks"] if one["kind"] == kind and title in ("", one.get("title")))


def test_the_page_has_every_run_recipe_and_number(page_file, studied):
    made = page(studied)
    assert "ours has the higher ceiling of its climb, by 0.0" in block(made, "verdict")["sentence"]
    assert {"A, the ceiling of this climb", "B, the steepness", "C_mid, the midpoint"} < set(
        block(made, "terms")["terms"]
    )
    cards = block(made, "cards")["cards"]
    assert [card["title"] for card in cards] == [run.source.name for run in studied.runs]
    assert any("too few points: 7 points" in note for note in cards[3]["notes"])
    assert cards[3]["lines"][-1].startswith("No backtest: the first 0.3 of the run holds 2")
    table, ceiling = block(made, "table", "Side by side"), studied.runs[0].outlook.fit.asymptote
    cell = table["rows"][0][table["columns"].index("Ceiling A")]
    assert (cell["text"], cell["small"]) == (f"{ceiling.mean:.3f}", f"{ceiling.low:.3f} to {ceiling.high:.3f}")
    first, second = studied.comparison.names
    assert [row[1]["text"] for row in table["rows"]] == [first, first, second, second] and first == "ours"


@pytest.mark.slow
def test_names_with_html_are_text(page_file, opened):
    assert "<b>theirs" not in page_file.read_text()
    assert "<b>theirs & co" in opened.tab.locator("main").inner_text()
    assert opened.tab.locator("main table b, main article h3 b").count() == 0


def test_the_page_needs_no_network(page_file):
    text = page_file.read_text()
    head = text.split("<style>")[0]
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in head
    assert not re.search(r"<(?:script|img|iframe)[^>]* src=|<link|@import|@font-face", text.split("<script>")[0])


def test_a_name_cannot_end_the_script_with_the_figures(tmp_path):
    made = page(analyze(read_sources([write(tmp_path / "<!--<script>.jsonl", curve(points=13))])))
    drawn = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', frozen(made), flags=re.DOTALL)
    assert drawn and "<" not in drawn[1] and json.loads(drawn[1]) == {"page": made, "series": {}}


def test_the_curves_have_every_point_and_the_forecast_at_four_times(studied):
    figure = FIGURES["curves"](studied)
    points = [one for one in figure.series if isinstance(one, Points) and len(one.x) == 41]
    assert len(points) == 3
    np.testing.assert_allclose(points[1].y, studied.runs[1].source.curve.metric, atol=1e-5)
    forecasts = [one for one in figure.series if isinstance(one, Line) and one.dash == "dash"]
    assert [(one.x[0], one.x[-1]) for one in forecasts] == [(16_000, 64_000)] * 2
    at_four = np.mean([run.outlook.forecast.at[1].mean for run in studied.runs[:2]])
    assert forecasts[0].y[-1] == pytest.approx(at_four, abs=1e-5)
    log_range = figure.choices["Compute axis"]["logarithmic"].x.limits
    ceilings = [one for one in figure.series if len(one.x) == 1]
    places = [one.x[0] for one in ceilings]
    assert len(set(places)) == 2 and min(places) > 64_000 and max(places) < log_range[1]  # all inside the range
    for one, side in zip(ceilings, studied.sides["asymptote"], strict=True):
        assert one.y[0] + one.errors.size[1, 0] == pytest.approx(side.recipe.high)


def test_a_run_that_only_falls_has_a_page(tmp_path):
    falling = Curve(np.linspace(0, 100, 12), 0.3 - 0.002 * np.linspace(0, 100, 12), axis="device_hours")
    analysis = analyze(read_sources([write(tmp_path / "falling.jsonl", falling)]))
    assert len(analysis.runs[0].slope.compute) == 0 and list(analysis.runs[0].slope.span) == [
        pytest.approx(100 / 11),
        100,
    ]
    assert "11 points at or above A, or at or below R0, have no F" in json.dumps(page(analysis))


@pytest.mark.slow
def test_the_figures_draw_without_console_messages(opened):
    shown = opened.tab.eval_on_selector_all(
        ".plot", "nodes => nodes.map(node => [node.id, node.querySelectorAll('path').length, node.clientHeight])"
    )
    assert [name for name, _, _ in shown] == [f"plot-{name}" for name in FIGURES if name != "suites"]
    assert all(paths > 5 and height > 200 for _, paths, height in shown), shown
    opened.check_quiet()


@pytest.mark.slow
def test_every_control_has_an_accessible_name(opened):
    for role in ("img", "region", "button", "combobox"):
        controls = opened.tab.get_by_role(role).all()
        assert controls
    unnamed = opened.tab.eval_on_selector_all(
        "figure, .plot, .scroll",
        "nodes => nodes.filter(n => !document.getElementById(n.getAttribute('aria-labelledby')))",
    )
    assert unnamed == [] and opened.tab.locator("html").get_attribute("lang") == "en"
