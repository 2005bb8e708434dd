"""Plans: configurations of arms, errors before anything runs, and TOML that reads back to the same plan."""

import pytest

from scalerl.core.errors import ConfigError
from scalerl.training.config import LAB, QUICK
from scalerl.training.config.length import LengthPenalty
from scalerl.training.config.recipe import SCALERL, Cispo, Dapo, PipelineRL, PpoOffPolicy
from scalerl.training.study.plan import (
    Arm,
    Plan,
    checked_plan,
    plan_toml,
    read_plan,
    select,
    with_rates,
)
from scalerl.training.study.plans import PLANS


def plan(*arms, base=QUICK, **fields):
    first = Arm(name="base")
    return Plan(**{"name": "mine", "reference": "base", "base": base, "arms": (first, *arms), **fields})


def arm(name, **recipe):
    return Arm(name=name, changes={"recipe": recipe})


@pytest.mark.parametrize("name", list(PLANS))
def test_every_built_in_plan_is_valid_and_reads_back_from_toml(name, tmp_path):
    made = checked_plan(PLANS[name](QUICK))
    (tmp_path / "study.toml").write_text(plan_toml(made))
    assert read_plan(tmp_path / "study.toml") == made


def test_leave_one_out_has_the_papers_nine_arms_and_two_terms_with_one_changed_component_each():
    made = PLANS["loo"](QUICK)
    assert [a.name for a in made.arms] == [
        "scalerl", "plan", "lp", "batch", "8op", "fp32", "savg", "dapo", "uniform-sampling", "kl", "entropy",
    ]  # fmt: skip
    configs = {a.name: made.config(a, 0).recipe for a in made.arms}
    differing = {
        name: [f for f in type(SCALERL).model_fields if f != "name" and getattr(r, f) != getattr(configs["scalerl"], f)]
        for name, r in configs.items()
    }
    assert differing == {
        "scalerl": [], "plan": ["advantage"], "lp": ["length"], "batch": ["zero_variance"], "8op": ["off_policy"],
        "fp32": ["fp32_head"], "savg": ["aggregation"], "dapo": ["loss"], "uniform-sampling": ["retire_pass_rate"],
        "kl": ["kl_coefficient"], "entropy": ["entropy_coefficient"],
    }  # fmt: skip
    assert configs["8op"].off_policy == PpoOffPolicy(batches=8) and configs["dapo"].loss == Dapo()
    # the lab has 60 tokens of thinking and 9 for the answer: the penalty grows over the last 9 of 69
    assert configs["lp"].length == LengthPenalty(max_tokens=69, cache_tokens=9)


def test_the_five_recipes_keep_their_ratio_of_prompts_and_their_loss_at_any_size():
    made = PLANS["recipes"](LAB)
    recipes = {a.name: made.config(a, 0).recipe for a in made.arms}
    assert list(recipes) == ["scalerl", "minimax", "magistral", "dapo", "grpo"]
    # 80 prompts against 48: at 16 that is 26.7
    assert [r.prompts_per_step for r in recipes.values()] == [16, 27, 27, 27, 16]
    assert recipes["magistral"].off_policy == PipelineRL(max_lag=8) and recipes["minimax"].loss == Cispo()
    assert all(r.optimizer == LAB.recipe.optimizer for r in recipes.values())
    assert made.config(made.arm("dapo"), 0).recipe.name == "dapo"


def test_arms_sample_equally_many_completions_with_equally_many_evaluations():
    made = plan(arm("double", prompts_per_step=32), arm("half", generations_per_prompt=8))
    sizes = {a.name: made.config(a, 0) for a in made.arms}
    assert {n: (c.steps, c.evaluation.every) for n, c in sizes.items()} == {
        "base": (240, 8), "double": (120, 4), "half": (480, 16),
    }  # fmt: skip
    asked = plan(Arm(name="own", changes={"steps": 99, "recipe": {"prompts_per_step": 32}}))
    assert asked.config(asked.arm("own"), 0).steps == 99


def test_a_rate_applies_to_the_arms_of_its_loss_without_one():
    made = plan(arm("dapo", loss="dapo"), arm("own", loss="dapo", optimizer={"learning_rate": 1e-3}))
    tuned = with_rates(made, {"dapo": 2e-5})
    rates = {a.name: tuned.config(a, 0).recipe.optimizer.learning_rate for a in tuned.arms}
    assert rates == {"base": 1.2e-4, "dapo": 2e-5, "own": 1e-3}
    assert tuned.config(tuned.arm("dapo"), 0).recipe.optimizer.warmup_steps == QUICK.recipe.optimizer.warmup_steps


def test_a_selection_always_includes_the_reference():
    made = PLANS["forward"](QUICK)
    assert [a.name for a in select(made, ["cispo-*"]).arms] == ["baseline", "cispo-4", "cispo-5", "cispo-8"]
    with pytest.raises(ConfigError, match="'cispo-4'"):
        select(made, ["cispo4"])


def test_a_plan_file_defines_arms_by_their_changes(tmp_path):
    (tmp_path / "caps.toml").write_text(
        "base = 'quick'\nseeds = [4]\n[changes]\nsteps = 200\n[arms.five]\n[arms.eight]\nabout = 'wide'\n"
        "recipe.loss.max_ratio = 8\n"
    )
    made = read_plan(tmp_path / "caps.toml")
    assert (made.name, made.reference, made.seeds) == ("caps", "five", (4,))
    assert made.config(made.arm("eight"), 4).recipe.loss == Cispo(max_ratio=8.0)
    assert made.config(made.arm("eight"), 4).steps == 200 and made.arm("eight").about == "wide"
