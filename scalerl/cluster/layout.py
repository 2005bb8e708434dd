"""Processes, GPUs and bytes of a configuration, and checks that they fit; for `--dry-run` and plans."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalerl.cluster.memory import (
    GeneratorMemory,
    TrainerMemory,
    adapter_params,
    evaluation_cache,
    gb,
    generator_memory,
    trainer_memory,
    weight_bytes,
)
from scalerl.config.base import replace
from scalerl.config.data import TextTask
from scalerl.config.model import TinyModel
from scalerl.config.recipe import Custom
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError
from scalerl.models.sizes import ModelSizes, SizedModel, sizes_of
from scalerl.placement.choices import expected_tokens, micro_batch_tokens, recomputes, slots_of
from scalerl.placement.devices import GB, USABLE, Table, described, devices, gpus_of

LAB_PROMPT = 64
"""Maximum tokens of a generated task's prompt, rounded up."""

MEAN_PROMPT = 256
"""Assumed mean tokens of prompts from files, capped at their limit."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a run and the memory of each GPU.

    Example (8B on 80 GPUs): Layout(model=SizedModel(...), devices={("trainer", 0): Place(...), ...}, gpus=80,
                                    slots_of_an_engine=12, trainer=TrainerMemory(...), expected=GeneratorMemory(...),
                                    at_limit=...)
    """

    model: SizedModel
    devices: Table
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


def prompt_tokens(config: RunConfig) -> tuple[float, int]:
    """Return the mean and the maximum prompt length, tokens."""
    files = [task.max_prompt_tokens for task in config.data if isinstance(task, TextTask)]
    return (min(MEAN_PROMPT, max(files)), max(files)) if files else (LAB_PROMPT / 4, LAB_PROMPT)


