"""Sizes that follow the model and the machine: slots, micro-batch, helper threads; and lines that say what a run needs.

`sized` fills in the sizes that a configuration leaves open, and refuses what cannot fit before a model is loaded. The
result is saved in config.toml, so that a resume uses it. The memory of a run on CPU is counted at its worst moment: all
sequences at the length limit and a micro-batch of the longest rollout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from scalerl.cluster.layout import prompt_tokens, trainer_of
from scalerl.cluster.memory import (
    PROCESS,
    WORKER,
    HostMemory,
    cache_bytes_per_token,
    checkpoint_bytes,
    evaluation_cache,
    gb,
    generator_memory,
    pass_memory,
    weight_bytes,
)
from scalerl.config.base import chosen, replace
from scalerl.config.data import TextTask
from scalerl.config.length import Interruption
from scalerl.config.model import Lora
from scalerl.config.placement import Hardware, Placement
from scalerl.config.recipe import Custom
from scalerl.config.run import Learner, RunConfig
from scalerl.core.errors import ConfigError
from scalerl.core.machine import Memory, gpu_memory, host_memory, resident_bytes
from scalerl.models.sizes import ModelSizes
from scalerl.placement.choices import (
    channel_name,
    micro_batch_tokens,
    recomputes,
    slots_of,
    trains_in_loop,
)
from scalerl.placement.devices import GB, USABLE, devices, shares_gpus
from scalerl.rollouts.shared_memory import channel_versions

SHARE = 0.5
"""Share of a host's memory that sizes chosen here may take: other programs run on it, too. If a run cannot do with it,
it gets up to USABLE of what is free."""

ENOUGH = 32
"""Slots up to which a smaller micro-batch is the better use of memory. A decode step of fewer sequences costs nearly as
much."""

LEAST_MICRO_BATCH = 256
"""Smallest micro-batch that is chosen here, tokens."""

PHRASE = 32
"""Assumed tokens of the phrase that ends the thinking, before there is a tokenizer."""


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


def longest_row(config: RunConfig, prompt: int = 0) -> int:
    """Return the most tokens of a prompt and its completion; `prompt`: the longest one, 0: the limit of the tasks."""
    length = config.recipe.length
    return (prompt or prompt_tokens(config)[1]) + length.max_tokens + PHRASE * isinstance(length, Interruption)


def sized(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine) -> RunConfig:
    """Return a configuration with its slots, lag, micro-batch and helpers.

    Args:
        config: Configuration whose device is known.
        sizes: The model.
        row_tokens: Most tokens of a prompt and its completion.
        machine: Memory of the host, and of each GPU.

    Raises:
        ConfigError: The run does not fit. The message has the numbers and the settings that would help.
    """
    place = config.placement
    if place.backend == "local" and place.engine != "vllm":
        choose = _on_host if config.hardware.device == "cpu" else _on_gpus
        config = choose(config, sizes, row_tokens, machine)
    config = with_slots(config, slots_of(config))
    learner = replace(
        config.learner, micro_batch_tokens=micro_batch_tokens(config), gradient_checkpointing=recomputes(config)
    )
    return replace(config, learner=learner)


# ------------------------------------------------------------------------------------------------------------- on CPU


def host_needs(config: RunConfig, sizes: ModelSizes, row_tokens: int, host: Memory) -> HostMemory:
    """Return the memory of all processes of a run on this host, at the worst moment of each."""
    place, width, engines = config.placement, weight_bytes(config), config.placement.engines
    on_cpu, weights = config.hardware.device == "cpu", width * sizes.params
    trainer = trainer_of(config, sizes, row_tokens).total * place.trainer_ranks if on_cpu else 0.0
    if on_cpu and not trains_in_loop(config):
        trainer += weights  # the process of the loop loads the model, too
    if not on_cpu and trains_in_loop(config):
        trainer += checkpoint_bytes(config, sizes)  # the copy that is written while training goes on
    beside = int(config.evaluation.overlap)  # the process of the evaluations
    versions = channel_versions(weights, host.total) if channel_name(config) == "shared-memory" else 0
    several = place.trainer_ranks * (not trains_in_loop(config)) + engines * (engines > 1) + beside
    return HostMemory(
        trainer=trainer,
        generators=(engines + beside) * (weights + pass_memory(sizes, row_tokens, width)) if on_cpu else 0.0,
        cache=slots_of(config) * _slot_bytes(config, sizes, row_tokens)
        + engines * evaluation_cache(config, sizes, row_tokens),
        channel=(versions + beside) * weights,
        processes=(2 + several) * PROCESS + (1 + beside) * _workers(config) * WORKER,
    )


def _on_host(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine) -> RunConfig:
    """Return the sizes with which a run on CPU takes SHARE of the memory, or else as little as possible.

    Raises:
        ConfigError: See `sized`.
    """
    host = machine.host
    given = None if config.rollouts.slots == "auto" else config.rollouts.slots
    most = host.free if given else USABLE * host.free
    target = min(SHARE * host.total, most)
    slot = _slot_bytes(config, sizes, row_tokens)

    def room(candidate: RunConfig, limit: float) -> int:
        """Return the slots of a candidate within a limit."""
        least = host_needs(with_slots(candidate, candidate.placement.engines), sizes, row_tokens, host).total
        return candidate.placement.engines + math.floor((limit - least) / slot) if limit < math.inf else 1 << 20

    wanted, candidates = slots_of(config), list(_candidates(config, row_tokens))
    group, engines = config.recipe.generations_per_prompt, config.placement.engines
    enough = max(ENOUGH, group)
    tried = [(one, target, least, wanted) for least in (enough, group) for one in candidates]
    # beyond the target: what the slots of a user take, or no more than enough
    tried += [(one, most, engines, min(wanted, enough)) for one in (candidates if given else candidates[-1:])]
    for candidate, limit, least, cap in tried:
        slots = room(candidate, limit)
        if slots >= (given or min(wanted, least)):
            return with_slots(candidate, given or (cap if slots >= cap else _rounded(slots)))
    raise ConfigError(_too_large(candidates[-1], sizes, row_tokens, machine, most, slots))


def _too_large(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine, most: float, slots: int) -> str:
    """Return why a run does not fit into the memory of the host, and which settings would help."""
    host, given = machine.host, config.rollouts.slots != "auto"
    count = slots_of(config) if given else config.placement.engines
    needs = host_needs(with_slots(config, count), sizes, row_tokens, host)
    text = (
        f"memory: the run needs up to {gb(needs.total)} GB ({parts(needs, count, row_tokens)}), and {free_of(host)}"
        f"{'' if given else f', of which {USABLE:.0%} may be used'}"
    )
    if slots >= config.placement.engines:
        return f"{text}. Set rollouts.slots = {slots} or less, or auto to choose it here"
    helping = []
    for words, changed in _remedies(config):
        less = host_needs(with_slots(changed, config.placement.engines), sizes, row_tokens, host).total
        if less <= most:
            helping.append(f"{words} ({gb(less)} GB)")
    row = f"{row_tokens:,} tokens of a prompt and its completion"
    own = "free memory, take a smaller model, or lower the " + row + " (recipe.length, data.max_prompt_tokens)"
    return f"{text}. To fit, {' or '.join([*helping, own])}"


def _remedies(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Yield settings that need less memory, in words and as configurations."""
    if not recomputes(config):
        yield "set learner.gradient_checkpointing = true", _recomputing(config, True)
    if config.lora is None and config.placement.trainer_ranks == 1 and config.model.kind != "tiny":
        adapted = replace(config, model=replace(config.model, lora=Lora(rank=16)))
        yield "train adapters with model.lora.rank = 16", adapted
    if config.hardware.dtype == "float32":
        half = replace(config, hardware=replace(config.hardware, dtype="bfloat16"))
        yield "set hardware.dtype = 'bfloat16'", half


