"""What a configuration means here: `auto` values, commits of hub revisions, and notes for the user before a run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from scalerl.cluster.connect import connect, hosts_of
from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.config.base import replace
from scalerl.config.data import PromptFile, TaskData, TextTask
from scalerl.config.placement import Hardware, Placement
from scalerl.core.errors import ConfigError, outcome
from scalerl.core.machine import sees_gpu
from scalerl.models.template import prints_date
from scalerl.placement.choices import channel_choice, channel_name
from scalerl.placement.devices import gpu_problem, shares_gpus
from scalerl.prompts.files import on_hub
from scalerl.rollouts.interrupt import LengthRule

TIMEOUT_S = 10.0
"""Time limit of a request to the hub, seconds."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve(config: RunConfig) -> RunConfig:
    """Replace every `auto` by the value for this machine, so that the saved configuration repeats the run elsewhere.

    Sizes follow when the prompts are known (`sized` of cluster/sizing.py).

    Raises:
        ConfigError: The hardware or the weight channel is not possible here.
    """
    hardware = resolve_hardware(config.hardware, config.placement)
    config = replace(config, hardware=hardware)
    if config.placement.engine == "vllm" and config.rollouts.weights == "auto":
        config = replace(config, rollouts=replace(config.rollouts, weights=_channel_here(config)[0]))
    if channel_name(config) == "nccl" and hardware.device == "cuda" and shares_gpus(config, torch.cuda.device_count()):
        only = "the only GPU of the run (placement.gpus = 1)" if config.placement.gpus == 1 else "the only GPU here"
        raise ConfigError(
            f"rollouts.weights: got 'nccl', but trainer and engine share {only}, and NCCL needs one for each process; "
            "allowed: auto, directory"
        )
    return config


def resolve_hardware(hardware: Hardware, placement: Placement | None = None) -> Hardware:
    """Replace every `auto` in the hardware settings by the value for this machine, or for a cluster.

    Args:
        hardware: The settings.
        placement: Placement of a run's processes; None: this process computes everything.

    Raises:
        ConfigError: A GPU is requested, but there is none; or the cluster does not answer.
    """
    device, where = hardware.device, "torch sees no GPU here"
    if device != "cpu":
        gpus = torch.cuda.is_available()
        if placement and placement.backend == "ray":  # the trainer and the engines are elsewhere
            hosts = hosts_of(connect(placement.ray_address, "placement.ray_address"))
            gpus, where = any(host.gpus for host in hosts), "the Ray cluster has no GPU"
        if device == "cuda" and not gpus:
            where += f" ({gpu_problem()})" if where.endswith("here") else ""
            raise ConfigError(f"hardware.device: got 'cuda', but {where}; allowed: cpu, auto")
        device = "cuda" if gpus else "cpu"
    dtype = hardware.dtype if hardware.dtype != "auto" else "bfloat16" if device == "cuda" else "float32"
    half = max(1, (os.cpu_count() or 2) // 2)
    return replace(
        hardware,
        device=device,
        dtype=dtype,
        generator_threads=hardware.generator_threads or half,
        trainer_threads=hardware.trainer_threads or half,
    )


def _channel_here(config: RunConfig) -> tuple[str, str]:
    gpus = torch.cuda.device_count() if config.hardware.device == "cuda" else 0
    return channel_choice(config, shares_gpus(config, gpus), find_spec("vllm") is not None)


def channel_notes(config: RunConfig) -> list[str]:
    """Return a note if vLLM servers get weights through files although the run has GPUs, with the reason."""
    _, reason = _channel_here(config)
    if not reason or channel_name(config) != "directory":
        return []
    return [f"weights reach the vLLM servers through files: {reason} (docs/vllm.md)"]


def device_notes(given: RunConfig, config: RunConfig) -> list[str]:
    """Return a note if a run that may use a GPU trains on the CPU of a machine that has one, with the reason.

    Args:
        given: Configuration of the user.
        config: The same, resolved.
    """
    if given.hardware.device != "auto" or config.hardware.device != "cpu" or not sees_gpu():
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


def _commit(repository: str, revision: str, kind: str, note: Callable[[str], None]) -> str:
    """Return the current commit of a branch or tag, or the revision itself if the hub does not give it."""
    if _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    # the types of errors depend on the HTTP library of the installed huggingface_hub
    asked = outcome(lambda: HfApi().repo_info(repository, revision=revision, repo_type=kind, timeout=TIMEOUT_S).sha)
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
    from scalerl.models.cpu import compiled
    from scalerl.models.cpu.compiled import cpu

    return f"{cpu()}, torch {torch.__version__}, {'without' if compiled.problem() else 'with'} loops in C"


def arithmetic_notes(hardware: Hardware, before: str) -> list[str]:
    """Return notes about slow loops, and about a run that started with other arithmetic.

    Args:
        hardware: Hardware of the run.
        before: What `arithmetic` returned when the checkpoint was written; empty for a new run.
    """
    if hardware.device != "cpu":
        return []
    from scalerl.models.cpu import compiled

    notes, now = [], arithmetic("cpu")
    if (reason := compiled.problem()) and 1 in (hardware.generator_threads, hardware.trainer_threads):
        notes.append(f"{reason}, so generation takes about 1.5 times as long; install gcc or clang, or set CC")
    if before not in ("", now):
        notes.append(f"this run was computed on {before}; here it is {now}, so its results differ by rounding")
    return notes
