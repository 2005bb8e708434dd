"""Processes, GPUs and bytes of a configuration, and checks that they fit; for `--dry-run` and plans."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import replace
from scalerl.training.config.model import TinyModel
from scalerl.training.config.recipe import Custom
from scalerl.training.config.run import RunConfig
from scalerl.training.machines.memory import (
    GeneratorMemory,
    TrainerMemory,
    adapter_params,
    evaluation_cache,
    gb,
    generator_memory,
    trainer_memory,
)
from scalerl.training.models.sizes import SizedModel
from scalerl.training.placement.devices import GB, USABLE, Places, device_lines, devices, gpus_of
from scalerl.training.placement.sizes import RunSizes


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a run and the memory of each GPU.

    Example (8B on 80 GPUs): Layout(run=RunSizes(...), devices={("trainer", 0): Place(...), ...}, gpus=80,
                                    slots_of_an_engine=12, trainer=TrainerMemory(...), expected=GeneratorMemory(...),
                                    at_limit=...)
    """

    run: RunSizes
    devices: Places
    """Devices of all processes."""
    gpus: int
    """GPUs that the run uses, without those of servers given by address; 0 on CPU."""
    slots_of_an_engine: int
    trainer: TrainerMemory
    expected: GeneratorMemory
    """Memory with all slots at the mean length."""
    at_limit: GeneratorMemory
    """Memory with all slots at the length limit."""

    @property
    def sharing(self) -> int:
        """Engines on the GPU of the first trainer rank, that of evaluations included."""
        first = self.devices["trainer", 0]
        engines = [at for (kind, _), at in self.devices.items() if kind in ("generator", "evaluator")]
        return sum((at.host, at.gpus) == (first.host, first.gpus) for at in engines) if first.gpus else 0

    @property
    def evaluates_apart(self) -> bool:
        """Whether evaluations have a GPU of their own, so that they take no time from training."""
        apart = gpus_of(self.devices, "evaluator")
        return bool(apart) and not apart & gpus_of(self.devices, "trainer", "generator")


