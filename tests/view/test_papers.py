"""Figures and tables for papers: every one of a page, at the width of a column, with fonts that publishers take."""

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from commands import call
from simulated_runs import run, write
from simulated_study import Truth, write_study

from scalerl.core.errors import ConfigError
from scalerl.scaling import frontier
from scalerl.view.analysis import analyze
from scalerl.view.outlook import Source
from scalerl.view.page import frontier_page, page, study_page
from scalerl.view.papers import Table, Variant, csv_of, latex_of, plain_text, save_page, tables, variants
from scalerl.view.study import study_results
from scalerl.view.study_files import read_files


def sources(name, *curves):
    return [Source(Path(f"{name}-{i}"), f"{name}-{i}", made, None) for i, made in enumerate(curves)]


@pytest.fixture(scope="module")
def compared():
    return page(analyze(sources("a", run(), run(seed=1)), sources("b", run(efficiency=1.4, seed=2))))


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    truths = {"scalerl": Truth(), "fp32": Truth(midpoint=4e13), "dapo": Truth(asymptote=0.5)}
    return study_page(study_results(read_files(write_study(tmp_path_factory.mktemp("s") / "loo", truths).path)))


def pages(request, name):
    if name == "frontier":
        curves = [run(midpoint=500.0 * size, seed=size) for size in (1, 2, 4, 8)]
        settings = [{"size": size} for size in (1, 2, 4, 8)]
        return frontier_page(frontier(curves, settings, 20_000.0), list(zip(curves, settings, strict=True)))
    return request.getfixturevalue(name)


MANY = [pytest.param(name, marks=pytest.mark.slow) for name in ("compared", "studied")]  # figures


@pytest.mark.parametrize("name", [*MANY, "frontier"])
def test_every_figure_and_table_of_a_page_is_written_in_every_format(request, name, tmp_path):
    shown = pages(request, name)
    written = {path.name for path in save_page(tmp_path / "figures", shown)}
    assert written == {path.name for path in (tmp_path / "figures").iterdir()}
    drawn = {figure["name"] for block in shown["blocks"] if block["kind"] == "figures" for figure in block["figures"]}
    for figure in drawn:
        for kind in ("pdf", "svg", "png"):
            assert any(file.startswith(figure) and file.endswith(kind) for file in written), (figure, kind)
    listed = [block["title"] for block in shown["blocks"] if block["kind"] == "table"]
    assert len([file for file in written if file.endswith(".csv")]) == len(listed) == len(list(tables(shown))) > 0


@pytest.mark.slow
def test_a_figure_has_the_width_of_a_column_and_fonts_that_publishers_take(compared, tmp_path):
    save_page(tmp_path, compared)
    pdf = (tmp_path / "curves.pdf").read_bytes()
    ((width, _),) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf)
    assert float(width) == pytest.approx(3.25 * 72, abs=0.5)
    assert b"/Type3" not in pdf and (b"/TrueType" in pdf or b"/CIDFontType2" in pdf)
    svg = (tmp_path / "curves.svg").read_text()
    assert "<text" in svg and "training compute (device-hours)" in svg and "held-out pass rate" in svg
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    save_page(tmp_path, compared, width=6.75)  # again, in its own directory
    assert b"486 " in re.search(rb"/MediaBox \[.*?\]", (tmp_path / "curves.pdf").read_bytes())[0]


