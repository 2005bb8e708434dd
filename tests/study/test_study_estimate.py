"""Estimates of time, and cases without an estimate. No time is measured here."""

import pytest

from scalerl.config import QUICK, HuggingFaceModel
from scalerl.config.base import replace
from scalerl.config.recipe import PpoOffPolicy
from scalerl.study import estimate
from scalerl.study.display import time_needed
from scalerl.study.plan import Arm, Plan


def test_the_time_of_a_run_is_the_sum_of_completions_evaluations_and_start():
    # 240 steps x 256 completions, 1 + 30 evaluations of 512 x 2 samples
    by_hand = 10 + 61_440 * 1.9e-3 + 31 * 1024 * 1.3e-3
    assert estimate.run_seconds(QUICK) == pytest.approx(by_hand)


def test_on_policy_runs_take_longer_and_twice_the_width_takes_four_times_as_long():
    turns = replace(QUICK, recipe=replace(QUICK.recipe, off_policy=PpoOffPolicy(batches=8)))
    assert estimate.run_seconds(turns) - estimate.run_seconds(QUICK) == pytest.approx(0.77 * 61_440 * 1.9e-3)
    wide = replace(QUICK, model=replace(QUICK.model, width=128))
    assert estimate.run_seconds(wide) - 10 == pytest.approx(4 * (estimate.run_seconds(QUICK) - 10))


def test_the_time_of_a_plan_is_the_sum_of_its_runs_at_the_speed_of_this_machine(monkeypatch):
    monkeypatch.setattr(estimate, "probe", lambda: 2 * estimate.PROBE_S)  # half as fast
    arms = (Arm(name="a"), Arm(name="b", changes={"recipe": {"loss": "gspo"}}))
    plan = Plan(name="x", reference="a", base=QUICK, arms=arms, seeds=(0, 1, 2))
    assert estimate.plan_seconds(plan, {}) == pytest.approx(2 * 6 * estimate.run_seconds(QUICK))
    assert time_needed(plan).startswith("time: about 34 minutes")
    assert time_needed(plan, dict.fromkeys(plan.runs()[:3], 240)).startswith("time: about 17 minutes")
    half = 10 + 120 * 256 * 1.9e-3 + 16 * 1024 * 1.3e-3  # 120 steps, one evaluation before them and 15 during them
    assert estimate.plan_seconds(plan, dict.fromkeys(plan.runs(), 120)) == pytest.approx(2 * 6 * half)
    assert time_needed(plan, dict.fromkeys(plan.runs(), 240)) == "time: none; every run is reused"
    other = replace(plan, base=replace(QUICK, model=HuggingFaceModel(path="x")))
    assert estimate.plan_seconds(other, {}) is None and "unknown" in time_needed(other)
