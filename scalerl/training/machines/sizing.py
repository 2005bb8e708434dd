"""Sizes that follow the model and the machine: slots, micro-batch, helper threads; and lines that say what a run needs.

`sized` fills in the sizes that a configuration leaves open, and refuses what cannot fit before a model is loaded. The
result is saved in config.toml, so that a resume uses it. The memory of a run on CPU is counted at its worst moment: all
sequences at the length limit and a micro-batch of the longest rollout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.core.machine import Memory, gpu_memory, host_memory, resident_bytes
from scalerl.training.config.base import chosen
from scalerl.training.config.base import replace as replace_part
from scalerl.training.config.model import Lora
from scalerl.training.config.placement import Hardware, Placement
from scalerl.training.config.recipe import Custom
from scalerl.training.config.run import LearnerSettings
from scalerl.training.engines.shared_memory import channel_versions
from scalerl.training.machines.layout import trainer_of
from scalerl.training.machines.memory import (
    PROCESS,
    WORKER,
    HostMemory,
    cache_bytes_per_token,
    checkpoint_bytes,
    evaluation_cache,
    gb,
    generator_memory,
    pass_memory,
)
from scalerl.training.placement.devices import GB, USABLE, devices, shares_gpus
from scalerl.training.placement.sizes import RunSizes

SHARE = 0.5
"""Share of a host's memory that sizes chosen here may take: other programs run on it, too. If a run cannot do with it,
it gets up to USABLE of what is free."""

ENOUGH = 32
"""Slots up to which a smaller micro-batch is the better use of memory. A decode step of fewer sequences costs nearly as
much."""

LEAST_MICRO_BATCH = 256
"""Smallest micro-batch that is chosen here, tokens."""


PLANNED = "placement.gpu_gb"
"""What sets the memory of GPUs that are not here."""


class Machine(NamedTuple):
    """Memory for the processes of a run.

    Example: Machine(host=Memory(24e9, 21e9, "this machine"), gpu=None)
    """

    host: Memory
    gpu: Memory | None = None
    """Memory of each GPU; None on CPU."""

    @property
    def elsewhere(self) -> bool:
        """Whether the GPUs are those of another machine, of whose host nothing is known."""
        return self.gpu is not None and self.gpu.limit == PLANNED


def memory_here(hardware: Hardware, placement: Placement) -> Machine:
    """Return the memory here, or that of the GPUs that a placement names; this process counts as free."""
    host = host_memory()
    host = host._replace(free=min(host.total, host.free + resident_bytes()))
    if hardware.device != "cuda":
        return Machine(host)
    planned = Memory(placement.gpu_gb * GB, placement.gpu_gb * GB, PLANNED)
    return Machine(host, gpu_memory() if placement.backend == "local" and _gpu_here() else planned)


def _gpu_here() -> bool:
    import torch

    return torch.cuda.is_available()


def sized(run: RunSizes, machine: Machine) -> RunSizes:
    """Return the sizes of a run with the open ones chosen so that it fits.

    Args:
        run: Sizes as the schedule wants them.
        machine: Memory of the host, and of each GPU.

    Raises:
        ConfigError: The run does not fit. The message has the numbers and the settings that would help.
    """
    if run.placement.backend != "local" or run.placement.engine == "vllm":
        return run
    return (_on_host if run.on_cpu else _on_gpus)(run, machine)


# ------------------------------------------------------------------------------------------------------------- on CPU


def host_needs(run: RunSizes, host: Memory) -> HostMemory:
    """Return the memory of all processes of a run on this host, at the worst moment of each."""
    place, engines, on_cpu = run.placement, run.placement.engines, run.on_cpu
    weights = run.width * run.model.sizes.params
    trainer = trainer_of(run).total * place.trainer_ranks if on_cpu else 0.0
    if on_cpu and not run.in_loop:
        trainer += weights  # the process of the loop loads the model, too
    if not on_cpu and run.in_loop:
        trainer += checkpoint_bytes(run)  # the copy that is written while training goes on
    beside = int(run.evaluation.overlap)  # the process of the evaluations
    versions = channel_versions(weights, host.total) if run.channel == "shared-memory" else 0
    several = place.trainer_ranks * (not run.in_loop) + engines * (engines > 1) + beside
    working = weights + pass_memory(run.model.sizes, run.row_tokens, run.width)
    return HostMemory(
        trainer=trainer,
        generators=(engines + beside) * working if on_cpu else 0.0,
        cache=run.slots * _slot_bytes(run) + engines * evaluation_cache(run),
        channel=(versions + beside) * weights,
        processes=(2 + several) * PROCESS + (1 + beside) * run.workers * WORKER,
    )


def _least(run: RunSizes, host: Memory) -> float:
    """Return the memory of a run with one sequence for each engine."""
    return host_needs(replace(run, slots=run.placement.engines), host).total


def _on_host(run: RunSizes, machine: Machine) -> RunSizes:
    """Return the sizes with which a run on CPU takes SHARE of the memory, or else as little as possible.

    Raises:
        ConfigError: See `sized`.
    """
    host, engines = machine.host, run.placement.engines
    given = None if "slots" in run.open else run.slots
    most = host.free if given else USABLE * host.free
    target = min(SHARE * host.total, most)

    def room(candidate: RunSizes, limit: float) -> int:
        """Return the slots of a candidate within a limit."""
        spare = limit - _least(candidate, host)
        return engines + math.floor(spare / _slot_bytes(run)) if limit < math.inf else 1 << 20

    candidates, group = list(_candidates(run)), run.recipe.generations_per_prompt
    enough = max(ENOUGH, group)
    tried = [(one, target, least, run.slots) for least in (enough, group) for one in candidates]
    # beyond the target: what the slots of a user take, or no more than enough
    tried += [(one, most, engines, min(run.slots, enough)) for one in (candidates if given else candidates[-1:])]
    for candidate, limit, least, cap in tried:
        slots = room(candidate, limit)
        if slots >= (given or min(run.slots, least)):
            return replace(candidate, slots=given or (cap if slots >= cap else _rounded(slots)))
    raise ConfigError(_too_large(candidates[-1], machine, most, slots))


def _too_large(run: RunSizes, machine: Machine, most: float, slots: int) -> str:
    """Return why a run does not fit into the memory of the host, and which settings would help."""
    host, given = machine.host, "slots" not in run.open
    if not given:
        run = replace(run, slots=run.placement.engines)
    needs = host_needs(run, host)
    text = (
        f"memory: the run needs up to {gb(needs.total)} GB ({parts(needs, run)}), and {free_of(host)}"
        f"{'' if given else f', of which {USABLE:.0%} may be used'}"
    )
    if slots >= run.placement.engines:
        return f"{text}. Set rollouts.slots = {slots} or less, or auto to choose it here"
    helping = [f"{words} ({gb(less)} GB)" for words, one in _remedies(run) if (less := _least(one, host)) <= most]
    row = f"{run.row_tokens:,} tokens of a prompt and its completion"
    own = "free memory, take a smaller model, or lower the " + row + " (recipe.length, data.max_prompt_tokens)"
    return f"{text}. To fit, {' or '.join([*helping, own])}"


def _remedies(run: RunSizes) -> Iterator[tuple[str, RunSizes]]:
    """Yield settings that need less memory, in words and as sizes."""
    if not run.recomputed:
        yield "set learner.gradient_checkpointing = true", replace(run, recomputed=True)
    if run.lora is None and run.placement.trainer_ranks == 1 and run.adaptable:
        yield "train adapters with model.lora.rank = 16", replace(run, lora=Lora(rank=16))
    if run.hardware.dtype == "float32":
        half = replace_part(run.hardware, dtype="bfloat16")
        yield "set hardware.dtype = 'bfloat16'", replace(run, hardware=half)


def _candidates(run: RunSizes) -> Iterator[RunSizes]:
    """Yield sizes that need ever less memory: no helpers, small micro-batches, recomputed activations."""
    yield run
    if run.hardware.trainer_helpers == "auto" and run.on_cpu:
        yield (run := replace(run, hardware=replace_part(run.hardware, trainer_helpers=0)))
    tokens = run.micro_batch_tokens
    while "micro_batch_tokens" in run.open and tokens > max(run.row_tokens, LEAST_MICRO_BATCH):
        tokens = max(tokens // 2, LEAST_MICRO_BATCH)
        yield (run := replace(run, micro_batch_tokens=tokens))
    if "recomputed" in run.open:
        yield replace(run, recomputed=True)


# -------------------------------------------------------------------------------------------------------------- on GPUs


def _on_gpus(run: RunSizes, machine: Machine) -> RunSizes:
    """Return the slots that fit next to what else is on a GPU, with the largest micro-batch that leaves enough."""
    gpu, place = machine.gpu, run.placement
    assert gpu is not None
    if "slots" not in run.open:
        return run
    shared = shares_gpus(place, len({at.gpus for at in devices(run).values()}))
    on_a_gpu = -(-(place.engines + run.evaluation.overlap) // place.trainer_ranks) if shared else 1
    fitting: list[tuple[int, int, int, RunSizes]] = []
    for candidate in _candidates(run):
        room = USABLE * gpu.total - (trainer_of(candidate).total if shared else 0.0)
        slots = place.engines * max(0, int(_gpu_room(candidate, room / on_a_gpu)))
        fitting.append((min(slots, ENOUGH, run.slots), -len(fitting), slots, candidate))
    _, _, slots, best = max(fitting, key=lambda one: one[:2])  # the first that leaves enough, else the most
    return best if slots >= run.slots else replace(best, slots=max(place.engines, _rounded(slots)))


def _gpu_room(run: RunSizes, room: float) -> float:
    """Return the slots of one engine in some memory of a GPU."""
    sizes = run.model.sizes
    weights = generator_memory(sizes, 0, 1, run.recipe.fp32_head, run.width).total
    weights += pass_memory(sizes, run.row_tokens, run.width)
    return (room - weights - evaluation_cache(run)) / _slot_bytes(run)


def cache_rows(row: float, working: float, gpu: Memory | None, *, given: bool) -> int:
    """Return the sequences that fit in memory next to a model that is loaded in this process.

    Args:
        row: Bytes of the cache of one sequence at the length limit.
        working: Bytes of a forward pass.
        gpu: Memory of the GPU; None on CPU.
        given: Whether a user has set the slots, which may take what is free.
    """
    memory = gpu or host_memory()
    # beyond SHARE of all memory only if nothing fits otherwise
    room = min(SHARE * memory.total, USABLE * memory.free) if not given else USABLE * memory.free
    most = 1 << 20
    rows = int((room - working) / row) if room < math.inf else most
    return max(0, min(most, rows if rows >= 1 else int((USABLE * memory.free - working) / row)))


# -------------------------------------------------------------------------------------------------------------- shared


def _rounded(slots: int) -> int:
    """Return a number of slots down to a multiple of 8, so that a little more or less memory gives the same run."""
    return slots - slots % 8 if slots >= 8 else slots


def _slot_bytes(run: RunSizes) -> float:
    """Return the bytes of the cache of one sequence at the length limit.

    Custom engines may have a second cache, and so has the engine of evaluations in a process of their own; that on a
    GPU is counted as an engine.
    """
    second = run.evaluation.overlap and run.on_cpu
    caches = 2 if second or isinstance(run.placement.engine, Custom) else 1
    return caches * run.row_tokens * cache_bytes_per_token(run.model.sizes, 1, run.width)


# --------------------------------------------------------------------------------------------------------------- lines


def free_of(memory: Memory) -> str:
    """Return in words what is free of some memory."""
    return f"{gb(memory.free)} of {gb(memory.total)} GB are free ({memory.limit})"


def parts(needs: HostMemory, run: RunSizes) -> str:
    """Return the parts of the memory of a host in words."""
    words = {
        "trainer": needs.trainer,
        "generator": needs.generators,
        f"cache of {run.slots:,} sequences of {run.row_tokens:,} tokens": needs.cache,
        "weights on their way": needs.channel,
        "programs": needs.processes,
    }
    return ", ".join(f"{name} {gb(value)}" for name, value in words.items() if value)


def memory_line(run: RunSizes, machine: Machine) -> str:
    """Return the memory that a run on this host needs at most, and what is free."""
    host = machine.host
    needs = host_needs(run, host)
    text = f"host memory (estimate): at most {gb(needs.total)} GB: {parts(needs, run)}"
    known = host.total < math.inf and not machine.elsewhere
    return f"{text}; {free_of(host)}" if known else text


def cure(slots: int, engines: int) -> str:
    """Return what to do if a generator with so many slots lacks memory."""
    if slots <= engines:
        return "lower recipe.length in a new run"
    fewer = max(engines, _rounded(slots // 2))
    return f"resume with fewer sequences, --rollouts.slots {fewer} (now {slots})"


def trainer_cure(settings: LearnerSettings, hardware: Hardware) -> str:
    """Return what to do if a trainer lacks memory."""
    tokens = chosen(settings.micro_batch_tokens)
    less = [f"--learner.micro_batch_tokens {max(1, tokens // 2)} (now {tokens})"]
    if settings.gradient_checkpointing is not True:
        less.append("--learner.gradient_checkpointing true")
    if hardware.device == "cpu" and hardware.trainer_helpers != 0:
        less.insert(0, "--hardware.trainer_helpers 0")
    return f"resume with {' or '.join(less)}"


def room_note(run: RunSizes, machine: Machine) -> str:
    """Return a line if the saved sizes of a run no longer fit, with what to do; empty if they fit."""
    host = machine.host
    if run.placement.backend != "local" or not run.on_cpu:
        return ""
    needs, engines = host_needs(run, host).total, run.placement.engines
    if needs <= host.free:
        return ""
    slots = engines + math.floor((host.free - _least(run, host)) / _slot_bytes(run))
    fewer = f", or resume with --rollouts.slots {_rounded(slots)}" if slots >= engines else ""
    return f"memory: the run may need {gb(needs)} GB, and {free_of(host)}; free memory{fewer}"
