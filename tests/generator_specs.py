"""The generators of a configuration, for tests that make their engines."""

from __future__ import annotations

from typing import Any

from scalerl.config import RunConfig
from scalerl.models.sizes import Attention, ModelSizes
from scalerl.placement.choices import generation_of, policy_spec
from scalerl.rollouts.build import GeneratorSpec


def generator_spec(config: RunConfig, path: str, vocabulary: int, **fields: Any) -> GeneratorSpec:
    """Return the generators over a model in a directory."""
    return GeneratorSpec(
        policy=policy_spec(config, path),
        vocabulary=vocabulary,
        sizes=ModelSizes(10.0, (Attention(4, 0),)),
        recipe=config.recipe,
        placement=config.placement,
        hardware=config.hardware,
        scoring=config.scoring,
        generation=generation_of(config),
        longest_prompt=2,
        load_state=None,
        save=None,
        **fields,
    )
