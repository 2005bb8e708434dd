"""Trainer ranks as processes on this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from scalerl.config.run import RunConfig
from scalerl.core.remote import Group, LocalRemote
from scalerl.learner.ranks import BuildLearner, LearnerDied, RankSpec, build_rank, serve_rank
from scalerl.rollouts.weights import WeightChannel


class RankProcesses(Group):
    """The loop's side, with one process per rank."""

    def __init__(
        self,
        builds: Sequence[BuildLearner],
        channels: Sequence[WeightChannel] = (),
        *,
        timeout_s: float = 3600.0,
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Start the processes and wait until all are ready.

        Args:
            builds: One function per rank.
            channels: Weight channels. The ranks get their ends now, because some can only be passed to a new process.
            timeout_s: Time limit for building the learners, seconds.
            environments: Additional environment variables of each rank.

        Raises:
            ConfigError: From building the learners.
            LearnerDied: A rank ended, failed or took too long.
        """
        names = [f"trainer rank {rank} of {len(builds)} (process {{}})" for rank in range(len(builds))]
        own = environments or [{}] * len(builds)
        super().__init__(
            LocalRemote(serve_rank(build, channels), name, LearnerDied, environment)
            for build, name, environment in zip(builds, names, own, strict=True)
        )
        self.answers("start", timeout_s)

    @classmethod
    def of(
        cls,
        environments: Sequence[Mapping[str, str]],
        config: RunConfig,
        model_path: str,
        channels: Sequence[WeightChannel],
    ) -> RankProcesses:
        """Start the ranks of a run; they meet in a temporary file.

        Args:
            environments: Additional environment variables of each rank.
            config: The resolved configuration.
            model_path: Directory or name on the hub.
            channels: Channels over which weights will be sent.
        """
        ranks, meeting = config.placement.trainer_ranks, Path(tempfile.mkdtemp(prefix="scalerl-ranks-"))
        specs = [RankSpec(config, model_path, rank, ranks, f"file://{meeting}/meet") for rank in range(ranks)]
        builds = [partial(build_rank, spec) for spec in specs]
        limit_s = config.placement.step_timeout_s
        try:
            return cls(builds, channels, timeout_s=limit_s, environments=environments)
        finally:
            shutil.rmtree(meeting)
