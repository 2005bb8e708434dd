"""Choice of the CPU code in a run's processes: the library for FP32 products, and compiled loops or torch."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.config import RunConfig
from scalerl.config.base import ConfigError, replace
from scalerl.config.hardware import Hardware
from scalerl.models.policy import Policy

BEFORE = "onednn"
"""Library of runs whose configuration was saved before this setting existed."""


def check_matmul(hardware: Hardware) -> Hardware:
    """Refuse code that the device or machine cannot use; on GPU, `auto` becomes "torch".

    Args:
        hardware: Hardware settings with the device resolved.

    Raises:
        ConfigError: The library is oneDNN on a GPU or with a build of torch without it, or compiled loops were
            requested for a GPU or without a compiler.
    """
    cuda = hardware.device == "cuda"
    for field in ("generator_matmul", "trainer_matmul"):
        if getattr(hardware, field) == "onednn" and (cuda or not _onednn_works()):
            lack = "hardware.device = 'cuda'" if cuda else "a build of torch without it"
            raise ConfigError(f"hardware.{field}: got 'onednn' with {lack}; allowed: auto, torch")
        if cuda:
            hardware = replace(hardware, **{field: "torch"})
    if hardware.kernels == "compiled" and (reason := "the device is a GPU" if cuda else _problem()):
        raise ConfigError(f"hardware.kernels: got 'compiled', but {reason}; allowed: auto, torch")
    return replace(hardware, kernels="torch") if cuda else hardware


def use_kernels(kernels: str) -> None:
    """Let this process compute with compiled loops or with torch; see `scalerl.models.cpu.compiled.use`."""
    from scalerl.models.cpu import compiled

    compiled.use(kernels)


def _problem() -> str | None:
    from scalerl.models.cpu import compiled

    return compiled.problem()


def _onednn_works() -> bool:
    from scalerl.models.cpu.onednn import available

    return available()


def resolve_matmul(
    config: RunConfig, policy: Policy, choose: Callable[..., str] | None = None, *, resumed: bool
) -> RunConfig:
    """Replace `auto` by the faster library for the shapes of this model and run; the policy then uses it.

    Args:
        config: Configuration with everything else resolved.
        policy: The model in the trainer's process.
        choose: Function that chooses the library; the default is `choose` in models/cpu/matmul.py.
        resumed: Whether the run is resumed. It then keeps its library, and nothing is timed.
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


def resolve_kernels(config: RunConfig, note: Callable[[str], None], *, resumed: bool) -> RunConfig:
    """Replace `auto` by the compiled loops if they can be built, and use the result in this process.

    Args:
        config: Configuration whose device is resolved.
        note: Function that gets a line for the user if a resumed run cannot keep its code.
        resumed: Whether the run is resumed. It then keeps its code; a run without a recorded choice used torch.
    """
    kernels = config.hardware.kernels
    if kernels == "auto":
        kernels = "torch" if resumed or _problem() else "compiled"
    elif kernels == "compiled" and (reason := _problem()):
        note(
            f"hardware.kernels: this run used compiled loops, but on this machine {reason}; it continues with torch's "
            "operations, whose results differ by rounding"
        )
        kernels = "torch"
    use_kernels(kernels)
    return replace(config, hardware=replace(config.hardware, kernels=kernels))
