"""The generators of a configuration, for tests that make their engines."""

from __future__ import annotations

from typing import Any

from scalerl.config import RunConfig
from scalerl.models.sizes import Attention, ModelSizes
from scalerl.placement.choices import policy_spec
from scalerl.placement.sizes import UNREAD, RunSizes
from scalerl.rollouts.build import Decoding, GeneratorSpec
from scalerl.rollouts.engine import Sampling
from scalerl.rollouts.interrupt import LengthRule
from scalerl.rollouts.schedule import schedule_of


def generator_spec(
    config: RunConfig, path: str, vocabulary: int, rule: LengthRule, stop: tuple[int, ...], **fields: Any
) -> GeneratorSpec:
    """Return the generators over a model in a directory."""
    sizes = RunSizes.of(config, UNREAD)
    return GeneratorSpec(
        policy=policy_spec(config, path),
        vocabulary=vocabulary,
        sizes=ModelSizes(10.0, (Attention(4, 0),)),
        device=config.hardware.device,
        threads=2,
        placement=config.placement,
        scoring=config.scoring,
        decoding=Decoding(
            slots=sizes.slots,
            evaluated=sizes.most_evaluated,
            seed=sizes.seed,
            longest_prompt=2,
            rule=rule,
            sampling=Sampling(config.recipe.temperature, config.recipe.top_p, stop),
            experts=config.recipe.routing_replay == "on",
        ),
        schedule=schedule_of(sizes),
        group_size=config.recipe.generations_per_prompt,
        load_state=None,
        save=None,
        **fields,
    )
