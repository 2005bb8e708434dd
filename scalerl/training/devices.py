"""How many devices a run holds, and how many of them generate: what device-hours are counted from."""

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
    """Those of the engines. Where trainer and engines share a device, that one counts here too."""

    @property
    def generating_share(self) -> float:
        """Share of the devices held that work while only the generators do."""
        return self.generating / self.held


def devices_of(config: RunConfig) -> Devices:
    """Return the devices that a run holds: a GPU for each trainer rank, and the GPUs of its engines; on CPU one.

    Servers given by address count with `placement.tensor_parallel` GPUs each.
    """
    placement = config.placement
    if config.hardware.device != "cuda":
        return Devices()
    if placement.one_gpu:  # the engines are processes on the GPU of the first rank
        return Devices(placement.trainer_ranks, 1)
    generating = placement.engines * placement.gpus_of_a_generator
    return Devices(placement.trainer_ranks + generating, generating)