def lay_out(config: RunConfig, model: SizedModel | None = None) -> Layout:
    """Count GPUs and bytes.

    Args:
        config: Configuration of the run.
        model: The model's sizes and their source; None: they are looked up.

    Raises:
        ConfigError: The model's sizes are unknown, or there are too few GPUs.
    """
    model = model or sizes_of(config.model)
    sizes, place = model.sizes, config.placement
    slots = -(-slots_of(config) // place.engines)
    mean_prompt, longest_prompt = prompt_tokens(config)
    caches = 2 if isinstance(place.engine, Custom) else 1  # for evaluations; the torch engine uses that of training
    limit = longest_prompt + config.recipe.length.max_tokens
    head = place.engine == "torch" and config.recipe.fp32_head
    spare = evaluation_cache(config, sizes, limit) if place.engine == "torch" else 0.0

    def memory(tokens: float) -> GeneratorMemory:
        width = weight_bytes(config)
        memory = generator_memory(sizes, caches * slots * tokens, place.tensor_parallel, head, width)
        return memory._replace(cache=memory.cache + spare)

    trainer = trainer_of(config, sizes, limit)
    table = devices(config, trainer_bytes=lambda: trainer.total)
    return Layout(
        model=model,
        devices=table,
        gpus=len(gpus_of(table, "trainer", "generator", "evaluator")) - len(place.servers) * place.gpus_of_a_generator,
        slots_of_an_engine=slots,
        trainer=trainer,
        expected=memory(mean_prompt + expected_tokens(config)),
        at_limit=memory(limit),
    )


def trainer_of(config: RunConfig, sizes: ModelSizes, row_tokens: int) -> TrainerMemory:
    """Return the memory of each trainer with micro-batches of at least the longest row."""
    place, hardware, checkpointing, helpers = config.placement, config.hardware, recomputes(config), 0
    # without threads, the configuration is not resolved: a plan for another machine
    if hardware.device == "cpu" and hardware.trainer_threads != "auto" and place.trainer_ranks == 1:
        from scalerl.learner.cpu import helpers_of  # it imports torch

        helpers = 0 if sizes.experts or checkpointing else helpers_of(hardware)
    return trainer_memory(
        sizes,
        place.trainer_ranks,
        max(micro_batch_tokens(config), row_tokens),
        checkpointing,
        adapter_params(sizes, config.lora) if config.lora else 0,
        place.expert_ranks,
        weight_bytes(config),
        helpers,
        reference=config.recipe.kl_coefficient > 0,
    )


def planned(config: RunConfig) -> RunConfig:
    """Return a configuration with device and dtype; for "auto", those of GPUs or, for the lab's model, of a CPU."""
    device, dtype = config.hardware.device, config.hardware.dtype
    if device == "auto":
        device = "cpu" if isinstance(config.model, TinyModel) else "cuda"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    return replace(config, hardware=replace(config.hardware, device=device, dtype=dtype))


def widest(config: RunConfig) -> int:
    """Return the padded tokens of the largest micro-batch; a rollout longer than the limit forms a separate one."""
    return max(micro_batch_tokens(config), prompt_tokens(config)[1] + config.recipe.length.max_tokens)


def check_layout(config: RunConfig, layout: Layout) -> None:
    """Check that the model can be divided and, on GPUs, that it fits.

    Raises:
        ConfigError: It cannot be divided or does not fit.
    """
    check_divides(config, layout.model.sizes)
    place, trainer = config.placement, layout.trainer.total
    exact = place.engine == "torch"
    memory = (layout.at_limit if exact else layout.expected).total
    shared = layout.sharing * memory
    if config.hardware.device == "cpu" or max(memory, trainer + shared) <= USABLE * place.gpu_gb * GB:
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


def check_divides(config: RunConfig, sizes: ModelSizes) -> None:
    """Check that engines can divide the heads of a model, and trainer ranks its experts.

    Raises:
        ConfigError: They cannot.
    """
    parts, ranks = config.placement.tensor_parallel, config.placement.expert_ranks
    most = math.gcd(sizes.experts, config.placement.trainer_ranks) if sizes.experts else 1
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


def lines(config: RunConfig, layout: Layout) -> list[str]:
    """Return the lines that describe the layout."""
    place = config.placement
    out = [size_line(layout.model)]
    if place.scorers:
        out.append(f"scorers: {place.scorers} actors of {config.scoring.processes(1)} cores each")
    ranks = "one trainer process" if place.trainer_ranks == 1 else f"{place.trainer_ranks} trainer ranks (FSDP2)"
    ranks += f", experts on {place.expert_ranks}," if place.expert_ranks > 1 else ""
    processes = f"placement: {ranks} and {_engines(config)}"
    if config.hardware.device == "cpu":
        return [*out, f"{processes}, in the memory of this machine"]
    where = "one GPU for both" if layout.sharing and layout.gpus == 1 else f"{layout.gpus} GPUs"
    served = f"; {place.engines} servers given by address, with separate GPUs" if place.servers else ""
    out.append(f"{processes}: {where}{served}")
    note = " (Ray may choose other nodes and GPUs)" if place.backend == "ray" else ""
    out += [f"devices{note}:", *(f"  {line}" for line in described(layout.devices))]
    out.append(f"estimates, GB per GPU ({USABLE:.0%} of {place.gpu_gb:g} GB are usable):")
    t, g = layout.trainer, layout.at_limit
    how = ", recomputed" if recomputes(config) else ""
    out.append(
        f"  trainer {gb(t.total)} GB: weights {gb(t.weights)}, masters {gb(t.masters)}, gradients {gb(t.gradients)}, "
        f"optimizer {gb(t.optimizer)}, gathered layers {gb(t.gathered)}, activations {gb(t.activations)} "
        f"({widest(config):,} tokens{how}), logits {gb(t.logits)}"
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


def _engines(config: RunConfig) -> str:
    place = config.placement
    name = "vLLM" if place.engine == "vllm" else place.engine_name
    split = f" of {place.tensor_parallel} GPUs" if place.tensor_parallel > 1 else ""
    text = f"one {name} generator{split}" if place.engines == 1 else f"{place.engines} {name} generators{split}"
    return text + ", and one engine for evaluations" * config.evaluation.overlap
