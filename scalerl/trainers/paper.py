"""The components of ScaleRL, and what its paper (arXiv 2510.13786) measured for each replacement.

Numbers are those of its text and tables, or read off its figures to the second digit. What it did not measure has no
entry. Ceilings are A of its curves, whose error between runs is 0.02; B is the steepness.
"""

from __future__ import annotations

from typing import NamedTuple


class Component(NamedTuple):
    """A component or a size of the recipe.

    Example: Component("loss", "loss", "CISPO, ratio capped at 5")
    """

    key: str
    title: str
    ours: str
    """ScaleRL's choice."""


COMPONENTS = (
    Component("loss", "loss", "CISPO, ratio capped at 5"),
    Component("aggregation", "aggregation", "equal weight per prompt"),
    Component("advantage", "advantage", "divided by the batch's deviation"),
    Component("zero_variance", "zero variance", "dropped, not replaced"),
    Component("resampling", "solved prompts", "not drawn again from 0.9"),
    Component("length", "length", "interrupted after 10k-12k tokens"),
    Component("truncated", "truncated", "left out of the loss"),
    Component("off_policy", "off-policy", "PipelineRL, at most 8 updates old"),
    Component("fp32_head", "FP32 head", "generator and trainer"),
    Component("kl", "KL penalty", "none"),
    Component("generations", "generations", "16 per prompt"),
    Component("batch", "batch", "768 completions (48 x 16)"),
    Component("tokens", "longest answer", "14,336 tokens"),
    Component("optimizer", "optimizer", "lr 5e-7, eps 1e-15, 100 steps of warm-up"),
)
"""In the order of the table."""


class Fact(NamedTuple):
    """What the paper measured for a replacement of a component."""

    measured: str
    moved: str
    """What it moved: ceiling, speed, stability, neither, or several of these."""


NOT_MEASURED = Fact("not measured", "-")

IN_THE_WHOLE_RECIPE = "exchanged in the whole recipe, the ceilings stay within 0.59 to 0.61"

FACTS: dict[tuple[str, str], Fact] = {
    ("loss", "clip"): Fact(
        "ceiling 0.52 with DAPO's clip, 0.595 with CISPO; exchanged in the whole recipe, equal ceilings (0.61), but "
        "B 1.77 instead of 2.01. The upper side of the clip moves the ceiling, and 0.26 is its best value",
        "ceiling, speed",
    ),
    ("loss", "gspo"): Fact(
        "GSPO diverged in several runs; a restart from a checkpoint saved those of the 8B model, not the larger one's",
        "stability",
    ),
    ("aggregation", "sample"): Fact(
        f"prompt average has the highest ceiling; {IN_THE_WHOLE_RECIPE} with sample average", "ceiling"
    ),
    ("aggregation", "token"): Fact("prompt average has the highest ceiling of prompt, sample and token", "ceiling"),
    ("advantage", "group"): Fact("batch, group and no normalization perform alike", "neither"),
    ("advantage", "none"): Fact("batch, group and no normalization perform alike", "neither"),
    ("zero_variance", "keep"): Fact(f"dropping them raises the ceiling; {IN_THE_WHOLE_RECIPE}", "ceiling"),
    ("resampling", "off"): Fact(f"the rule raises the ceiling; {IN_THE_WHOLE_RECIPE}", "ceiling"),
    ("length", "penalty"): Fact("a penalty is no better than the interruption", "neither"),
    ("length", "none"): Fact(
        "no limit on thinking was not measured; training usually became unstable where 10 to 15% of the completions "
        "were truncated",
        "stability",
    ),
    ("off_policy", "ppo"): Fact(
        "PPO-off-policy-8 and PipelineRL have about the same ceiling (0.52), PipelineRL a much higher B", "speed"
    ),
    ("off_policy", "lag-4"): Fact("at most 4 and at most 8 updates perform alike", "neither"),
    ("fp32_head", "off"): Fact(
        "ceiling 0.52 without, 0.61 with it; exchanged in the whole recipe, equal ceilings (0.61)", "ceiling"
    ),
    ("fp32_head", "one"): Fact(
        "on one side it helps only in part: with it on both, the ratios of trainer and generator are nearer 1",
        "the ratios",
    ),
    ("generations", "8"): Fact("ceiling 0.585 with 8, 0.61 with 16, at an equal number of completions", "ceiling"),
    ("generations", "24"): Fact("ceiling 0.59 with 24, 0.61 with 16, at an equal number of completions", "neither"),
    ("generations", "32"): Fact("ceiling 0.595 with 32, 0.61 with 16, at an equal number of completions", "neither"),
    ("batch", "512"): Fact("ceiling 0.605 with 512, 0.61 with 768", "neither"),
    ("batch", "2048"): Fact(
        "ceiling 0.645 with 2,048, 0.61 with 768; half of the gain needs 10.9 instead of 2.5 thousand GPU-hours",
        "ceiling, speed",
    ),
    ("tokens", "32k"): Fact(
        "ceiling 0.645 with 32k tokens, 0.61 with 14k; half of the gain needs 11.3 instead of 2.5 thousand GPU-hours",
        "ceiling, speed",
    ),
}
"""By component and kind of the replacement."""

SAME = Fact("-", "-")


def fact(component: str, kind: str) -> Fact:
    """Return what the paper measured for a replacement of a component."""
    return FACTS.get((component, kind), NOT_MEASURED)
