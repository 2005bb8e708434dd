"""The ways in which weights move from the learner to the engines, by name; each is one file with both of its ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.core.machine import host_memory
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.shared_memory import SharedMemoryChannel, channel_versions
from scalerl.training.engines.weights import WeightChannel

if TYPE_CHECKING:  # torch, which loads when the weights do
    from scalerl.training.config.model import Lora
    from scalerl.training.config.placement import Placement
    from scalerl.training.models.weights import WeightLayout


def _shared_memory(layout: WeightLayout, run: Path, placement: Placement, lora: Lora | None) -> WeightChannel:
    return SharedMemoryChannel(layout, channel_versions(layout.total, host_memory().total))


def _directory(layout: WeightLayout, run: Path, placement: Placement, lora: Lora | None) -> WeightChannel:
    return DirectoryChannel(run / "weights")


def _nccl(layout: WeightLayout, run: Path, placement: Placement, lora: Lora | None) -> WeightChannel:
    from scalerl.training.engines.vllm.nccl import NcclChannel

    return NcclChannel(layout, run / "servers", placement.trainer_address, placement.transfer_timeout_s)


def _adapters(layout: WeightLayout, run: Path, placement: Placement, lora: Lora | None) -> WeightChannel:
    from scalerl.training.engines.vllm.adapters import AdapterChannel

    assert lora is not None
    return AdapterChannel(run / "weights", layout, lora)


def evaluation_channel(name: str, layout: WeightLayout, run: Path, lora: Lora | None) -> WeightChannel:
    """Return the channel to the evaluation process (`evaluation.overlap`), which has one version at a time.

    Args:
        name: Name of the channel to the generators. In place of nccl, files carry the weights.
        layout: Layout of the weights that are sent.
        run: The run directory.
        lora: Adapters that are trained, if there are some.
    """
    if name == "shared-memory":
        return SharedMemoryChannel(layout, capacity=1)
    if name == "adapters":
        from scalerl.training.engines.vllm.adapters import AdapterChannel

        assert lora is not None
        return AdapterChannel(run / "weights" / "evaluated", layout, lora, capacity=1)
    return DirectoryChannel(run / "weights" / "evaluated", capacity=1)


CHANNELS: dict[str, Callable[[WeightLayout, Path, Placement, Lora | None], WeightChannel]] = {
    "shared-memory": _shared_memory,
    "directory": _directory,
    "nccl": _nccl,
    "adapters": _adapters,
}
"""Channels by `rollouts.weights`; each takes the layout of the weights, the run directory and the configuration."""
