"""Figures and tables for papers: every one of a page, at the width of a column, with fonts that publishers take."""

import csv
import io
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import run
from simulated_study import Truth, write_study

from scalerl.core.errors import ConfigError
from scalerl.reading.curves import frontier
from scalerl.reading.pages.analysis import analyze
from scalerl.reading.pages.drawing import draw_figure
from scalerl.reading.pages.figure import (
    Axis,
    Errors,
    Figure,
    Line,
    Points,
    Rule,
    ShadedBand,
    Span,
    powers_text,
    to_plotly,
)
from scalerl.reading.pages.outlook import Source
from scalerl.reading.pages.page import (
    cell,
    figures_of,
    frontier_page,
    page,
    study_figures,
    study_page,
    table,
)
from scalerl.reading.pages.page_figures import frontier_figure
from scalerl.reading.pages.palette import LIGHT
from scalerl.reading.pages.papers import PIXELS, csv_of, latex_of, markdown_of, save_page, variants
from scalerl.reading.pages.report import ReportPage
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_files import read_files


def sources(name, *curves):
    return [Source(Path(f"{name}-{i}"), f"{name}-{i}", made, None) for i, made in enumerate(curves)]


@pytest.fixture(scope="module")
def compared():
    analysis = analyze(sources("a", run(), run(seed=1)), sources("b", run(efficiency=1.4, seed=2)))
    return ReportPage(page(analysis), figures_of(analysis), None)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    truths = {"scalerl": Truth(), "fp32": Truth(midpoint=4e13), "dapo": Truth(asymptote=0.5)}
    results = study_results(read_files(write_study(tmp_path_factory.mktemp("s") / "loo", truths).path))
    return ReportPage(study_page(results), study_figures(results), None)


def pages(request, name):
    if name == "frontier":
        curves = [run(midpoint=500.0 * size, seed=size) for size in (1, 2, 4, 8)]
        settings = [{"size": size} for size in (1, 2, 4, 8)]
        found, runs = frontier(curves, settings, 20_000.0), list(zip(curves, settings, strict=True))
        return ReportPage(frontier_page(found, runs), {"frontier": frontier_figure(found, runs)}, None)
    return request.getfixturevalue(name)


@pytest.mark.parametrize("name", [pytest.param("compared", marks=pytest.mark.slow), "frontier"])
def test_every_figure_and_table_of_a_page_is_written_in_every_format(request, name, tmp_path):
    shown = pages(request, name)
    written = {path.name for path in save_page(tmp_path / "figures", shown.page, shown.figures)}
    assert written == {path.name for path in (tmp_path / "figures").iterdir()}
    blocks = shown.page["blocks"]
    drawn = {figure["name"] for block in blocks if block["kind"] == "figures" for figure in block["figures"]}
    for figure in drawn:
        for kind in ("pdf", "svg", "png"):
            assert any(file.startswith(figure) and file.endswith(kind) for file in written), (figure, kind)
    listed = [block["title"] for block in blocks if block["kind"] == "table"]
    for kind in ("csv", "tex", "md"):
        assert len([file for file in written if file.endswith(kind)]) == len(listed)
    assert listed


@pytest.mark.slow
def test_a_figure_has_the_width_of_a_column_and_fonts_that_publishers_take(compared, tmp_path):
    save_page(tmp_path, compared.page, compared.figures)
    pdf = (tmp_path / "curves.pdf").read_bytes()
    ((width, _),) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf)
    assert float(width) == pytest.approx(3.25 * 72, abs=0.5)
    assert b"/Type3" not in pdf and (b"/TrueType" in pdf or b"/CIDFontType2" in pdf)
    svg = (tmp_path / "curves.svg").read_text()
    assert "<text" in svg and "training compute (device-hours)" in svg and "held-out pass rate" in svg
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    save_page(tmp_path, compared.page, compared.figures, width=6.75)  # again, in its own directory
    assert b"486 " in re.search(rb"/MediaBox \[.*?\]", (tmp_path / "curves.pdf").read_bytes())[0]


def drawn_axes(shown, width=3.25):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, shown.height * PIXELS or 0.72 * width), layout="constrained")
    FigureCanvasAgg(figure)
    axes = draw_figure(figure.subplots(), shown)
    figure.draw_without_rendering()
    return axes


@pytest.mark.parametrize(("name", "scale"), [("compared", "log"), ("studied", "linear"), ("frontier", "log")])
def test_no_label_is_cut_and_no_two_ticks_overlap(request, name, scale):
    for title, shown in variants(pages(request, name).figures, scale):
        axes = drawn_axes(shown)
        renderer, box = axes.figure.canvas.get_renderer(), axes.figure.bbox
        low, high = sorted(axes.get_xlim())
        labels = [t for t in axes.get_xticklabels(which="both") if t.get_text() and low <= t.get_position()[0] <= high]
        places = sorted((t.get_window_extent(renderer) for t in labels), key=lambda place: place.x0)
        assert len(places) >= 2, title
        assert all(a.x1 <= b.x0 + 1 for a, b in pairwise(places)), (title, labels)
        assert axes.xaxis.get_offset_text().get_text() == "", title
        legend = axes.get_legend()
        for text in [axes.xaxis.label, axes.yaxis.label, *(legend.get_texts() if legend else [])]:
            place = text.get_window_extent(renderer)
            if not text.get_text():
                continue
            assert place.x0 >= -1 and place.x1 <= box.x1 + 1 and place.y0 >= -1 and place.y1 <= box.y1 + 1, text
        if legend:
            names = [text.get_text() for text in legend.get_texts()]
            assert len(names) == len(set(names)) and legend.get_window_extent(renderer).y0 >= axes.bbox.y1 - 2


