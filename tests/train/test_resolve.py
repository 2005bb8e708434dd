"""A run is resolved once from its inputs: sizes are chosen, kept by a resume, and chosen again if it asks."""

from dataclasses import replace as with_fields

import pytest

from scalerl.training.config import LAB
from scalerl.training.config.base import replace
from scalerl.training.loop.resolve import place_processes, planned_inputs, resolve


@pytest.fixture(scope="module")
def inputs():
    return planned_inputs(place_processes(LAB).config)


def test_a_run_that_has_begun_keeps_its_sizes(inputs):
    chosen = resolve(inputs).config
    smaller = replace(chosen, rollouts=replace(chosen.rollouts, slots=32))
    kept = resolve(with_fields(inputs, config=smaller, begun=True))
    assert kept.config == smaller and kept.sources.startswith("saved: 32 slots")


@pytest.mark.parametrize("field", ["micro_batch_tokens", "gradient_checkpointing"])
def test_a_resume_that_asks_for_a_size_gets_it_chosen(inputs, field):
    """`auto` reached the learner."""
    chosen = resolve(inputs).config
    asking = replace(chosen, learner=replace(chosen.learner, **{field: "auto"}))
    assert resolve(with_fields(inputs, config=asking, begun=True)).config == chosen
