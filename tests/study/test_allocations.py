"""Spending of a budget: arms that continue by the forecast, recorded reasons, and rates from a sweep."""

import json

import pytest
from simulated_study import Truth, point_row, write_study

from scalerl.core.errors import ConfigError
from scalerl.reading.pages.study import best_rates, sweep_note
from scalerl.training.config import QUICK
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.execute import by_forecast
from scalerl.training.study.plans import PLANS

HALF = 80


def test_a_slow_starter_continues_and_a_finished_low_arm_does_not(tmp_path):
    truths = {
        "good": Truth(last_step=HALF),
        "low": Truth(asymptote=0.45, midpoint=1e13, efficiency=2.5, last_step=HALF),
        "slow": Truth(asymptote=0.66, midpoint=2.5e14, last_step=HALF),
        "broken": Truth(last_step=-1, failed="no"),
    }
    study = write_study(tmp_path / "s", truths)
    arms, reason = by_forecast(study)
    assert "slow" in arms and "low" not in arms and "broken" not in arms
    assert "low: stop" in reason and "slow: continue" in reason
    (kept,) = [json.loads(line) for line in (study.path / "allocation.jsonl").read_text().splitlines()]
    assert [name for name, verdict in kept["verdicts"].items() if verdict["go_on"]] == arms


def test_the_best_rate_of_each_loss_is_the_one_that_ended_highest(tmp_path):
    study = StudyDirectory.create(tmp_path / "rates", PLANS["rates"](QUICK))
    ends = {"cispo-6e-05": 0.7, "cispo-0.00012": 0.8, "dapo-0.00024": 0.75, "gspo-0.00048": 0.6, "grpo-6e-05": 0.65}
    for key in study.plan.runs():
        study.run(key).mkdir(parents=True)
        # a single early high point must not count; the mean of the last three counts
        rates = [0.95, *[ends.get(key.arm, 0.5)] * 3]
        rows = map(point_row, (0, 224, 232, 240), rates)
        (study.run(key) / "points.jsonl").write_text("".join(rows))
    assert best_rates(study.path) == {"cispo": 1.2e-4, "dapo": 2.4e-4, "gspo": 4.8e-4, "grpo": 6e-5}
    assert sweep_note(study) == (
        "learning rates that ended highest, by the mean of the last 3 evaluations: cispo 0.00012, 0.800; "
        "dapo 0.00024, 0.750; gspo 0.00048 (at the edge of the sweep: the best may lie beyond), 0.600; "
        "grpo 6e-05 (at the edge of the sweep: the best may lie beyond), 0.650"
    )
    (study.run(study.plan.runs()[0]) / "points.jsonl").write_text(point_row(232, 0.5))
    with pytest.raises(ConfigError, match="not finished"):
        best_rates(study.path)
    assert sweep_note(study) == ""
