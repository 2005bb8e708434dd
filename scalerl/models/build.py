"""The policy of a run, from its configuration."""

from __future__ import annotations

from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.models.lora import LoraPolicy
from scalerl.models.policy import Policy, load_policy


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
    """Return the policy to train: the given one, or a LoraPolicy made from it."""
    return LoraPolicy(policy, config.lora, config.seed) if config.lora else policy
