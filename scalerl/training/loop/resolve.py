"""What a run is, decided once: device, channel and GPUs of its processes; then its sizes, from model and prompts."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.limits import HUB_REQUEST_S
from scalerl.core.machine import sees_gpu
from scalerl.core.types import Prompt
from scalerl.training.config import HuggingFaceModel, RunConfig, TinyModel
from scalerl.training.config.base import replace
from scalerl.training.config.data import CustomTask, PromptFile, TaskData, TextTask, prompts_of_step
from scalerl.training.config.length import Interruption, NoLengthControl
from scalerl.training.config.placement import Hardware
from scalerl.training.engines.build import has_agents
from scalerl.training.engines.interrupt import LengthRule, length_rule
from scalerl.training.engines.turns import with_replies
from scalerl.training.loop.planned import is_readable_file, pool_of
from scalerl.training.machines.connect import check_resources, connect, hosts_of, shared_memory
from scalerl.training.machines.layout import check_layout, lay_out, planned, trainer_of
from scalerl.training.machines.plan import run_lines
from scalerl.training.machines.sizing import Machine, memory_here, room_note, sized
from scalerl.training.models.loading import end_tokens, load_tokenizer
from scalerl.training.models.sizes import SizedModel, sizes_of
from scalerl.training.models.template import prints_date, render
from scalerl.training.placement.choices import (
    channel_choice,
    channel_name,
)
from scalerl.training.placement.devices import (
    GB,
    USABLE,
    Places,
    check_shared_memory,
    devices,
    gpu_problem,
    needs,
    shares_gpus,
    this_machine,
)
from scalerl.training.placement.sizes import CHOSEN, UNREAD, PromptCounts, RunSizes, derived_sizes
from scalerl.training.prompts.dataset import PromptSplit, check_enough, load_prompts
from scalerl.training.prompts.files import on_hub

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the processes of a run are, decided before its model and prompts are read.

    Example (one GPU): Placed(config=RunConfig(...), devices={("trainer", 0): Place("this machine", ("0",)), ...},
                              notes=("weights reach the vLLM servers through files: ...",))
    """

    config: RunConfig
    """Without "auto" for device, types and threads, and with vLLM for the channel."""
    devices: Places
    """Devices of all processes."""
    notes: tuple[str, ...] = ()
    """Reasons of choices that a user would ask about."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the sizes of a run are decided from. A plan assumes what it does not read.

    Example (the lab): Inputs(config=RunConfig(...), model=SizedModel(...), machine=Machine(...),
                              tokenizer=Tokenizer(...), prompts=PromptSplit(...))
    """

    config: RunConfig
    """With the device; of a run that has begun, with its sizes."""
    model: SizedModel
    machine: Machine
    tokenizer: Any = None
    """None: a plan, which assumes the longest prompt."""
    prompts: PromptSplit | None = None
    """None: the same."""
    begun: bool = False
    """Whether the run has begun; it keeps its sizes."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run with all that is decided before its processes start.

    Only what costs no memory may still be "auto": each process chooses its packing and compilation, its threads,
    helpers and scoring workers.

    Example (the lab): Resolved(config=RunConfig(...), sizes=RunSizes(...), rule=LengthRule(...), environments=False,
                                agents=False, pool=PromptCounts(...), sources="chosen: 256 slots, ...", notes=(...))
    """

    config: RunConfig
    """The configuration that is saved: `scalerl train` with it repeats the run."""
    sizes: RunSizes
    """The sizes of that configuration; with environments, the longest prompt is that of a last turn."""
    rule: LengthRule | None
    """Limits of a completion; None without a tokenizer."""
    environments: bool
    """Whether environments reply to completions."""
    agents: bool
    """Whether programs make rollouts."""
    pool: PromptCounts
    """Prompts by task."""
    sources: str
    """The sizes with where they are from: measured, given, saved, chosen or assumed."""
    notes: tuple[str, ...]
    """Reasons of choices, memory, disk and duration."""

    @property
    def lines(self) -> list[str]:
        """The decisions as text."""
        return [*derived_sizes(self.config, self.pool), *self.notes, self.sources]


