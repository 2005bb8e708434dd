"""Says which library multiplies FP32 matrices in a run's processes: what was asked for, or the faster one."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.config import RunConfig
from scalerl.config.base import ConfigError, replace
from scalerl.config.hardware import Hardware
from scalerl.models.policy import Policy

BEFORE = "onednn"
"""What runs use whose configuration was saved before there was a choice."""


def check_matmul(hardware: Hardware) -> Hardware:
    """Refuse a library that the device cannot use; on GPU `auto` is torch's own.

    Args:
        hardware: with its device resolved.

    Raises:
        ConfigError: oneDNN on a GPU, or in a build of torch without it.
    """
    cuda = hardware.device == "cuda"
    for field in ("generator_matmul", "trainer_matmul"):
        if getattr(hardware, field) == "onednn" and (cuda or not _onednn_works()):
            lack = "hardware.device = 'cuda'" if cuda else "a build of torch that lacks it"
            raise ConfigError(f"hardware.{field}: got 'onednn' with {lack}; allowed: auto, torch")
        if cuda:
            hardware = replace(hardware, **{field: "torch"})
    return hardware


def _onednn_works() -> bool:
    from scalerl.models.cpu.onednn import available

    return available()


def resolve_matmul(
    config: RunConfig, policy: Policy, choose: Callable[..., str] | None = None, *, resumed: bool
) -> RunConfig:
    """Replace `auto` by the faster library, for the shapes of this model and run; the policy then uses it.

    Args:
        config: with everything else resolved.
        policy: its model, in the trainer's process.
        choose: see models/cpu/matmul.py, whose function is the default.
        resumed: nothing is timed: the run keeps what it began with.
    """
    hardware = config.hardware
    if "auto" not in (hardware.generator_matmul, hardware.trainer_matmul):
        return config
    if resumed:
        chosen = {"generator": BEFORE, "trainer": BEFORE}
    else:
        from scalerl.models.cpu import matmul

        choose = choose or matmul.choose
        engines = config.placement.engines
        threads = max(1, hardware.generator_threads // engines)
        rows = -(-config.slots // engines)
        trained = config.micro_batch_tokens
        chosen = {
            "generator": choose(matmul.products_of(policy, rows, threads, backward=False)),
            "trainer": choose(matmul.products_of(policy, trained, hardware.trainer_threads, backward=True)),
        }
    fields = {f"{side}_matmul": library for side, library in chosen.items()}
    fields = {field: library for field, library in fields.items() if getattr(hardware, field) == "auto"}
    if "trainer_matmul" in fields:
        policy.use_matmul(fields["trainer_matmul"])
    return replace(config, hardware=replace(hardware, **fields))