def drawn_axes(variant, width=3.25):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from scalerl.view import papers
    from scalerl.view.palette import LIGHT

    figure = Figure(
        figsize=(width, variant.layout.get("height", 0) * papers.PIXELS or 0.72 * width), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    papers.draw(axes, variant, LIGHT)
    figure.draw_without_rendering()
    return axes


@pytest.mark.parametrize("name", ["compared", "studied", "frontier"])
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_no_label_is_cut_and_no_two_ticks_overlap(request, name, scale):
    for variant in variants(pages(request, name), scale):
        axes = drawn_axes(variant)
        renderer, box = axes.figure.canvas.get_renderer(), axes.figure.bbox
        low, high = sorted(axes.get_xlim())
        labels = [t for t in axes.get_xticklabels(which="both") if t.get_text() and low <= t.get_position()[0] <= high]
        places = sorted((t.get_window_extent(renderer) for t in labels), key=lambda place: place.x0)
        assert len(places) >= 2, variant.name
        assert all(a.x1 <= b.x0 + 1 for a, b in pairwise(places)), (variant.name, labels)
        assert axes.xaxis.get_offset_text().get_text() == "", variant.name
        legend = axes.get_legend()
        for text in [axes.xaxis.label, axes.yaxis.label, *(legend.get_texts() if legend else [])]:
            place = text.get_window_extent(renderer)
            if not text.get_text():
                continue
            assert place.x0 >= -1 and place.x1 <= box.x1 + 1 and place.y0 >= -1 and place.y1 <= box.y1 + 1, text
        if legend:
            names = [text.get_text() for text in legend.get_texts()]
            assert len(names) == len(set(names)) and legend.get_window_extent(renderer).y0 >= axes.bbox.y1 - 2


def test_several_runs_have_their_colors_and_one_legend(compared):
    (variant,) = (each for each in variants(compared, "log") if each.name == "curves")
    axes = drawn_axes(variant)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a-0", "a-1", "b-0"]
    assert len({line.get_color() for line in axes.lines}) >= 2 and axes.get_xscale() == "log"
    (linear,) = (each for each in variants(compared, "linear") if each.name == "curves")
    assert drawn_axes(linear).get_xscale() == "linear"


def test_an_option_that_draws_something_else_has_its_own_file(compared):
    names = [variant.name for variant in variants(compared, "log")]
    assert {"backtests-a-0", "backtests-b-0"} <= set(names) and len(names) == len(set(names))


def test_text_of_a_page_is_text_of_a_figure():
    assert plain_text("2.5×10<sup>3</sup> &lt;b&gt; <b>thick</b><br>$5") == "2.5×10$^{3}$ <b> thick\n\\$5"


TABLE = Table(["Arm", "Ceiling A", "Seeds"], [[("fp32_50%", ""), ("2.5 × 10⁻³", "0.1 to 0.2"), ("3 of 3", "")],
                                             [("dapo & co", ""), ("–", ""), ("1 of 3", "")]])  # fmt: skip


def test_a_table_has_its_intervals_in_columns_of_csv_and_in_parentheses_of_latex():
    rows = list(csv.reader(io.StringIO(csv_of(TABLE))))
    assert rows[0] == ["Arm", "Ceiling A", "Ceiling A, 90% interval", "Seeds"]
    assert rows[1] == ["fp32_50%", "2.5 × 10⁻³", "0.1 to 0.2", "3 of 3"] and rows[2][2] == ""
    text = latex_of(TABLE)
    assert r"fp32\_50\% & 2.5 $\times$ 10$^{-3}$ (0.1 to 0.2) & 3 of 3 \\" in text
    assert r"dapo \& co & -- & 1 of 3 \\" in text and text.count(r"\\") == 3
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")


@pytest.mark.slow
def test_the_commands_write_figures_beside_their_page(capsys, tmp_path):
    paths = [write(tmp_path / f"r{i}.jsonl", run(seed=i)) for i in range(2)]
    place = tmp_path / "figures"
    code, out, _ = call(capsys, "report", *paths, "-o", tmp_path / "r.html", "--figures", place, "--dark", "--linear")
    assert code == 0 and f"figures   {len(list(place.iterdir()))} files in {place}" in out
    assert (place / "curves.pdf").exists() and (place / "table-side-by-side.tex").exists()
    code, _, error = call(capsys, "report", *paths, "-o", tmp_path / "r.html", "--figures", tmp_path)
    assert code != 0 and "contains figures; give a new directory" in error
    code, _, error = call(capsys, "report", *paths, "-o", tmp_path / "r.html", "--figures", paths[0])
    assert code != 0 and "is a file" in error
    study = write_study(tmp_path / "study", {"scalerl": Truth(), "fp32": Truth(midpoint=4e13)}).path
    code, out, _ = call(capsys, "study", "show", study, "--figures", tmp_path / "of-study")
    assert code == 0 and "files in" in out and (tmp_path / "of-study" / "ceilings.svg").exists()
    code, out, _ = call(capsys, "study", "show", study, "--figures", tmp_path / "of-study", "--json")
    assert json.loads(out)


@pytest.mark.parametrize("width", [0.0, -3.0, 25.0, float("nan")])
def test_a_width_that_no_page_has_is_an_error(compared, tmp_path, width):
    with pytest.raises(ConfigError, match="allowed: 1 to 20 inches"):
        save_page(tmp_path, compared, width=width)


def test_a_trace_of_every_kind_is_drawn():
    data = [
        {"mode": "lines", "x": [1, 2], "y": [1, None], "line": {"width": 0}, "showlegend": False},
        {"mode": "lines", "x": [1, 2], "y": [2, 3], "line": {"width": 0}, "fill": "tonexty", "fillcolor": "@s0/0.2"},
        {"mode": "lines+markers", "name": "a", "x": [1, 2], "y": [1.5, 2], "line": {"color": "@s2", "dash": "dot"},
         "marker": {"color": "@s2", "symbol": ["circle", "circle-open"]}, "error_x": {"array": [0.1, 0.2]}},
    ]  # fmt: skip
    dotted = {"color": "@ink", "dash": "dot"}
    shapes = [
        {"type": "rect", "x0": 1, "x1": 2, "fillcolor": "@muted/0.1"},
        {"type": "line", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "line": dotted},
    ]
    axes = drawn_axes(Variant("all", data, {"shapes": shapes, "xaxis": {"title": {"text": "x"}}}))
    assert len(axes.collections) == 2 and len(axes.patches) == 1 and len(axes.lines) == 4
