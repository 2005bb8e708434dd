"""Trainer ranks as processes on this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from scalerl.core.remote import LocalRemote, RemoteGroup
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import LearnerSpec
from scalerl.training.learner.ranks import BuildLearner, LearnerDied, build_rank, serve_rank


class RankProcesses(RemoteGroup):
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
        variables = environments or [{}] * len(builds)
        super().__init__(
            LocalRemote(serve_rank(build, channels), name, LearnerDied, environment)
            for build, name, environment in zip(builds, names, variables, strict=True)
        )
        self.answers("start", timeout_s)

    @classmethod
    def of(
        cls,
        environments: Sequence[Mapping[str, str]],
        spec: LearnerSpec,
        channels: Sequence[WeightChannel],
    ) -> RankProcesses:
        """Start the ranks of a run; they meet in a temporary file.

        Args:
            environments: Additional environment variables of each rank.
            spec: Their learner; rank and rendezvous are filled in here.
            channels: Channels over which weights will be sent.
        """
        meeting = Path(tempfile.mkdtemp(prefix="scalerl-ranks-"))
        spec, limit_s = replace(spec, init_method=f"file://{meeting}/meet"), spec.placement.step_timeout_s
        builds = [partial(build_rank, replace(spec, rank=rank)) for rank in range(spec.ranks)]
        try:
            return cls(builds, channels, timeout_s=limit_s, environments=environments)
        finally:
            shutil.rmtree(meeting)
