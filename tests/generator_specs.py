"""The generators of a configuration, for tests that make their engines."""

from __future__ import annotations

from typing import Any

from scalerl.training.config import RunConfig
from scalerl.training.engines.build import Decoding, GeneratorSpec
from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.schedule import schedule_of
from scalerl.training.models.sizes import Attention, ModelSizes
from scalerl.training.placement.choices import policy_spec
from scalerl.training.placement.sizes import UNREAD, RunSizes


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
