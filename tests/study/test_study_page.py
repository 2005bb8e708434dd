"""The page of a study with known truth: verdicts, every figure, in a browser at any width."""

import math

import pytest
from simulated_study import KNOWN, Truth, write_study

from scalerl.reading.pages.figure import Line
from scalerl.reading.pages.frozen import write_page
from scalerl.reading.pages.page import page
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_figures import STUDY_FIGURES

pytest.importorskip("plotly", reason="the page needs the extra `report`")

ABOUT = "What <b>matters</b> & what does not?</script>"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return study_results(write_study(tmp_path_factory.mktemp("page") / "known", KNOWN, about=ABOUT))


@pytest.fixture(scope="module")
def page_file(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "study.html"
    write_page(path, page(results))
    return path


def texts(made, title):
    """Return the text and the details of each arm below a heading, by name."""
    groups = next(block for block in made["blocks"] if block["kind"] == "groups")["groups"]
    (one,) = [group for group in groups if group["title"] == title]
    return one["text"], {item["name"]: " ".join([item["text"], *item["details"]]) for item in one["items"]}


def test_every_arm_is_listed_under_its_effect(results):
    made = page(results)
    sentence = "Of 5 arms compared with scalerl, 1 changes the ceiling, 1 only efficiency, 1 makes no difference"
    assert sentence in made["blocks"][0]["sentence"]
    _, changed = texts(made, "What raises or lowers the ceiling")
    assert list(changed) == ["dapo"] and changed["dapo"].startswith(" lowers the ceiling: A differs by -0.0")
    assert texts(made, "What only changes efficiency")[1]["slow"].startswith(": same ceiling, less efficient")
    excluded, none = texts(made, "What makes no difference that this much compute can show")
    assert none["fp32"].startswith(": A differs by") and "are excluded (90% interval)" in excluded
    _, unknown = texts(made, "Not measured yet")
    assert "a fit needs at least 5 points; got 4" in unknown["young"]
    assert "failed: loss is not finite at step 3" in unknown["broken"]


@pytest.mark.slow
def test_text_of_plans_and_logs_is_text(page_file, opened):
    assert "<b>matters" not in page_file.read_text()
    assert ABOUT in opened.tab.locator("p.about").inner_text()


def test_the_forest_plot_has_every_compared_arm_with_its_interval_and_the_margin(results):
    figure = STUDY_FIGURES["differences"](results)
    drawn = figure.y.ticks
    for points in figure.series:
        for i, row in enumerate(points.y):
            difference = results.arm(drawn[row]).comparison.asymptote_difference
            assert points.x[i] == pytest.approx(difference.mean, rel=1e-4)
            assert points.errors.size[1, i] == pytest.approx(difference.high - difference.mean, rel=1e-3)
    assert sorted(drawn.values()) == ["dapo", "fp32", "slow"] and drawn[-2] == "dapo"  # the highest ceiling on top
    assert (figure.shapes[0].low, figure.shapes[0].high) == (-0.02, 0.02)
    assert "Not drawn, because not measured yet: young, broken." in figure.caption


def test_a_study_without_any_fit_has_a_page(tmp_path):
    truths = {"scalerl": Truth(last_step=-1), "fp32": Truth(last_step=-1)}
    made = page(study_results(write_study(tmp_path / "new", truths)))
    assert texts(made, "Not measured yet")[1]["fp32"].startswith(": not measured yet (not started)")
    assert "figures" not in [block["kind"] for block in made["blocks"]]


@pytest.mark.slow
def test_a_heading_sorts_with_unknown_values_last_in_both_directions(opened):
    assert opened.tab.locator("tbody th").first.inner_text() == "scalerl"  # the initial order
    headings = opened.tab.locator("thead button").all_inner_texts()
    column = next(i for i, name in enumerate(headings) if "Ceiling" in name)
    heading = opened.tab.locator("thead button").nth(column)
    for ascending in (True, False):
        heading.click() if ascending else heading.press("Enter")
        order = opened.tab.locator("thead th").nth(column).get_attribute("aria-sort")
        assert order == ("ascending" if ascending else "descending")
        shown = opened.column(column)
        known = [float(value) for value in shown[:4]]
        assert known == sorted(known, reverse=not ascending) and shown[4:] == ["–", "–"]


def test_straight_lines_have_the_mean_slope_of_the_arm_at_the_common_ceiling(results):
    shown = STUDY_FIGURES["slopes"](results)
    (line,) = [one for one in shown.series if isinstance(one, Line) and one.legend]
    slope = math.log(line.y[1] / line.y[0]) / math.log(line.x[1] / line.x[0])
    assert slope == pytest.approx(results.arm("scalerl").efficiency.mean, rel=0.03)
    assert f"A = {results.common_asymptote:.3f}" in shown.caption
