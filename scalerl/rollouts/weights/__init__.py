"""How weights travel from the learner to the engines: one file a channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.rollouts.weights.base import WeightChannel

if TYPE_CHECKING:  # it loads torch, which the pipeline does not need
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
"""By `rollouts.weights`, on one machine; each is given the layout of the model's weights and the run directory."""