def test_text_of_a_figure_is_text_of_a_page_and_of_a_file():
    shown = Figure(
        [Points(x=[1.0], y=[1.0], color="@s0", name="<b>", legend=True)], Axis("<i>costs $5 & $6"), Axis("y")
    )
    drawn = to_plotly(shown)
    assert drawn["layout"]["xaxis"]["title"]["text"] == "&lt;i&gt;costs $5 &amp; $6"
    assert drawn["data"][0]["name"] == "&lt;b&gt;"
    assert drawn_axes(shown).get_xlabel() == r"<i>costs \$5 & \$6"  # which matplotlib does not read as a formula
    assert [powers_text(value) for value in (0.25, 4.24e11, 1e-7)] == ["0.25", "4.24 × 10¹¹", "1 × 10⁻⁷"]


def test_overlapping_bands_do_not_mix_their_colors():
    """A band in a sixth of #2a5d9f (42, 93, 159) on white: 255 - 0.16 * 213 = 221, 229 and 240."""
    red, green, blue = (round(255 * share) for share in LIGHT.mixed("@s0", 0.16))
    assert (red, green, blue) == (221, 229, 240)
    bands = [ShadedBand(x=[0, 1], low=[0, 0], high=[1, 1], color=color, edges=True) for color in ("@s0", "@s1")]
    axes = drawn_axes(Figure(bands))
    faces = [area.get_facecolor()[0] for area in axes.collections]
    assert [face[3] for face in faces] == [1.0, 1.0] and len(axes.lines) == 4
    assert to_plotly(Figure(bands))["data"][1]["fillcolor"] == "@s0~0.16"


TABLE = table("", ["Arm", "Ceiling A", "Seeds"], [
    [cell("fp32_50%"), cell("2.5 × 10⁻³", small="0.1 to 0.2"), cell("3 of 3")],
    [cell("dapo & co"), cell("–"), cell("1 of 3")],
])  # fmt: skip


def test_a_table_has_its_intervals_in_columns_of_csv_and_in_parentheses_of_latex():
    rows = list(csv.reader(io.StringIO(csv_of(TABLE))))
    assert rows[0] == ["Arm", "Ceiling A", "Ceiling A, 90% interval", "Seeds"]
    assert rows[1] == ["fp32_50%", "2.5 × 10⁻³", "0.1 to 0.2", "3 of 3"] and rows[2][2] == ""
    text = latex_of(TABLE)
    assert r"fp32\_50\% & 2.5 $\times$ 10$^{-3}$ (0.1 to 0.2) & 3 of 3 \\" in text
    lines = markdown_of(table("", ["Arm", "A"], [[cell("a|b"), cell("0.61", small="0.60 to 0.62")]])).splitlines()
    assert lines == ["| Arm | A |", "| -- | --: |", r"| a\|b | 0.61 (0.60 to 0.62) |"]
    assert r"dapo \& co & -- & 1 of 3 \\" in text and text.count(r"\\") == 3
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")


@pytest.mark.parametrize("width", [25.0, float("nan")])
def test_a_width_that_no_page_has_is_an_error(compared, tmp_path, width):
    with pytest.raises(ConfigError, match="allowed: 1 to 20 inches"):
        save_page(tmp_path, compared.page, compared.figures, width=width)


def test_a_series_of_every_kind_is_drawn():
    series = [
        ShadedBand(x=[1, 2], low=[1, np.nan], high=[2, 3], color="@s0"),
        Line(x=[1, 2], y=[1.5, 2], color="@s2", dash="dot"),
        Points(x=[1, 2], y=[1.5, 2], color="@s2", symbol=["circle", "circle-open"],
               errors=Errors([0.1, 0.2], "@s2", along="x")),
        Line(x=[1, 2], y=[9, 9], color="@s3", frame=0),
        Line(x=[1, 2], y=[1, 1], color="@s3", frame=1),
    ]  # fmt: skip
    shapes = [Span(1, 2, "@muted/0.1"), Rule(1, "@ink", "x"), Rule(2, "@ink", "y", "before")]
    shown = Figure(series, Axis("x"), shapes=shapes, frames=["10%", "20%"])
    axes = drawn_axes(shown)
    assert len(axes.collections) == 2 and len(axes.patches) == 1
    assert [text.get_text() for text in axes.texts] == ["before"]
    assert len(axes.lines) == 2 + 1 + 2 + 1 and axes.get_ylim()[1] < 4  # rules, line, two symbols, the middle frame
    traces = to_plotly(shown)["data"]
    assert traces[0]["y"] == [1.0, None] and [trace.get("visible") for trace in traces[-2:]] == [False, True]
