"""The built-in plans: each takes a base configuration and returns a plan with arms that the paper compares.

The names of the arms follow the paper (arXiv 2510.13786, sections 3 to 5 and appendix A.16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from scalerl.training.config import RunConfig, TinyModel, merge
from scalerl.training.config.base import build, replace
from scalerl.training.config.data import ArithmeticTask, ProgramsTask
from scalerl.training.config.recipe import (
    BASELINE,
    RECIPES,
    Cispo,
    Dapo,
    Grpo,
    Gspo,
    Loss,
    PipelineRL,
    PpoOffPolicy,
    Recipe,
    adopt,
    as_penalty,
    leave_one_out,
)
from scalerl.training.study.plan import Arm, Changes, Plan, recipe_changes

RATE_STEPS = (0.5, 1.0, 2.0, 4.0)
"""Learning rates of a sweep, in multiples of the base's."""

RATE_SEED = 1000
"""Seed of the sweep; no other plan uses it."""

BATCHES = (0.5, 2.0, 4.0)
"""Batches of the axes plan, in multiples of the base's prompts per step."""

GROUP_SIZES = (0.25, 0.5, 2.0)
"""Generations per prompt, in multiples of the base's, at the same completions per step."""

LENGTHS = (0.75, 1.5)
"""Limits on the length, in multiples of the base's."""

WIDTHS = (1.5, 2.0)
"""Widths of the tiny model, in multiples of the base's, rounded to multiples of twice its heads."""

GRID_WIDTHS, GRID = (1.0, 1.25, 1.5, 2.0, 2.5), (0.5, 1.0, 2.0)
"""Widths of the frontier plan, and its prompts per step and generations per prompt, in multiples of the base's."""


def loo(base: RunConfig) -> Plan:
    """Compare the recipe with variants that replace one component each (section 4; ICLR figure 12)."""
    left_out = leave_one_out(base.recipe)
    arms = [_arm("scalerl", "the whole recipe", {}), *_variants(left_out, base.recipe, LEFT_OUT)]
    return _plan("loo", "Which component of the recipe matters when all the others are present?", base, arms)


LEFT_OUT = {
    "plan": "group instead of batch normalization",
    "lp": "length penalty instead of interruption",
    "batch": "zero-variance prompts kept in the loss",
    "8op": "PPO-off-policy-8 instead of PipelineRL-8",
    "fp32": "no FP32 head; without effect if the weights are FP32, and then a check of the comparison",
    "savg": "sample average instead of prompt average",
    "dapo": "DAPO's loss instead of CISPO",
    "uniform-sampling": "no No-Positive-Resampling",
    "kl": "a KL term with 0.001, as DeepSeek-R1's",
    "entropy": "an entropy bonus with 0.001",
}
"""Description of each arm of the leave-one-out plan."""


def recipes(base: RunConfig) -> Plan:
    """Compare the five recipes at the base's sizes (figure 2, appendix A.16)."""
    adopted = {name: adopt(recipe, base.recipe) for name, recipe in RECIPES.items() if name not in NOT_COMPARED}
    base = replace(base, recipe=adopted["scalerl"])
    about = "Which recipe has the higher ceiling, and which is only more efficient?"
    return _plan("recipes", about, base, _variants(adopted, adopted["scalerl"], {}))


NOT_COMPARED = ("baseline", "deepseekmath")
"""Recipes that the paper does not compare."""


def forward(base: RunConfig) -> Plan:
    """Apply every choice of section 3 to the paper's baseline, one at a time."""
    start = adopt(BASELINE, base.recipe)
    changes: dict[str, dict[str, Any]] = {
        "baseline": {},
        **{f"pipeline-{k}": {"off_policy": PipelineRL(max_lag=k)} for k in (1, 4)},
        **{f"ppo-{k}": {"off_policy": PpoOffPolicy(batches=k)} for k in (1, 4, 8)},
        "fp32": {"fp32_head": True},
        "prompt-average": {"aggregation": "prompt"},
        "token-average": {"aggregation": "token"},
        "batch-norm": {"advantage": "batch"},
        "no-norm": {"advantage": "none"},
        "zero-variance": {"zero_variance": "drop"},
        "no-positive-resampling": {"retire_pass_rate": 0.9},
        "length-penalty": {"length": as_penalty(base.recipe.length)},
        **{f"dapo-{high:g}": {"loss": Dapo(clip_high=high)} for high in (0.2, 0.22, 0.24, 0.28, 0.3)},
        **{f"cispo-{cap:g}": {"loss": Cispo(max_ratio=cap)} for cap in (4.0, 5.0, 8.0)},
        **{f"gspo-{low:g}": {"loss": Gspo(clip_low=low, clip_high=high)} for low, high in GSPO_CLIPS},
    }
    variants = {name: replace(start, **change) for name, change in changes.items()}
    arms = _variants(variants, start, {"baseline": "GRPO with the asymmetric clip 0.26, on PipelineRL-8"})
    return _plan("forward", "Which choice helps the baseline?", replace(base, recipe=start), arms)


GSPO_CLIPS = ((3e-4, 4e-4), (3e-3, 4e-3), (4e-3, 5e-3))
"""Clip ranges: that of the GSPO paper, and two of the ScaleRL paper."""


