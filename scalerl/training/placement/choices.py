"""Schedule, weight channel and trainer process of a run where its configuration leaves the choice open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from scalerl.training.config.model import HuggingFaceModel
from scalerl.training.config.placement import Placement
from scalerl.training.config.run import RunConfig

if TYPE_CHECKING:
    from scalerl.training.models.build import PolicySpec


def schedule_name(config: RunConfig) -> Literal["deterministic", "eager"]:
    """The schedule by which new weights become active."""
    steps_together = config.placement.deterministic and not config.has_agents
    return "deterministic" if config.rollouts.schedule == "auto" and steps_together else "eager"


def channel_name(config: RunConfig) -> str:
    """The weight channel; for `auto` before `resolve`, that of machines with vLLM everywhere."""
    shared = config.placement.gpus == 1 and config.placement.backend == "local"
    chosen = config.rollouts.weights
    return chosen if chosen != "auto" else channel_choice(config, shared, vllm=True)[0]


def channel_choice(config: RunConfig, shared: bool, vllm: bool, unable: str = "") -> tuple[str, str]:
    """Return the weight channel for `auto`, and the reason if vLLM servers on GPUs get files instead of NCCL.

    `shared`: engines use the trainer's GPUs. `vllm`: the trainer's environment has vLLM. `unable`: why vLLM cannot load
    adapters of this model; empty: it can.
    """
    rounds, reason = config.recipe.off_policy, ""
    if config.placement.engine == "vllm" and config.lora and not config.merged_because(unable):
        return "adapters", ""
    if config.placement.engine != "vllm" or config.hardware.device == "cpu":
        return config.placement.channels[0], ""
    if config.placement.servers:
        reason = "servers given by address take weights as their command line says"
    elif shared:
        reason = "an engine shares the trainer's GPU, and NCCL needs one for each process"
    elif not vllm:
        reason = "NCCL needs vLLM in the trainer's environment too"
    elif rounds.max_lag and not rounds.streams:
        reason = f"servers hold one version, and {rounds.kind} needs older ones"
    return "directory" if reason else "nccl", reason


def trains_in_loop(place: Placement, device: str, channel: str) -> bool:
    """Whether the process of the loop is the trainer; otherwise trainer ranks are processes or actors."""
    # on a cluster, the loop's process has no GPU; a transfer over NCCL that hangs ends only with its process
    far = place.backend == "ray" and device == "cuda"
    return place.trainer_ranks == 1 and not far and channel != "nccl"


def loop_device(config: RunConfig) -> str:
    """The device on which the process of the loop loads the model."""
    device = config.hardware.device
    return device if trains_in_loop(config.placement, device, channel_name(config)) else "cpu"


def policy_spec(config: RunConfig, path: str) -> PolicySpec:
    """Return the policy of a run as its processes load it from a directory, or from the hub by name."""
    from scalerl.training.models.build import PolicySpec

    adapters, vllm = config.rollouts.weights == "adapters", config.placement.engine == "vllm"
    return PolicySpec(
        path=path,
        revision=config.model.revision if isinstance(config.model, HuggingFaceModel) else "main",
        dtype=config.hardware.dtype,
        fp32_head=config.recipe.fp32_head,
        lora=config.lora,
        seed=config.seed,
        sent="adapters" if adapters else "checkpoint" if vllm else "model",  # vLLM expects the names of a checkpoint
    )