def lay_out(run: RunSizes) -> Layout:
    """Count GPUs and bytes.

    Raises:
        ConfigError: There are too few GPUs.
    """
    place = run.placement
    slots = -(-run.slots // place.engines)
    caches = 2 if isinstance(place.engine, Custom) else 1  # for evaluations; the torch engine uses that of training
    head = place.engine == "torch" and run.recipe.fp32_head
    spare = evaluation_cache(run) if place.engine == "torch" else 0.0

    def memory(tokens: float) -> GeneratorMemory:
        memory = generator_memory(run.model.sizes, caches * slots * tokens, place.tensor_parallel, head, run.width)
        return memory._replace(cache=memory.cache + spare)

    trainer = trainer_of(run)
    table = devices(run, trainer_bytes=lambda: trainer.total)
    return Layout(
        run=run,
        devices=table,
        gpus=len(gpus_of(table, "trainer", "generator", "evaluator")) - len(place.servers) * place.gpus_of_a_generator,
        slots_of_an_engine=slots,
        trainer=trainer,
        expected=memory(run.prompt_tokens + run.expected_tokens),
        at_limit=memory(run.row_tokens),
    )


def trainer_of(run: RunSizes) -> TrainerMemory:
    """Return the memory of each trainer with micro-batches of at least the longest row."""
    place, hardware, sizes, helpers = run.placement, run.hardware, run.model.sizes, 0
    # without threads, the configuration is not resolved: a plan for another machine
    if run.on_cpu and hardware.trainer_threads != "auto" and place.trainer_ranks == 1:
        from scalerl.training.learner.cpu import helpers_of  # it imports torch

        helpers = 0 if sizes.experts or run.recomputed else helpers_of(hardware)
    return trainer_memory(
        sizes,
        place.trainer_ranks,
        run.widest,
        run.recomputed,
        adapter_params(sizes, run.lora) if run.lora else 0,
        place.expert_ranks,
        run.width,
        helpers,
        reference=run.recipe.kl_coefficient > 0,
    )


def planned(config: RunConfig) -> RunConfig:
    """Return a configuration with device and dtype; for "auto", those of GPUs or, for the lab's model, of a CPU."""
    device, dtype = config.hardware.device, config.hardware.dtype
    if device == "auto":
        device = "cpu" if isinstance(config.model, TinyModel) else "cuda"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    return replace(config, hardware=replace(config.hardware, device=device, dtype=dtype))


def check_layout(layout: Layout) -> None:
    """Check that the model can be divided and, on GPUs, that it fits.

    Raises:
        ConfigError: It cannot be divided or does not fit.
    """
    check_divides(layout.run)
    place, trainer = layout.run.placement, layout.trainer.total
    exact = place.engine == "torch"
    memory = (layout.at_limit if exact else layout.expected).total
    shared = layout.sharing * memory
    if layout.run.on_cpu or max(memory, trainer + shared) <= USABLE * place.gpu_gb * GB:
        return
    length = "the length limit" if exact else "the mean length"
    together = f", {gb(trainer + shared)} GB on a GPU that both use" if shared else ""
    raise ConfigError(
        f"placement: each trainer GPU holds {gb(trainer)} GB and each generator GPU {gb(memory)} GB "
        f"({layout.slots_of_an_engine} slots at {length}){together}; allowed: {USABLE:.0%} of placement.gpu_gb = "
        f"{place.gpu_gb:g} GB. For trainers, raise trainer_ranks, lower learner.micro_batch_tokens, or set "
        "learner.gradient_checkpointing; for generators, lower rollouts.slots or "
        "recipe.length, or raise tensor_parallel (docs/cluster.md); or set hardware.device = 'cpu'"
    )


def check_divides(run: RunSizes) -> None:
    """Check that engines can divide the heads of a model, and trainer ranks its experts.

    Raises:
        ConfigError: They cannot.
    """
    sizes, parts, ranks = run.model.sizes, run.placement.tensor_parallel, run.placement.expert_ranks
    most = math.gcd(sizes.experts, run.placement.trainer_ranks) if sizes.experts else 1
    if most % ranks:
        raise ConfigError(
            f"placement.expert_ranks: got {ranks} for a model of {sizes.experts or 'no'} experts per layer; allowed: "
            f"{_divisors(most)}"
        )
    if sizes.heads % parts or sizes.kv_heads % parts:
        raise ConfigError(
            f"placement.tensor_parallel: got {parts} for a model of {sizes.heads} attention heads and {sizes.kv_heads} "
            f"key-value heads; allowed: a divisor of both, {_divisors(math.gcd(sizes.heads, sizes.kv_heads))}"
        )


def _divisors(number: int) -> str:
    """Return the divisors of a number up to 1,024, as text."""
    return ", ".join(str(n) for n in range(1, min(number, 1024) + 1) if number % n == 0)


def lines(layout: Layout) -> list[str]:
    """Return the lines that describe the layout."""
    run, place = layout.run, layout.run.placement
    out = [size_line(run.model)]
    if place.scorers:
        out.append(f"scorers: {place.scorers} actors of {run.scorer_cores} cores each")
    ranks = "one trainer process" if place.trainer_ranks == 1 else f"{place.trainer_ranks} trainer ranks (FSDP2)"
    ranks += f", experts on {place.expert_ranks}," if place.expert_ranks > 1 else ""
    processes = f"placement: {ranks} and {_engines(run)}"
    if run.on_cpu:
        return [*out, f"{processes}, in the memory of this machine"]
    where = "one GPU for both" if layout.sharing and layout.gpus == 1 else f"{layout.gpus} GPUs"
    served = f"; {place.engines} servers given by address, with separate GPUs" if place.servers else ""
    out.append(f"{processes}: {where}{served}")
    note = " (Ray may choose other nodes and GPUs)" if place.backend == "ray" else ""
    out += [f"devices{note}:", *(f"  {line}" for line in device_lines(layout.devices))]
    out.append(f"estimates, GB per GPU ({USABLE:.0%} of {place.gpu_gb:g} GB are usable):")
    t, g = layout.trainer, layout.at_limit
    how = ", recomputed" if run.recomputed else ""
    out.append(
        f"  trainer {gb(t.total)} GB: weights {gb(t.weights)}, masters {gb(t.masters)}, gradients {gb(t.gradients)}, "
        f"optimizer {gb(t.optimizer)}, gathered layers {gb(t.gathered)}, activations {gb(t.activations)} "
        f"({run.widest:,} tokens{how}), logits {gb(t.logits)}"
        + (f", reference of the KL term {gb(t.reference)}" if t.reference else "")
    )
    out.append(
        f"  generator {gb(g.total)} GB at the length limit: weights {gb(g.weights + g.head)}, cache of "
        f"{layout.slots_of_an_engine} slots {gb(g.cache)}; {gb(layout.expected.total)} GB at the mean length"
    )
    if place.engine == "vllm" and g.total > USABLE * place.gpu_gb * GB:
        out.append("  not all slots fit at the length limit; vLLM then preempts sequences and recomputes their cache")
    return out


def size_line(model: SizedModel) -> str:
    """Return a line with the model's size and its source."""
    sizes = model.sizes
    mixture = f", {_count(sizes.matmul_params)} of them used per token" if sizes.experts else ""
    return f"model: {_count(sizes.params)} parameters{mixture}, without norms and biases; sizes from {model.source}"


def _count(value: float) -> str:
    for size, name in ((1e9, " billion"), (1e6, " million")):
        if value >= size:
            return f"{value / size:.3g}{name}"
    return f"{value:,}"


def _engines(run: RunSizes) -> str:
    place = run.placement
    name = "vLLM" if place.engine == "vllm" else place.engine_name
    split = f" of {place.tensor_parallel} GPUs" if place.tensor_parallel > 1 else ""
    text = f"one {name} generator{split}" if place.engines == 1 else f"{place.engines} {name} generators{split}"
    return text + ", and one engine for evaluations" * run.evaluation.overlap