def resolve(inputs: Inputs) -> Resolved:
    """Decide the sizes of a run, and what its model and prompts decide.

    Raises:
        ConfigError: The run does not fit in memory.
    """
    given, machine, notes = inputs.config, inputs.machine, list[str]()
    config, prompts = given, inputs.prompts.all_prompts if inputs.prompts else ()
    pool = pool_of(config, inputs.prompts)
    for name, needed in prompts_of_step(config.data, config.recipe.prompts_per_step).items():
        if inputs.prompts is None and name in pool.training:  # load_prompts has checked those that it read
            left, held_out = pool.training[name], pool.held_out[name]
            check_enough(f"{name}: " * (len(config.data) > 1), left + held_out, held_out, left, needed)
    if prompts and not inputs.begun:
        config = with_length_of_model(config, inputs.tokenizer, prompts, notes.append)
    if agents := has_agents(prompts):
        config = replace(config, rollouts=replace(config.rollouts, schedule="eager"))
    rule, environments, longest = None, False, 0
    if inputs.tokenizer is not None:
        rule = length_rule(config.recipe.length, partial(inputs.tokenizer.encode, add_special_tokens=False))
        longest, environments = with_replies(prompts, rule.capacity)
    sizes = RunSizes.of(
        config,
        inputs.model,
        longest_prompt=longest,
        completion=rule.capacity if rule else 0,
        prompts=pool,
    )
    saved = inputs.begun and not sizes.open & CHOSEN  # a resume may ask for sizes of another machine
    if not saved:
        sizes = sized(sizes, machine)
        check_gpus(sizes, machine)
    elif note := room_note(sizes, machine):
        notes.append(note)
    if config.placement.backend == "local":
        notes += run_lines(sizes, machine)
    return Resolved(
        sizes.written_to(config), sizes, rule, environments, agents, pool, sizes.sources(saved), tuple(notes)
    )


def planned_inputs(config: RunConfig, trusted: bool = False) -> Inputs:
    """Return what a plan knows of a run: prompts and tokenizer if they are files here and not large.

    Args:
        config: Configuration.
        trusted: Whether the tasks of a user may make their prompts.

    Raises:
        ConfigError: As `load_prompts`: the run would not start either.
    """
    config = resolved_here(config)
    sizes, machine = sizes_of(config.model), memory_here(config.hardware, config.placement)
    path = getattr(config.model, "path", "")
    here = all(
        is_readable_file(task.path) if isinstance(task, PromptFile) else trusted and isinstance(task, CustomTask)
        for task in config.data
    )
    if not here or not (Path(path) / "tokenizer.json").is_file():
        return Inputs(config, sizes, machine)
    tokenizer = load_tokenizer(path, "main")
    prompts = load_prompts(config, tokenizer, end_tokens(path, "main", tokenizer))
    return Inputs(config, sizes, machine, tokenizer, prompts)


def resolved_here(config: RunConfig) -> RunConfig:
    """Return a configuration with the hardware of this machine, or planned for other machines."""
    if config.placement.backend != "local" or config.hardware.device == "cuda":
        return planned(config)
    return replace(config, hardware=resolve_hardware(config.hardware))


def check_gpus(sizes: RunSizes, machine: Machine) -> None:
    """Check that torch engines and the trainer fit on the GPUs that are here; sizes of a user may take all of them.

    Raises:
        ConfigError: They do not fit.
    """
    if machine.gpu is None or machine.elsewhere or sizes.placement.engine != "torch":
        return
    usable = machine.gpu.total / GB / (1.0 if "slots" in sizes.open else USABLE)
    check_layout(lay_out(dataclasses.replace(sizes, placement=replace(sizes.placement, gpu_gb=usable))))


def place_processes(config: RunConfig) -> Placed:
    """Decide where the processes of a run are, and how weights reach the engines.

    Raises:
        ConfigError: The hardware or the weight channel is not possible here, the cluster does not answer, or there are
            too few GPUs or cores, or too little memory between GPU processes.
    """
    ray = connect(config.placement.ray_address, "placement.ray_address") if config.placement.backend == "ray" else None
    if ray:
        hosts = hosts_of(ray)
        hardware = resolve_hardware(config.hardware, any(host.gpus for host in hosts), "the Ray cluster has no GPU")
    else:
        hardware = resolve_hardware(config.hardware)
        hosts = [this_machine()] if hardware.device == "cuda" else []  # which makes a CUDA context
    notes = _device_notes(config.hardware, hardware)
    config, on_gpus = replace(config, hardware=hardware), hardware.device == "cuda"
    shared = shares_gpus(config.placement, sum(len(host.gpus) for host in hosts) if on_gpus else 0)
    if config.placement.engine == "vllm":
        unable = _unable(config)
        chosen, reason = channel_choice(config, shared, find_spec("vllm") is not None, unable)
        if config.rollouts.weights == "auto":
            config = replace(config, rollouts=replace(config.rollouts, weights=chosen))
        if reason and channel_name(config) == "directory":
            notes.append(f"weights reach the vLLM servers through files: {reason} (docs/vllm.md)")
        if config.lora and (why := config.merged_because(unable)):
            notes.append(f"the vLLM servers get merged weights instead of the adapters: {why} (docs/vllm.md)")
    if channel_name(config) == "nccl" and on_gpus and shared:
        only = "the only GPU of the run (placement.gpus = 1)" if config.placement.gpus == 1 else "the only GPU here"
        raise ConfigError(
            f"rollouts.weights: got 'nccl', but trainer and engine share {only}, and NCCL needs one for each process; "
            "allowed: auto, directory"
        )
    table = devices(RunSizes.of(config, UNREAD), hosts or None, lambda: trainer_of(RunSizes.of(config)).total)
    if ray:
        check_resources(ray, needs(table), "placement: trainer ranks and generators together")
    check_shared_memory(table, partial(shared_memory, ray) if ray else None)
    return Placed(config, table, tuple(notes))