def _candidates(config: RunConfig, row_tokens: int) -> Iterator[RunConfig]:
    """Yield configurations that need ever less memory: no helpers, small micro-batches, recomputed activations."""
    hardware, learner = config.hardware, config.learner
    yield (config := _recomputing(config, recomputes(config)))
    if hardware.trainer_helpers == "auto" and hardware.device == "cpu":
        yield (config := replace(config, hardware=replace(hardware, trainer_helpers=0)))
    tokens, smallest = micro_batch_tokens(config), config
    while learner.micro_batch_tokens == "auto" and tokens > max(row_tokens, LEAST_MICRO_BATCH):
        tokens = max(tokens // 2, LEAST_MICRO_BATCH)
        yield (smallest := replace(config, learner=replace(config.learner, micro_batch_tokens=tokens)))
    if learner.gradient_checkpointing == "auto":
        yield _recomputing(smallest, True)


def _recomputing(config: RunConfig, checkpointing: bool) -> RunConfig:
    return replace(config, learner=replace(config.learner, gradient_checkpointing=checkpointing))


# -------------------------------------------------------------------------------------------------------------- on GPUs


def _on_gpus(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine) -> RunConfig:
    """Return the slots that fit next to what else is on a GPU, with the largest micro-batch that leaves enough."""
    gpu = machine.gpu
    assert gpu is not None
    if config.rollouts.slots != "auto":
        return config
    engines = config.placement.engines
    shared = shares_gpus(config, len({at.gpus for at in devices(config).values()}))
    on_a_gpu = -(-(engines + config.evaluation.overlap) // config.placement.trainer_ranks) if shared else 1
    fitting: list[tuple[int, int, int, RunConfig]] = []
    for candidate in _candidates(config, row_tokens):
        room = USABLE * gpu.total - (trainer_of(candidate, sizes, row_tokens).total if shared else 0.0)
        slots = engines * max(0, int(_gpu_room(candidate, sizes, row_tokens, room / on_a_gpu)))
        fitting.append((min(slots, ENOUGH, slots_of(config)), -len(fitting), slots, candidate))
    _, _, slots, best = max(fitting, key=lambda one: one[:2])  # the first that leaves enough, else the most
    return with_slots(best, slots_of(config) if slots >= slots_of(config) else max(engines, _rounded(slots)))


def _gpu_room(config: RunConfig, sizes: ModelSizes, row_tokens: int, room: float) -> float:
    """Return the slots of one engine in some memory of a GPU."""
    head, width = config.recipe.fp32_head, weight_bytes(config)
    weights = generator_memory(sizes, 0, 1, head, width).total + pass_memory(sizes, row_tokens, width)
    spare = evaluation_cache(config, sizes, row_tokens)
    return (room - weights - spare) / _slot_bytes(config, sizes, row_tokens)


def cache_rows(config: RunConfig, row: float, working: float) -> int:
    """Return the sequences that fit in memory next to a model that is loaded in this process.

    Args:
        config: Configuration whose device is known.
        row: Bytes of the cache of one sequence at the length limit.
        working: Bytes of a forward pass.
    """
    memory = memory_here(config.hardware, config.placement).gpu or host_memory()
    # beyond SHARE of all memory only if nothing fits otherwise
    room = min(SHARE * memory.total, USABLE * memory.free) if config.rollouts.slots == "auto" else USABLE * memory.free
    most = 1 << 20
    rows = int((room - working) / row) if room < math.inf else most
    return max(0, min(most, rows if rows >= 1 else int((USABLE * memory.free - working) / row)))


# -------------------------------------------------------------------------------------------------------------- shared


def with_slots(config: RunConfig, slots: int) -> RunConfig:
    """Return a configuration with a number of slots."""
    return replace(config, rollouts=replace(config.rollouts, slots=slots))


def _rounded(slots: int) -> int:
    """Return a number of slots down to a multiple of 8, so that a little more or less memory gives the same run."""
    return slots - slots % 8 if slots >= 8 else slots


def _slot_bytes(config: RunConfig, sizes: ModelSizes, row_tokens: int) -> float:
    """Return the bytes of the cache of one sequence at the length limit.

    Custom engines may have a second cache, and so has the engine of evaluations in a process of their own; that on a
    GPU is counted as an engine.
    """
    second = config.evaluation.overlap and config.hardware.device == "cpu"
    caches = 2 if second or isinstance(config.placement.engine, Custom) else 1
    return caches * row_tokens * cache_bytes_per_token(sizes, 1, weight_bytes(config))


def _workers(config: RunConfig) -> int:
    """Return the processes that score completions."""
    texts = any(isinstance(task, TextTask) for task in config.data)
    return config.scoring.processes(max(1, (os.cpu_count() or 1) - 1) if texts else 0)


# --------------------------------------------------------------------------------------------------------------- lines


def free_of(memory: Memory) -> str:
    """Return in words what is free of some memory."""
    return f"{gb(memory.free)} of {gb(memory.total)} GB are free ({memory.limit})"


def parts(needs: HostMemory, slots: int, row_tokens: int) -> str:
    """Return the parts of the memory of a host in words."""
    words = {
        "trainer": needs.trainer,
        "generator": needs.generators,
        f"cache of {slots:,} sequences of {row_tokens:,} tokens": needs.cache,
        "weights on their way": needs.channel,
        "programs": needs.processes,
    }
    return ", ".join(f"{name} {gb(value)}" for name, value in words.items() if value)


def memory_line(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine) -> str:
    """Return the memory that a run on this host needs at most, and what is free."""
    host = machine.host
    needs = host_needs(config, sizes, row_tokens, host)
    text = f"host memory (estimate): at most {gb(needs.total)} GB: {parts(needs, slots_of(config), row_tokens)}"
    known = host.total < math.inf and not machine.elsewhere
    return f"{text}; {free_of(host)}" if known else text


def cure(slots: int, engines: int) -> str:
    """Return what to do if a generator with so many slots lacks memory."""
    if slots <= engines:
        return "lower recipe.length in a new run"
    fewer = max(engines, _rounded(slots // 2))
    return f"resume with fewer sequences, --rollouts.slots {fewer} (now {slots})"


def trainer_cure(settings: Learner, hardware: Hardware) -> str:
    """Return what to do if a trainer lacks memory."""
    tokens = chosen(settings.micro_batch_tokens)
    less = [f"--learner.micro_batch_tokens {max(1, tokens // 2)} (now {tokens})"]
    if settings.gradient_checkpointing is not True:
        less.append("--learner.gradient_checkpointing true")
    if hardware.device == "cpu" and hardware.trainer_helpers != 0:
        less.insert(0, "--hardware.trainer_helpers 0")
    return f"resume with {' or '.join(less)}"


def room_note(config: RunConfig, sizes: ModelSizes, row_tokens: int, machine: Machine) -> str:
    """Return a line if the saved sizes of a run no longer fit, with what to do; empty if they fit."""
    host = machine.host
    if config.placement.backend != "local" or config.hardware.device != "cpu":
        return ""
    needs = host_needs(config, sizes, row_tokens, host).total
    if needs <= host.free:
        return ""
    least = host_needs(with_slots(config, config.placement.engines), sizes, row_tokens, host).total
    slots = config.placement.engines + math.floor((host.free - least) / _slot_bytes(config, sizes, row_tokens))
    fewer = f", or resume with --rollouts.slots {_rounded(slots)}" if slots >= config.placement.engines else ""
    return f"memory: the run may need {gb(needs)} GB, and {free_of(host)}; free memory{fewer}"
