"""Reuse of runs of other studies: only finished runs with an equal configuration and seed."""

import json

import pytest
from simulated_study import STEPS, Truth, write_study

from scalerl import cli
from scalerl.core.run_files import RunKey
from scalerl.training.config import to_toml
from scalerl.training.config.base import replace
from scalerl.training.study.directory import ReusedRun, StudyDirectory, equal_runs, take_over
from scalerl.training.study.plan import Arm


@pytest.fixture
def other(tmp_path):
    """Two seeds of `first` (finished), `second` (finished) and `third` (ended at half)."""
    truths = {"first": Truth(), "second": Truth(), "third": Truth(last_step=STEPS // 2)}
    return write_study(tmp_path / "other", truths, seeds=2)


def plan_like(other, **names):
    """Return arms with the changes of arms of the other study, under different names."""
    arms = tuple(Arm(name=new, changes=other.plan.arm(old).changes) for new, old in names.items())
    return replace(other.plan, name="mine", reference=arms[0].name, arms=arms, seeds=(0, 1, 2))


def test_equal_finished_runs_are_found_for_any_name_of_the_arm(other):
    plan = plan_like(other, a="first", b="third")
    assert equal_runs(plan, [other]) == {
        RunKey("a", seed): ReusedRun(other.path / f"first/seed-{seed}", STEPS)
        for seed in (0, 1)  # seed 2 is missing, b is not finished
    }


def test_a_longer_budget_resumes_a_shorter_run_that_ended_at_an_evaluation(other, tmp_path):
    plan = plan_like(other, a="first")
    longer = replace(plan, base=replace(plan.base, steps=STEPS + 8))
    place = other.path / "first/seed-0"
    assert STEPS % longer.base.evaluation.every == 0 and equal_runs(longer, [other])[RunKey("a", 0)] == (place, STEPS)
    mine = StudyDirectory.create(tmp_path / "mine", longer)
    assert take_over(mine, [other])[0] == f"a/seed-0: taken over from {place}, to be resumed from step {STEPS}"
    assert mine.step(RunKey("a", 0)) == STEPS


@pytest.mark.parametrize("change", [{"steps": STEPS - 8}, {"steps": STEPS + 8, "evaluation": {"every": 7}}])
def test_a_run_with_a_shorter_budget_or_other_evaluations_is_not_reused(other, change):
    plan = plan_like(other, a="first", b="second")
    assert equal_runs(replace(plan, base=replace(plan.base, **change)), [other]) == {}


def test_reused_runs_are_copies_and_existing_runs_stay_unchanged(other, tmp_path):
    for name in ("checkpoints/step_000160", "rollouts"):
        (other.path / "first/seed-0" / name).mkdir(parents=True)
    heavy = other.path / "first/seed-0/checkpoints/step_000160/trainer.safetensors"
    heavy.write_text("weights")
    mine = StudyDirectory.create(tmp_path / "mine", plan_like(other, a="first", b="second"))
    own = mine.run(RunKey("b", 1))
    own.mkdir(parents=True)
    told = take_over(mine, [other])
    assert told == [f"{key}: taken over from {other.path / there}" for key, there in [
        ("a/seed-0", "first/seed-0"), ("b/seed-0", "second/seed-0"), ("a/seed-1", "first/seed-1")]]  # fmt: skip
    for name in ("points.jsonl", "metrics.jsonl", "config.toml"):
        here, there = (path / name for path in (mine.run(RunKey("a", 0)), other.path / "first/seed-0"))
        assert here.read_bytes() == there.read_bytes() and not here.samefile(there)
    assert (mine.run(RunKey("a", 0)) / heavy.relative_to(other.path / "first/seed-0")).samefile(heavy)
    assert mine.step(RunKey("a", 0)) == STEPS and list(own.iterdir()) == []
    assert take_over(mine, [other]) == []


def test_a_study_with_only_reused_runs_needs_no_training(other, tmp_path, capsys):
    plan, lines = tmp_path / "mine.toml", ['base = "base.toml"', "seeds = [0, 1]"]
    (tmp_path / "base.toml").write_text(to_toml(other.plan.base))
    for name, old in (("a", "first"), ("b", "second")):
        rate = other.plan.arm(old).changes["recipe"]["optimizer"]["learning_rate"]
        lines.append(f"[arms.{name}]\nrecipe.optimizer.learning_rate = {rate!r}")
    plan.write_text("\n".join(lines))
    words = ["study", str(plan), "--reuse", str(other.path), "-o", str(tmp_path / "mine")]
    assert cli.main([*words, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert f"a/seed-0: reused from {other.path}/first/seed-0" in output
    assert cli.main(words) == 0
    output = capsys.readouterr().out
    assert "a/seed-0: taken over from" in output and "b makes no difference" in output
    assert not (tmp_path / "mine/journal.jsonl").exists()
    kept = json.loads((tmp_path / "mine/results.json").read_text())
    assert [run["step"] for arm in kept["arms"] for run in arm["runs"]] == [STEPS] * 4
