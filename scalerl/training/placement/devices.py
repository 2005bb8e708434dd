"""The table of devices: which GPUs and cores each process of a run uses, on one machine and on Ray.

`--dry-run` prints the table. Local processes get their rows as CUDA_VISIBLE_DEVICES. On Ray, the rows say how many
devices each actor requests; Ray chooses the nodes and sets CUDA_VISIBLE_DEVICES. Every process uses the first GPU that
it sees, except vLLM servers, which use all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import Auto
from scalerl.training.config.placement import Placement
from scalerl.training.placement.sizes import RunSizes

GB = 1e9

USABLE = 0.9
"""Share of a GPU's memory that plans use. The rest is for the allocator and the CUDA context. vLLM takes 0.92 by
default (0.32 and 0.33), so that it has a little more room than planned."""

NODE = 8
"""GPUs of a node, if the cluster is not known."""

SHOWN_HOSTS = 16
"""Hosts that are printed."""

LEAST_GPU_SHARE = 0.05
"""Smallest share of a GPU's memory that a vLLM server can start with."""


SHARED_BYTES = 1 << 30
"""Free bytes of /dev/shm that several GPU processes need: the size that NCCL's guide recommends for containers."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine.

    Example: Host("10.0.0.5", gpus=("0", "1"), gpu_gb=80.0)
    """

    name: str
    gpus: tuple[str, ...] = ()
    """Ids, as in CUDA_VISIBLE_DEVICES."""
    gpu_gb: float = 0.0
    """Memory of the first GPU, 10^9 bytes; 0: `placement.gpu_gb`."""


@dataclass(frozen=True, slots=True)
class Place:
    """The devices of one process.

    Example: Place("10.0.0.5", gpus=("4", "5"), cpus=1.0)
    """

    host: str = ""
    """Name of the host, or address of a vLLM server that the run does not start."""
    gpus: tuple[str, ...] = ()
    cpus: float = 0.0
    """Cores that an actor requests from Ray; 0: the process is not an actor."""
    share: float = 0.0
    """Share of its GPU's memory that a vLLM server may use, if it shares the GPU; 0: vLLM's default."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the process; none without GPUs."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}

    @property
    def resources(self) -> dict[str, float]:
        """Arguments of an actor's `options`."""
        return {"num_cpus": self.cpus, "num_gpus": len(self.gpus)}


Places = Mapping[tuple[str, int], Place]
"""(kind of process, number from 0) -> its devices; the kinds are trainer, generator, evaluator and scorer."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run, from which device-hours are computed.

    Example (4 trainer ranks, 3 engines of 2 GPUs each): Devices(held=10, generating=6)
    """

    held: int = 1
    """GPUs of trainer ranks and engines; 1 on CPU. That of an evaluation process is counted apart."""
    generating: int = 1
    """GPUs of the engines, including those that they share with the trainer."""
    evaluating: int = 1
    """GPUs of the evaluation process, including one that it shares; 1 on CPU."""


def devices(run: RunSizes, hosts: Sequence[Host] | None = None, trainer_bytes: Callable[[], float] = float) -> Places:
    """Assign GPUs and cores to all processes of a run.

    Trainer ranks come first, then engines, each on the first host with enough free GPUs. Local torch engines share the
    GPUs of the trainer ranks unless `gpus_per_generator` is set, and so do all engines of a run with one GPU. An
    evaluation process (`evaluation.overlap`) is placed like one more engine.

    Args:
        run: The run, whose model need not be read; without GPUs unless `hardware.device` is cuda.
        hosts: Machines of the run, this one or those of a cluster; None: as many as needed, with 8 GPUs per node.
        trainer_bytes: Function that estimates the memory of a trainer GPU, called if a vLLM server shares it.

    Raises:
        ConfigError: There are too few GPUs.
    """
    place, hardware, overlap = run.placement, run.hardware, run.evaluation.overlap
    cuda, ranks, own = hardware.device == "cuda", place.trainer_ranks, place.gpus_of_a_generator
    hosts = hosts if hosts is not None else _assumed(run)
    total, free, first = sum(len(host.gpus) for host in hosts), [host.gpus for host in hosts], Counter[int]()

    def take(count: int) -> tuple[str, tuple[str, ...]]:
        for number in range(first[count], len(free)):  # a host that was too full once stays so
            if len(free[number]) >= count:
                first[count], taken = number, free[number][:count]
                free[number] = free[number][count:]
                return hosts[number].name, taken
        where = "the cluster has" if place.backend == "ray" else "this machine has, or CUDA_VISIBLE_DEVICES names,"
        raise _too_few(run, f"{where} {total}, and no host has {count} left for the next process")

    trainers, wanted = [take(int(cuda)) for _ in range(ranks)], place.engines + overlap
    shared = shares_gpus(place, total)
    if place.servers:
        engines = [(address, tuple(map(str, range(own * cuda)))) for address in place.servers]
    elif shared:
        engines = [trainers[number % ranks] for number in range(wanted)]
    else:
        engines = [take(own * cuda) for _ in range(wanted)]
    engines, evaluators = engines[: place.engines], engines[place.engines :]
    if cuda and place.gpus and place.gpus < (ranks if shared else gpus_needed(run)):
        raise _too_few(run, f"allowed: placement.gpus = {place.gpus}")

    def threads(count: Auto | int) -> int:
        return 1 if count == "auto" else count  # a plan for a cluster

    share = _share(run, hosts, trainer_bytes) if shared and cuda and place.engine == "vllm" else 0.0
    rank_cpus = 0.0 if run.in_loop else 1.0 if cuda else threads(hardware.trainer_threads) / ranks
    engine_cpus = 0.0 if place.servers else 1.0 if cuda else threads(hardware.generator_threads) / place.engines
    scorer = Place(cpus=float(run.scorer_cores))
    return {
        **{("trainer", n): Place(*at, cpus=rank_cpus) for n, at in enumerate(trainers)},
        **{("generator", n): Place(*at, cpus=engine_cpus, share=share) for n, at in enumerate(engines)},
        **{("evaluator", n): Place(*at, share=share) for n, at in enumerate(evaluators)},
        **{("scorer", n): scorer for n in range(place.scorers)},
    }


