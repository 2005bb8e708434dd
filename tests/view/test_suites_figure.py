"""The figure of evaluation suites on the page of a run: a curve for each suite, with its standard error."""

import pytest
from json_rows import write_rows
from simulated_runs import run as curve

from scalerl.reading.pages.analysis import analyze
from scalerl.reading.pages.outlook import read_sources
from scalerl.reading.pages.page_figures import FIGURES
from scalerl.training.config import read_config, to_toml
from scalerl.training.loop.run_info import run_info

pytest.importorskip("plotly", reason="the page needs the extra `report`")

SUITES = {"aime-24": (0.10, 0.02), "<b>own": (0.30, 0.01)}
"""Name -> (level at the start, standard error); one name contains HTML."""


def run_directory(path, seed=0):
    """Write a run of 13 evaluations, of which every third includes two suites; return its path."""
    path.mkdir(parents=True)
    (path / "own.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    (path / "run.toml").write_text(
        f'suites = ["aime-24", {{path = "{path}/own.jsonl", name = "<b>own"}}]\n[model]\nkind = "hf"\npath = "m"\n'
        f'[data]\nkind = "file"\npath = "{path}/own.jsonl"\nname = "main"\n'
    )
    config = read_config(path / "run.toml", [])
    (path / "config.toml").write_text(to_toml(config))
    (path / "run.json").write_text(run_info(config).to_json())
    made, rows = curve(seed=seed, points=13), []
    for step, (compute, level) in enumerate(zip(made.compute, made.metric, strict=True)):
        shared = {"step": step, "device_hours": compute, "flops": 1e15 * compute, "tokens": 1000 * step}
        rows.append({**shared, "task": "main", "pass_rate": level, "stderr": 0.005})
        for name, (start, error) in SUITES.items():
            rows.append({**shared, "task": name, "pass_rate": start + 0.01 * step, "stderr": error})
    write_rows(path / "points.jsonl", rows)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_directory(tmp_path_factory.mktemp("suites") / "run")


def test_each_suite_has_its_points_and_standard_errors_on_the_axis_of_the_held_out_curve(run):
    analysis = analyze(read_sources([run], axis="device_hours"))
    assert analysis.runs[0].source.curve.label == "main"
    figure = FIGURES["suites"](analysis)
    points, lines = figure.series[1::2], figure.series[::2]
    assert [one.name for one in lines] == ["aime-24", "<b>own"] and all(one.legend for one in lines)
    for one, (start, error) in zip(points, SUITES.values(), strict=True):
        assert list(one.x) == list(analysis.runs[0].source.curve.compute) and len(one.x) == 13
        assert list(one.y) == pytest.approx([start + 0.01 * step for step in range(13)])
        assert list(one.errors.size) == pytest.approx([error] * 13)
    assert len({one.color for one in lines}) == 2
