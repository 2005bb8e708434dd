"""The outlook of a run in text and figures, with and without a fit."""

import dataclasses
import json

import numpy as np
import pytest

from scalerl.core.types import EvalPoint
from scalerl.reading.pages.outlook import run_outlook
from scalerl.reading.pages.summary import write_summary
from scalerl.training.config import LAB
from scalerl.training.config.base import replace
from scalerl.training.config.data import ArithmeticTask, ProgramsTask
from scalerl.training.loop.run_info import data_notes, default_axis, run_info

BOTH = (ArithmeticTask(), ProgramsTask())


def level(compute, r0=0.2, ceiling=0.8, midpoint=4e11, slope=1.6):
    return r0 + (ceiling - r0) / (1 + (midpoint / np.maximum(compute, 1.0)) ** slope)


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    compute = np.linspace(0, 4e12, 30)
    rates = level(compute) + 0.004 * rng.standard_normal(30)
    return [
        EvalPoint(10 * i, c / 1e15, c, int(c / 1e6), "arithmetic", float(r), 0.01, 512, 4)
        for i, (c, r) in enumerate(zip(compute, rates, strict=True))
    ]


def test_the_text_contains_the_law_the_forecast_and_the_advice(points):
    ahead = run_outlook(points, "flops")
    text = "\n".join(ahead.lines())
    assert "30 evaluations to 4 TFLOP" in text and "NOT identified" not in text
    twice, four = ahead.forecast.at
    assert f"at 2x     {twice.mean:.3f}" in text and f"at 4x     {four.mean:.3f}" in text
    assert text.startswith("Stop: ") and "for another 14.4 device-seconds" in text
    assert abs(ahead.fit.asymptote.mean - 0.8) < 0.02 and twice.low < level(8e12) < twice.high


def test_a_finished_run_writes_a_figure_and_a_summary(points, tmp_path):
    lines = write_summary(tmp_path, run_info(LAB), points)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG" and summary["asymptote"]["low"] < 0.8
    assert lines[0].startswith("12%") and lines[-1] == f"run       {tmp_path}"
    assert summary["forecast"]["at"][1]["compute"] == pytest.approx(1.6e13)


def of_programs(points, rate=None):
    low = [dataclasses.replace(p, task="programs", pass_rate=p.pass_rate / 2 if rate is None else rate) for p in points]
    return [point for pair in zip(points, low, strict=True) for point in pair]


def test_a_run_of_several_tasks_has_an_outlook_for_each(points, tmp_path):
    mixed = replace(LAB, data=BOTH)
    lines = write_summary(tmp_path, run_info(mixed), of_programs(points))
    tasks = json.loads((tmp_path / "summary.json").read_text())["tasks"]
    alone = run_outlook(points, "flops").to_dict()
    assert list(tasks) == ["arithmetic", "programs"] and tasks["arithmetic"]["asymptote"] == alone["asymptote"]
    assert tasks["programs"]["asymptote"]["mean"] == pytest.approx(0.4, abs=0.05)
    assert [line for line in lines if line.startswith("task ")] == ["task      arithmetic", "task      programs"]
    assert (
        sum("twice the compute should gain" in line for line in lines) == 2
        and sum("curve.png" in line for line in lines) == 1
    )


def test_a_task_without_a_forecast_does_not_hide_the_other(points, tmp_path):
    both = of_programs(points)
    few = [point for point in both if point.task != "programs" or point.step < 40]
    lines = write_summary(tmp_path, run_info(replace(LAB, data=BOTH)), few)
    tasks = json.loads((tmp_path / "summary.json").read_text())["tasks"]
    assert tasks["programs"] is None and tasks["arithmetic"]["points"] == 30 and (tmp_path / "curve.png").exists()
    assert any(line.startswith("forecast  none: a fit needs at least 5 points; got 4") for line in lines)


def test_a_picture_that_cannot_be_written_is_named(points, tmp_path):
    (tmp_path / "curve.png").mkdir()
    lines = write_summary(tmp_path, run_info(LAB), points)
    assert any(line.startswith(f"picture   none: {tmp_path}/curve.png cannot be written") for line in lines)


def test_the_axis_is_device_hours_on_gpus_and_counted_flops_on_cpu():
    gpu = replace(LAB, hardware=replace(LAB.hardware, device="cuda"))
    assert default_axis(gpu) == "device_hours" and default_axis(LAB) == "flops"


def test_label_noise_is_reported_with_the_curve():
    assert data_notes(LAB)[0] == "12% of the reference answers are wrong on purpose, which caps the pass rate"
    assert data_notes(replace(LAB, data=(ArithmeticTask(label_noise=0.0),))) == ()
    uneven = replace(LAB, data=(ArithmeticTask(), ProgramsTask(label_noise=0.3)))
    assert data_notes(uneven)[0].startswith("12% (arithmetic), 30% (programs) of the reference answers")