def axes(base: RunConfig) -> Plan:
    """Vary the scaling axes of section 5: model size, length, batch, and generations per prompt at a fixed total."""
    recipe = base.recipe
    total, group = recipe.completions_per_step, recipe.generations_per_prompt
    arms = [_arm("scalerl", "the base", {})]
    for factor in BATCHES:
        prompts = max(1, round(recipe.prompts_per_step * factor))
        arms.append(_arm(f"prompts-{prompts}", "batch", {"recipe": {"prompts_per_step": prompts}}))
    for factor in GROUP_SIZES:
        samples = max(2, round(group * factor))
        sizes = {"generations_per_prompt": samples, "prompts_per_step": max(1, total // samples)}
        arms.append(_arm(f"generations-{samples}", "the same completions per step", {"recipe": sizes}))
    for factor in LENGTHS:
        length = with_scaled_lengths(recipe, factor)
        arms.append(_arm(f"length-{length.length.max_tokens}", "tokens", recipe_changes(length, recipe)))
    if isinstance(base.model, TinyModel):
        for width in (_width(base.model, factor) for factor in WIDTHS):
            arms.append(_arm(f"width-{width}", "model size", {"model": {"width": width}}))
        experts = {"experts": 4, "active_experts": 2}
        arms.append(_arm("experts-4", "a mixture of 4 experts, 2 active", {"model": experts}))
    if len(base.data) == 1 and isinstance(base.data[0], ArithmeticTask):
        both = [task.model_dump(mode="json", exclude_none=True) for task in (base.data[0], ProgramsTask())]
        arms.append(_arm("mixed", "half of the prompts are programs", {"data": both}))
    return _plan("axes", "Which axis of scale raises the ceiling?", base, arms)


def _width(model: TinyModel, factor: float) -> int:
    unit = 2 * model.heads
    return max(unit, unit * round(model.width * factor / unit))


def frontier(base: RunConfig) -> Plan:
    """Train a grid of widths, prompts and generations; predict the largest width and batch before they are run."""
    recipe, sizes = base.recipe, {}
    if isinstance(base.model, TinyModel):
        sizes["model", "width"] = [_width(base.model, factor) for factor in GRID_WIDTHS]
    sizes["recipe", "prompts_per_step"] = [max(1, round(recipe.prompts_per_step * factor)) for factor in GRID]
    sizes["recipe", "generations_per_prompt"] = [
        max(2, round(recipe.generations_per_prompt * factor)) for factor in GRID
    ]
    arms = []
    for values in product(*(sorted(set(choices)) for choices in sizes.values())):
        changes: Changes = {}
        for (part, field), value in zip(sizes, values, strict=True):
            changes = merge(changes, {part: {field: value}})
        arms.append(_arm(_of_grid(sizes, values), "", changes))
    held_out = [f"*{field[0]}{max(choices)}-*" for (_, field), choices in list(sizes.items())[:-1]]
    middle = [choices[len(choices) // 2] for choices in sizes.values()]
    plan = _plan("frontier", "Which settings are best for a budget?", base, arms)
    vary = tuple(".".join(field) for field in sizes)
    return replace(plan, reference=_of_grid(sizes, middle), vary=vary, held_out=tuple(held_out))


def _of_grid(fields: Iterable[tuple[str, str]], values: Iterable[int]) -> str:
    """Return the name of an arm of a grid: w64-p16-g16."""
    return "-".join(f"{field[0]}{value}" for (_, field), value in zip(fields, values, strict=True))


def with_scaled_lengths(recipe: Recipe, factor: float) -> Recipe:
    """Return the recipe with every limit on the length multiplied by a factor."""
    values = recipe.length.model_dump()
    for name in ("max_tokens", "cache_tokens"):
        if name in values:
            values[name] = max(1, round(values[name] * factor))
    if "thinking_tokens" in values:
        values["thinking_tokens"] = tuple(max(1, round(n * factor)) for n in values["thinking_tokens"])
    return replace(recipe, length=values)


def rates(base: RunConfig) -> Plan:
    """Sweep the learning rate of each loss, on a seed that no other plan uses."""
    losses: tuple[Loss, ...] = (Cispo(), Dapo(), Gspo(), Grpo())
    rate = base.recipe.optimizer.learning_rate
    arms = []
    for loss in losses:
        for factor in RATE_STEPS:
            tuned = replace(base.recipe.optimizer, learning_rate=float(f"{rate * factor:.3g}"))
            changes = recipe_changes(replace(base.recipe, loss=loss, optimizer=tuned), base.recipe)
            arms.append(_arm(f"{loss.kind}-{tuned.learning_rate:g}", "", changes))
    plan = _plan("rates", "Which learning rate suits each loss?", base, arms)
    return replace(plan, reference=f"cispo-{rate:g}", seeds=(RATE_SEED,))


PLANS: dict[str, Callable[[RunConfig], Plan]] = {
    plan.__name__: plan for plan in (loo, recipes, forward, axes, rates, frontier)
}
"""Plans by name."""


def _plan(name: str, about: str, base: RunConfig, arms: Iterable[Arm]) -> Plan:
    arms = tuple(arms)
    values = {"name": name, "about": about, "reference": arms[0].name, "base": base, "arms": arms}
    return build(Plan, values, f"plan {name}")


def _variants(variants: dict[str, Recipe], reference: Recipe, about: dict[str, str]) -> Iterable[Arm]:
    for name, recipe in variants.items():
        yield _arm(name, about.get(name, ""), recipe_changes(recipe, reference))


def _arm(name: str, about: str, changes: Changes) -> Arm:
    return build(Arm, {"name": name, "about": about, "changes": changes}, f"arm {name}")