def _too_few(run: RunSizes, reason: str) -> ConfigError:
    place = run.placement
    return ConfigError(
        f"placement: got {place.trainer_ranks} trainer ranks and {place.engines} generators of "
        f"{place.gpus_of_a_generator} GPUs{', one more for evaluation.overlap' * run.evaluation.overlap}, "
        f"{gpus_needed(run)} GPUs in total; {reason}. Lower trainer_ranks, "
        "generators or tensor_parallel, use more GPUs, or set hardware.device = 'cpu'"
    )


def gpus_needed(run: RunSizes) -> int:
    """Return the number of GPUs if every process of the run has its own."""
    place = run.placement
    engines = place.engines + run.evaluation.overlap
    return place.trainer_ranks + (0 if place.servers else engines * place.gpus_of_a_generator)


def shares_gpus(place: Placement, gpus: int) -> bool:
    """Return whether engines use the GPUs of trainer ranks.

    Args:
        place: Placement; the run uses at most `placement.gpus` GPUs.
        gpus: GPUs that are visible on this machine.
    """
    if place.backend != "local" or place.servers:
        return False
    return min(gpus, place.gpus or gpus) == 1 or (place.engine != "vllm" and place.gpus_per_generator == "auto")


def _assumed(run: RunSizes) -> list[Host]:
    place = run.placement
    if place.backend == "local":
        return [Host("this machine", tuple(map(str, range(1 if place.gpus == 1 else gpus_needed(run)))))]
    gpus = tuple(map(str, range(max(NODE, place.gpus_of_a_generator))))
    return [Host(f"node {n + 1}", gpus) for n in range(-(-place.trainer_ranks // len(gpus)) + place.engines)]


def _share(run: RunSizes, hosts: Sequence[Host], trainer_bytes: Callable[[], float]) -> float:
    """Return each server's share of a GPU: what the trainer leaves of the usable memory, divided by the servers."""
    place, gpu_gb = run.placement, hosts[0].gpu_gb or run.placement.gpu_gb
    servers = -(-(place.engines + run.evaluation.overlap) // place.trainer_ranks)
    share = math.floor(100 * (USABLE - trainer_bytes() / (gpu_gb * GB)) / servers) / 100
    if place.tensor_parallel > 1 or share < LEAST_GPU_SHARE:
        raise ConfigError(
            f"placement: the trainer ({trainer_bytes() / GB:.1f} GB) and {servers} vLLM servers of "
            f"{place.tensor_parallel} GPUs share one GPU of {gpu_gb:g} GB, which leaves {max(0.0, share):.0%} for each "
            f"server; allowed: at least {LEAST_GPU_SHARE:.0%} and tensor_parallel = 1. Use more GPUs, a smaller model, "
            "or learner.gradient_checkpointing = true"
        )
    return share


def this_machine() -> Host:
    """Return this machine with the GPUs that this process sees."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = named.split(",")[:count] if named else map(str, range(count))
    memory = torch.cuda.get_device_properties(0).total_memory / GB if count and torch.cuda.is_available() else 0.0
    return Host("this machine", tuple(gpus), memory)


def gpu_problem() -> str:
    """Return why torch can use no GPU in this process, and what to install; empty if it can."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # torch without CUDA; no driver, an old one, or no GPU
        reason = str(error).strip().split("\n")[0].rstrip(". ")
        advice = driver_advice(torch.version.cuda, driver_version())
        return f"{reason}; {advice}" if advice else reason
    return ""


DRIVERS = {11: "450", 12: "525", 13: "580"}
"""Oldest NVIDIA driver by the major version of CUDA that torch was built with (CUDA's release notes, table 2: minor
versions are compatible)."""

DRIVER_FILE = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """Return the version of the NVIDIA driver that is loaded, such as 580.65.06; empty if none is."""
    with contextlib.suppress(OSError):
        if found := re.search(r"\b\d{3,}\.[\d.]+", DRIVER_FILE.read_text()):
            return found[0]
    return ""


def driver_advice(cuda: str | None, driver: str) -> str:
    """Return which driver torch needs and what to install; empty if the driver is new enough or CUDA unknown.

    Args:
        cuda: Version of CUDA that torch was built with, such as 13.0; None: built without CUDA.
        driver: Version of the driver that is loaded; empty: none.
    """
    if cuda is None:
        text = f"NVIDIA driver {driver} is loaded, but this torch is built without CUDA; install a build with CUDA"
        return f"{text} (pytorch.org/get-started)" if driver else ""
    needed = DRIVERS.get(int(cuda.partition(".")[0]), "")
    if not needed or (driver and int(driver.partition(".")[0]) >= int(needed)):
        return ""
    found = f"NVIDIA driver {driver} is loaded" if driver else "no NVIDIA driver is loaded (/proc/driver/nvidia)"
    return (
        f"{found}, and torch's CUDA {cuda} needs {needed} or newer; install a newer driver on this host (in a "
        "container: on its host), or a build of torch for an older CUDA (pytorch.org/get-started)"
    )


def check_shared_memory(table: Places, free_of: Callable[[Collection[str]], Mapping[str, int]] | None = None) -> None:
    """Check that NCCL and vLLM can share memory between the GPU processes of each host.

    Args:
        table: Devices of the run.
        free_of: Function that returns the free bytes of /dev/shm of hosts, called only if a host has several GPU
            processes; None: all of them are on this machine.

    Raises:
        ConfigError: /dev/shm is too small, as in a container with Docker's default of 64 MB.
    """
    owners: dict[str, set[tuple[str, ...]]] = {}
    for at in table.values():
        if at.gpus:
            owners.setdefault(at.host, set()).add(at.gpus)
    processes = {host: len(found) for host, found in owners.items() if len(found) > 1}
    if not processes:
        return
    free = {host: shared_free() for host in processes} if free_of is None else free_of(list(processes))
    for host, count in processes.items():
        if free.get(host, SHARED_BYTES) < SHARED_BYTES:
            where = "/dev/shm" if free_of is None else f"{host}:/dev/shm"
            raise ConfigError(
                f"{where}: {free[host] / 1e6:,.0f} MB are free; NCCL and vLLM need {SHARED_BYTES / 1e6:,.0f} MB "
                f"between {count} GPU processes. Start the container with --shm-size=8g or --ipc=host"
            )


def shared_free() -> int:
    """Return the free bytes of this machine's /dev/shm."""
    return shutil.disk_usage("/dev/shm").free


def served_places(place: Placement, device: str) -> Places:
    """Return the devices of vLLM servers that have this machine to themselves."""
    gpus, own = this_machine().gpus if device == "cuda" else (), place.gpus_of_a_generator
    return {("generator", n): Place(gpus=gpus[n * own : (n + 1) * own]) for n in range(place.engines)}


def devices_held(table: Places) -> Devices:
    """Return the number of devices in a table; servers given by address count too."""
    sets = (("trainer", "generator"), ("generator",), ("evaluator",))
    return Devices(*(max(1, len(gpus_of(table, *kinds))) for kinds in sets))


def gpus_of(table: Places, *kinds: str) -> set[tuple[str, str]]:
    """Return (host, GPU) of every GPU that processes of these kinds use."""
    return {(at.host, gpu) for (kind, _), at in table.items() if kind in kinds for gpu in at.gpus}


def needs(table: Places) -> dict[str, float]:
    """Return the cores (CPU) and GPUs of all actors."""
    actors = [at for at in table.values() if at.cpus]
    return {"CPU": sum(at.cpus for at in actors), "GPU": float(sum(len(at.gpus) for at in actors))}


def device_lines(table: Places) -> list[str]:
    """Return one line per host with its processes and their GPUs, for the first hosts."""
    hosts: dict[str, list[str]] = {}
    for (kind, number), at in table.items():
        if at.gpus:
            share = f" ({at.share:.0%} of the memory)" if at.share else ""
            hosts.setdefault(at.host, []).append(f"{kind} {number + 1} on GPU {'+'.join(at.gpus)}{share}")
    lines = [f"{host}: {', '.join(processes)}" for host, processes in hosts.items()]
    rest = len(lines) - SHOWN_HOSTS
    return [*lines[:SHOWN_HOSTS], *([f"and {rest} more of the same form"] if rest > 0 else [])]