def resolve_hardware(hardware: Hardware, has_gpu: bool | None = None, where: str = "") -> Hardware:
    """Replace every `auto` in the hardware settings.

    Args:
        hardware: The settings.
        has_gpu: Whether the machines of the run have a GPU; None: whether torch can use one in this process.
        where: What an error says about these machines.

    Raises:
        ConfigError: A GPU is requested, but there is none.
    """
    device = hardware.device
    if device != "cpu":
        usable = torch.cuda.is_available() if has_gpu is None else has_gpu
        if device == "cuda" and not usable:
            where = where or f"torch sees no GPU here ({gpu_problem()})"
            raise ConfigError(f"hardware.device: got 'cuda', but {where}; allowed: cpu, auto")
        device = "cuda" if usable else "cpu"
    dtype = hardware.dtype if hardware.dtype != "auto" else "bfloat16" if device == "cuda" else "float32"
    half = max(1, (os.cpu_count() or 2) // 2)
    names = ("generator_threads", "trainer_threads")
    threads = {name: half for name in names if getattr(hardware, name) == "auto"}
    return replace(hardware, device=device, dtype=dtype, **threads)


def _unable(config: RunConfig) -> str:
    """Return why vLLM cannot load the adapters of a run, empty if it can or there are none."""
    model = config.model
    if not isinstance(model, HuggingFaceModel) or model.lora is None:
        return ""
    from scalerl.training.engines.vllm.adapters import adapter_problem

    return adapter_problem(model.path, model.revision, config.placement.vllm_python or sys.executable)


def _device_notes(given: Hardware, here: Hardware) -> list[str]:
    """Return a note if a run that may use a GPU trains on the CPU of a machine that has one, with the reason."""
    if given.device != "auto" or here.device != "cpu" or not sees_gpu():
        return []
    return [f"this machine has a GPU, but torch can use none, so the run trains on the CPU: {gpu_problem()}"]


def pinned(config: RunConfig, note: Callable[[str], None]) -> RunConfig:
    """Return the configuration with the commit of every hub model and hub data set as its `revision`.

    A branch or tag may move, and the saved configuration must repeat the run. If the hub does not answer, the revision
    is kept, because the model may be in the cache of this machine.

    Args:
        config: Configuration of a new run.
        note: Function that gets a line for the user about a revision that could not be resolved.
    """
    model = config.model
    if isinstance(model, HuggingFaceModel) and not Path(model.path).exists():
        model = replace(model, revision=_commit(model.path, model.revision, "model", note))
    data = tuple(
        replace(task, revision=_commit(task.path, task.revision, "dataset", note))
        if isinstance(task, PromptFile) and on_hub(task)
        else task
        for task in config.data
    )
    return replace(config, model=model, data=data)


def dated(config: RunConfig, tokenizer: Any, note: Callable[[str], None]) -> RunConfig:
    """Return the configuration with today's date for the tasks whose chat template prints it.

    The date is recorded for the same reason as a revision: a later start or resume must have the same prompts.

    Args:
        config: Configuration of a new run.
        tokenizer: The model's tokenizer.
        note: Function that gets a line for the user about the date.
    """
    if not prints_date(tokenizer):
        return config
    today = date.today().isoformat()

    def dated_task(task: TaskData) -> TaskData:
        uses = isinstance(task, TextTask) and task.chat_template != "never" and task.template_date == "auto"
        return replace(task, template_date=today) if uses else task

    data = tuple(dated_task(task) for task in config.data)
    if data != config.data:
        note(f"the model's chat template prints the date: {today} in the whole run (--data.template_date)")
    return replace(config, data=data)


def with_length_of_model(
    config: RunConfig, tokenizer: Any, prompts: Sequence[Prompt], note: Callable[[str], None]
) -> RunConfig:
    """Return the configuration without the interruption of thinking if the model does not think.

    Args:
        config: Configuration of a new run.
        tokenizer: The model's tokenizer.
        prompts: Prompts of the run.
        note: Function that gets a line for the user about the choice.
    """
    control, first = config.recipe.length, {prompt.task: prompt for prompt in reversed(prompts)}
    if not isinstance(control, Interruption) or control.models == "all" or isinstance(config.model, TinyModel):
        return config
    reasons = [no_thinking(tokenizer, task, first.get(task.curve), control.end_tag) for task in config.data]
    if not all(reasons):
        return config
    note(
        f"recipe.length: at most {control.max_tokens:,} tokens, without interruption of the thinking, because "
        f"{reasons[0]}; recipe.length.models = 'all' interrupts anyway"
    )
    return replace(config, recipe=replace(config.recipe, length=NoLengthControl(max_tokens=control.max_tokens)))


def no_thinking(tokenizer: Any, task: TaskData, prompt: Prompt | None, end_tag: str) -> str:
    """Return why a model does not think in the completions of a task; empty if it may.

    Args:
        tokenizer: The model's tokenizer.
        task: The task.
        prompt: A prompt of the task; None if there is none.
        end_tag: Text that ends the thinking.
    """
    chat = False
    if isinstance(task, TextTask) and tokenizer.chat_template and task.chat_template != "never":
        chat = True
        question = [{"role": "user", "content": "What is 2+2?"}]
        before = render(tokenizer, question, arguments=task.template_arguments).rpartition("What is 2+2?")[2]
    else:
        before = prompt.text if prompt else ""
    closed, opened = before.rfind(end_tag), before.rfind(end_tag.replace("/", "", 1))
    if closed >= 0 and closed >= opened:
        return f"{'the chat template' if chat else 'the prompt'} ends the thinking with {end_tag} before the answer"
    if opened >= 0 or end_tag in str(tokenizer.chat_template) or end_tag in tokenizer.get_vocab():
        return ""
    return f"neither the model's chat template nor its vocabulary has {end_tag}"


def _commit(repository: str, revision: str, kind: str, note: Callable[[str], None]) -> str:
    """Return the current commit of a branch or tag, or the revision itself if the hub does not give it."""
    if _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    # the types of errors depend on the HTTP library of the installed huggingface_hub
    asked = outcome(lambda: HfApi().repo_info(repository, revision=revision, repo_type=kind, timeout=HUB_REQUEST_S).sha)
    if error := asked.exception():
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        note(f"{repository}: the commit of revision {revision!r} could not be looked up and is not recorded ({reason})")
        return revision
    return asked.result() or revision


def length_notes(rule: LengthRule) -> list[str]:
    """Return notes about an end-of-thinking tag that is not a single token."""
    if len(rule.end_tag) <= 1:
        return []
    most = rule.max_tokens
    return [
        f"the end-of-thinking tag is {len(rule.end_tag)} tokens in this vocabulary, with {len(rule.tags)} encodings "
        "that depend on the surrounding text. If the model writes another encoding, the end of thinking is not "
        "detected and the phrase is inserted after it. A tag that is a single added token avoids this. For a model "
        f"that does not think, set recipe.length.kind = 'none' and recipe.length.max_tokens, for example {most}"
    ]


def arithmetic(device: str) -> str:
    """Return what determines the rounding of results on CPU besides the configuration; empty on a GPU."""
    if device != "cpu":
        return ""
    from scalerl.training.models.cpu import loops

    return f"{loops.cpu()}, torch {torch.__version__}, {'without' if loops.problem() else 'with'} loops in C"


def arithmetic_notes(hardware: Hardware, before: str) -> list[str]:
    """Return notes about slow loops, and about a run that started with other arithmetic.

    Args:
        hardware: Hardware of the run.
        before: What `arithmetic` returned when the checkpoint was written; empty for a new run.
    """
    if hardware.device != "cpu":
        return []
    from scalerl.training.models.cpu import loops

    notes, now = [], arithmetic("cpu")
    if (reason := loops.problem()) and 1 in (hardware.generator_threads, hardware.trainer_threads):
        notes.append(f"{reason}, so generation takes about 1.5 times as long; install gcc or clang, or set CC")
    if before not in ("", now):
        notes.append(f"this run was computed on {before}; here it is {now}, so its results differ by rounding")
    return notes
