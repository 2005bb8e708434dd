"""Prompts of several tasks in fixed shares, with a curriculum per task.

Each draw goes to the task that is furthest behind its share. With two tasks, the number of draws of a task never
differs from its share by more than half a prompt. Any P consecutive draws therefore have the shares up to rounding, and
exactly if P times a share is an integer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalerl.config import RunConfig
from scalerl.config.data import shares
from scalerl.prompts.curriculum import Curriculum
from scalerl.types import Prompt, Visit


def make_curriculum(config: RunConfig, prompts: Sequence[Prompt]) -> Curriculum | Mixture:
    """Return the curriculum over a training pool: that of the only task, or a mixture with one per task."""
    retire_at = config.recipe.retire_pass_rate
    trained = {name: share for name, share in shares(config.data).items() if share > 0}
    if len(config.data) == 1:
        return Curriculum(prompts, config.seed, retire_at)
    pools = {name: [prompt for prompt in prompts if prompt.task == name] for name in trained}
    parts = {name: Curriculum(pool, config.seed, retire_at) for name, pool in pools.items()}
    return Mixture(parts, trained)


class Mixture:
    """Draws visits of several tasks. Once all prompts of a task are retired, the other tasks take over its share."""

    def __init__(self, parts: Mapping[str, Curriculum], shares: Mapping[str, float]) -> None:
        """Start before the first draw.

        Args:
            parts: Curriculum of each task.
            shares: Share of the draws of each task; they sum to 1.
        """
        assert parts.keys() == shares.keys(), (list(parts), list(shares))
        self._parts, self._shares = dict(parts), dict(shares)
        self._drawn = dict.fromkeys(parts, 0)

    @property
    def epoch(self) -> int:
        """Largest number of epochs begun by a task."""
        return max(part.epoch for part in self._parts.values())

    @property
    def retired(self) -> set[str]:
        """Ids of the retired prompts of all tasks."""
        return {identity for part in self._parts.values() for identity in part.retired}

    def draw(self, n: int) -> list[Visit]:
        """Return the next n visits; fewer only if all prompts are retired."""
        visits: list[Visit] = []
        while len(visits) < n and (live := [name for name, part in self._parts.items() if part.live]):
            total = sum(self._drawn.values())
            name = max(live, key=lambda name: self._shares[name] * (total + 1) - self._drawn[name])
            (visit,) = self._parts[name].draw(1)
            visits.append(replace(visit, index=total))
            self._drawn[name] += 1
        return visits

    def forget(self, visit: Visit) -> None:
        """Record that a visit has no result because its group was dropped."""
        self._parts[visit.prompt.task].forget(visit)

    def record(self, visit: Visit, pass_rate: float) -> None:
        """Record a visit's pass rate, in [0, 1]."""
        self._parts[visit.prompt.task].record(visit, pass_rate)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {"drawn": dict(self._drawn), "tasks": {name: part.state() for name, part in self._parts.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        self._drawn = dict(state["drawn"])
        for name, part in self._parts.items():
            part.load_state(state["tasks"][name])
