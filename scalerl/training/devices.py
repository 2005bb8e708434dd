"""Number of devices that a run holds, from which device-hours are computed."""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.config import RunConfig


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run.

    Example (4 trainer ranks, 3 engines of 2 GPUs each): Devices(held=10, generating=6)
    """

    held: int = 1
    """GPUs of trainer ranks and engines; 1 on CPU."""
    generating: int = 1
    """GPUs of the engines, including a device that they share with the trainer."""

    @property
    def generating_share(self) -> float:
        """Share of the held devices that work while only the generators run."""
        return self.generating / self.held


def devices_of(config: RunConfig) -> Devices:
    """Return the devices that a run holds: one GPU per trainer rank plus the GPUs of its engines, or one CPU.

    Servers given by address count with `placement.tensor_parallel` GPUs each.
    """
    placement = config.placement
    if config.hardware.device != "cuda":
        return Devices()
    if placement.one_gpu:  # the engines are processes on the GPU of the first rank
        return Devices(placement.trainer_ranks, 1)
    generating = placement.engines * placement.gpus_of_a_generator
    return Devices(placement.trainer_ranks + generating, generating)
