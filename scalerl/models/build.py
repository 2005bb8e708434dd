"""The policy of a run, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from torch import Tensor

from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.models.lora import LoraPolicy
from scalerl.models.policy import Policy, load_policy
from scalerl.models.weights import checkpoint_weights

Sent = Literal["model", "checkpoint", "adapters"]
"""What engines get: all weights by the names of the model, or by those of a checkpoint on disk; or adapters only."""


def revision_of(config: RunConfig) -> str:
    """Return the revision of the model on the hub."""
    return config.model.revision if isinstance(config.model, HuggingFaceModel) else "main"


def load_of(config: RunConfig, model_path: str, device: str) -> Policy:
    """Return the run's policy on a device."""
    return load_policy(
        model_path,
        revision=revision_of(config),
        device=device,
        dtype=config.hardware.dtype,
        fp32_head=config.recipe.fp32_head,
    )


def with_adapters(config: RunConfig, policy: Policy) -> Policy:
    """Return the policy to train: the given one, or a LoraPolicy made from it.

    Raises:
        ConfigError: From `LoraPolicy` and `check_names`.
    """
    if config.lora is None:
        return policy
    adapted = LoraPolicy(policy, config.lora, config.seed)
    if config.rollouts.weights == "adapters":
        adapted.check_names()
    return adapted


def sent_of(config: RunConfig) -> Sent:
    """Return what the run's engines get; vLLM expects the names of a checkpoint."""
    if config.rollouts.weights == "adapters":
        return "adapters"
    return "checkpoint" if config.placement.engine == "vllm" else "model"


def sent_weights(
    policy: Policy, sent: Sent, whole: Callable[[Tensor], Tensor] = Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that engines get, by the names that they expect, in a fixed order.

    Args:
        policy: The trained policy.
        sent: What engines get.
        whole: Function that returns a weight as a whole, if the model is sharded.
    """
    if sent == "adapters":
        assert isinstance(policy, LoraPolicy), type(policy)
        return policy.adapters(whole)
    weights = policy.weights(whole)
    return checkpoint_weights(policy.model, weights) if sent == "checkpoint" else weights
