"""Channels that carry weights from the learner to the engines: one module per channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.rollouts.weights.base import WeightChannel

if TYPE_CHECKING:  # the import loads torch, which the pipeline does not need
    from scalerl.models.layout import WeightLayout


def _shared_memory(layout: WeightLayout, run: Path) -> WeightChannel:
    from scalerl.rollouts.weights.shared_memory import SharedMemoryChannel

    return SharedMemoryChannel(layout)


def _directory(layout: WeightLayout, run: Path) -> WeightChannel:
    from scalerl.rollouts.weights.directory import DirectoryChannel

    return DirectoryChannel(run / "weights")


CHANNELS: dict[str, Callable[[WeightLayout, Path], WeightChannel]] = {
    "shared-memory": _shared_memory,
    "directory": _directory,
}
"""Channels on one machine by `rollouts.weights`; each factory takes the layout of the weights and the run directory."""
