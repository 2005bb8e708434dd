"""The display of a run on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from scalerl.config import LAB
from scalerl.config.base import replace
from scalerl.types import EvalPoint
from scalerl.view.display import RunDisplay
from scalerl.view.warnings import truncation

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


@pytest.mark.parametrize(("rate", "words"), [(0.05, None), (0.051, "if the share exceeds 10%"), (0.101, "unstable")])
def test_truncation_warnings_start_at_5_and_10_percent(rate, words):
    output = truncation([{"truncation_rate": rate}])
    assert output == {} if words is None else words in "".join(output.values())


def test_the_live_table_fits_80_columns_also_with_large_numbers():
    shown, _ = display(terminal=True)
    large = {"step": 12_345, "generator_tokens_per_s": 123_456.0, "trainer_tokens_per_s": 1_234_567.0, "epoch": 123}
    shown._view.config = replace(LAB, steps=123_456)
    shown.step({**ROW, **large, "retired_prompts": 123_456, "kept_prompts": 512, "prompts": 512, "trainer_idle": 1.0})
    shown.point(points(6, task="a-task-with-a-name-of-many-characters"))
    console = Console(file=io.StringIO(), width=80)
    console.print(shown._render())
    shown.stop()
    lines = console.file.getvalue().splitlines()
    assert len(lines) >= 8 and max(map(len, lines)) <= 80 and "…" not in "".join(lines)
    assert "1,234,567 tok/s, 100% idle" in lines[2] and "123456 prompts, epoch 123" in lines[5]


def test_the_forecast_appears_with_the_fifth_evaluation():
    for count, expected in ((4, False), (5, True)):
        shown, out = display(terminal=False)
        shown.point(points(count))
        assert ("forecast 2x" in out.getvalue()) is expected


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


def test_empty_slots_give_one_warning_with_a_remedy():
    shown, out = display(terminal=False)
    for step in range(1, 60):
        shown.step({**ROW, "step": step, "occupancy": 0.4, "completion_tokens_max": 900})
    assert out.getvalue().count("only 40% of the 256 slots were busy") == 1
    assert "set rollouts.slots to 76 or fewer, or recipe.off_policy.stale to mask" in out.getvalue()  # 9 x 30/900 x 256


def test_a_decline_is_reported_once_with_the_metrics_that_moved():
    shown, out = display(terminal=False)
    quiet = {**ROW, "log_ratio_mean": 0.001}
    for step in range(1, 81):
        shown.step({**quiet, "step": step, "entropy": (0.30, 0.31)[step % 2]})
    for step in range(81, 101):
        shown.step({**quiet, "step": step, "entropy": 0.05})
    rates = [0.2, 0.3, 0.42, 0.5, 0.56, 0.6, 0.63, 0.64, 0.5, 0.3, 0.2]
    curve = [EvalPoint(10 * i, 0.0, 1e11 * i, i, "t", rate, 0.01, 64, 4) for i, rate in enumerate(rates)]
    for count in range(5, 12):
        shown.point(curve[:count])
    text = out.getvalue()
    # the best mean of three is (0.6 + 0.63 + 0.64) / 3
    assert text.count("the held-out metric of t has fallen by") == 1
    assert "metrics that moved: entropy from 0.305 to 0.05" in text
    assert "staleness from" not in text and "truncation from" not in text
