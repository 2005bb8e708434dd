"""Ranks for the tests of learners: the learner can be changed without new processes, and gradients can be read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from scalerl.core.plugins import PluginError
from scalerl.training.config import RunConfig
from scalerl.training.learner.base import LearnerSpec
from scalerl.training.learner.ranks import join, load_learner
from scalerl.training.placement.choices import policy_spec


def learner_spec(config: RunConfig, path: str, **rank: Any) -> LearnerSpec:
    """Return the learner of a configuration over the model in a directory."""
    return LearnerSpec(
        policy_spec(config, path), config.recipe, config.learner, config.hardware, config.placement, **rank
    )


@dataclass(frozen=True)
class Bench:
    """Builds a `BenchRank`; sent to the process by pickling."""

    spec: LearnerSpec

    def __call__(self) -> BenchRank:
        return BenchRank(self.spec)


@dataclass(frozen=True)
class GlooBench(Bench):
    """Ranks that meet over gloo on GPUs too, so that several can share one."""

    def __call__(self) -> BenchRank:
        def over_gloo(_: str, **options: Any) -> None:
            del options["device_id"]
            group("gloo", **options)

        group = dist.init_process_group
        with patch.object(dist, "init_process_group", over_gloo):
            return BenchRank(self.spec)


class BenchRank:
    """A rank whose learner is chosen by `use`; other methods are those of the learner."""

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec, self.mesh = spec, join(spec)

    def use(self, config: RunConfig, model_path: str) -> None:
        spec = self.spec
        spec = learner_spec(config, model_path, rank=spec.rank, ranks=spec.ranks, init_method=spec.init_method)
        self.learner = load_learner(spec, self.mesh)

    def gradients(self, batch: Any) -> list[Any]:
        """Return the complete gradient of a batch's loss as the optimizer gets it, then clear it."""
        self.learner._add_gradients(batch)
        found = [master.grad.full_tensor().clone() for master in self.learner._masters]
        self.learner._discard_gradient()
        return found

    def micro_batches(self, batch: Any) -> list[int]:
        """Return how many rollouts each micro-batch of this rank has; 0 for an empty one."""
        return [0 if part is None else len(part[0]) for part in self.learner._plan(batch)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


@dataclass(frozen=True)
class Misbehaving:
    """Builds a rank that fails in a chosen way at a step; needs no process group."""

    how: str
    rank: int

    def __call__(self) -> Misbehaving:
        if self.how == "refuse" and self.rank == 1:
            from scalerl.core.errors import ConfigError

            raise ConfigError("model.path: got nothing")
        return self

    def step(self, where: Path) -> Any:
        (where / str(self.rank)).touch()
        if self.how == "plug-in":
            raise PluginError("mine:loss raised KeyError: 'gone' (/home/me/mine.py:3)")
        if self.rank == 0 and self.how != "raise":
            time.sleep(60)  # in a collective, waiting for the other
        if self.how == "hang":
            time.sleep(60)
        if self.how == "exit":
            os._exit(7)
        if self.how == "raise":
            raise ZeroDivisionError("on purpose")


def random_batch(rows: int = 7, width: int = 12, seed: int = 0) -> Any:
    """Return rollouts of lengths 12 to 8, with uneven weights that sum to one and advantages of both signs."""
    import torch

    from scalerl.training.learner.batch import RolloutTensors, TrainBatch

    draw = torch.Generator().manual_seed(seed)
    lengths = width - torch.arange(rows) % 5
    trained = torch.rand(rows, width, generator=draw) < 0.6
    trained[:, 1] = True  # every row has a trained token
    trained &= (torch.arange(width) >= 1) & (torch.arange(width) < lengths[:, None])
    weights = torch.rand(rows, width, generator=draw) * trained
    rollouts = RolloutTensors.without_rewards(torch.randint(2, 48, (rows, width), generator=draw), lengths)
    return TrainBatch(rollouts, torch.randn(rows, generator=draw), trained, weights / weights.sum())
