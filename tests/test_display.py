"""The display of a run on a terminal and elsewhere."""

import io
import math
from dataclasses import replace as changed

import pytest
from rich.console import Console

from scalerl.core.types import EvalPoint
from scalerl.training.config import LAB
from scalerl.training.loop.display import RunDisplay

ROW = {
    "step": 9, "pass_rate": 0.31, "prompts": 16, "kept_prompts": 13, "retired_prompts": 2, "epoch": 1,
    "truncation_rate": 0.0, "interruption_rate": 0.02, "staleness_mean": 1.4, "staleness_max": 3, "entropy": 0.2,
    "capped_share": 0.001, "generator_tokens_per_s": 41234.0, "trainer_tokens_per_s": 35678.0,
    "generator_idle": 0.01, "trainer_idle": 0.04, "occupancy": 0.83, "completion_tokens_mean": 30.0,
    "completion_tokens_max": 69,
}  # fmt: skip


def points(count, task="t"):
    rates = [0.2, 0.3, 0.42, 0.5, 0.56, 0.6, 0.63]
    return [EvalPoint(10 * i, 0.0, 1e11 * i, i, task, rates[i], 0.01, 64, 4) for i in range(count)]


def display(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140)
    shown = RunDisplay(LAB, console)
    shown.start()
    return shown, console.file


@pytest.mark.parametrize("terminal", [False, True])
def test_every_task_has_its_own_line_and_forecast(terminal):
    shown, out = display(terminal)
    shown.step(ROW)
    shown.point([*points(6, "sums"), *points(4, "programs")])
    shown.stop()
    text = out.getvalue()
    assert "pass rate, sums" in text or "at step 50, sums: pass rate 0.600" in text
    assert "pass rate, programs 0.500" in text or "at step 30, programs: pass rate 0.500" in text
    assert text.count("forecast 2x") == 1 or terminal  # four evaluations of programs are too few for a forecast


@pytest.mark.parametrize("terminal", [False, True])
def test_an_evaluation_of_one_prompt_is_shown_without_an_error(terminal):
    shown, out = display(terminal)
    shown.point([changed(point, stderr=math.nan) for point in points(2)])
    shown.stop()
    text = out.getvalue()
    assert "pass rate 0.300" in text and "±" not in text and "nan" not in text


def test_a_step_and_an_evaluation_without_any_reward_are_shown():
    shown, out = display(terminal=False)
    shown.step({**ROW, "step": shown._view.steps, "pass_rate": math.nan, "reward": math.nan})
    shown.point([changed(points(1)[0], pass_rate=math.nan, stderr=math.nan)])
    shown.stop()
    text = out.getvalue()
    assert "pass rate unknown" in text and "pass unknown" in text and "nan" not in text
