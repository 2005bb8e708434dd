"""Runs engines over a fixed list of prompts until all are done, for evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.core.rng import stream_key
from scalerl.rollouts.engine import POLL_S, Engine, Request
from scalerl.types import Group, Rollout, Visit


def generate(
    engines: Sequence[Engine], visits: Sequence[Visit], samples: int | Sequence[int], seed: int, purpose: str
) -> list[Group]:
    """Run idle engines over a fixed list of prompts until all are done, with their current weights.

    Args:
        engines: Idle engines; prompts are assigned to them in turn.
        visits: Prompts.
        samples: Rollouts per prompt: one number, or one per visit.
        seed: Seed of the random streams.
        purpose: Name that separates the random streams from those of training.

    Returns:
        One group per visit, in order.
    """
    counts = [samples] * len(visits) if isinstance(samples, int) else list(samples)
    for number, engine in enumerate(engines):
        engine.submit(
            [
                Request((i, s), visit.prompt.tokens, stream_key(seed, purpose, visit.prompt.id, visit.number, s))
                for i, visit in enumerate(visits)
                if i % len(engines) == number
                for s in range(counts[i])
            ]
        )
    rollouts: dict[tuple[int, int], Rollout] = {}
    while any(engine.occupancy().busy for engine in engines):
        for engine in engines:
            engine.advance()
        for engine in engines:
            rollouts |= {done.id: done.rollout for done in engine.poll(POLL_S)}
    groups = [tuple(rollouts[i, s] for s in range(counts[i])) for i in range(len(visits))]
    return [Group(visit, g, engines[0].version) for visit, g in zip(visits, groups, strict=True)]
