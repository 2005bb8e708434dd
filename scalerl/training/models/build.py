"""The policy of a run, as each of its processes loads it, and the weights that its engines get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scalerl.training.config.model import Lora

if TYPE_CHECKING:  # torch, which loads when a policy does
    from torch import Tensor

    from scalerl.training.models.policy import Policy

SentWeights = Literal["model", "checkpoint", "adapters"]
"""What engines get: all weights by the names of the model, or by those of a checkpoint on disk; or adapters only."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The policy of a run before it is loaded; picklable.

    Example: PolicySpec(path="Qwen/Qwen3-8B", revision="main", dtype="bfloat16", fp32_head=True, lora=None, seed=0,
                        sent="checkpoint")
    """

    path: str
    """Directory, or name on the hub."""
    revision: str
    """Branch, tag or commit, for a name on the hub."""
    dtype: str
    """Type of the forward pass, such as bfloat16."""
    fp32_head: bool
    """Whether the LM head computes in FP32."""
    lora: Lora | None
    """Adapters that are trained in place of the weights."""
    seed: int
    """Seed of the adapters' first values."""
    sent: SentWeights
    """What engines get."""

    def load(self, device: str) -> Policy:
        """Return the policy on a device, without adapters.

        Raises:
            ConfigError: From `load_policy`.
        """
        from scalerl.training.models.policy import load_policy

        return load_policy(self.path, revision=self.revision, device=device, dtype=self.dtype, fp32_head=self.fp32_head)

    def adapted(self, policy: Policy) -> Policy:
        """Return the policy to train: the given one, or a LoraPolicy made from it.

        Raises:
            ConfigError: From `LoraPolicy` and `check_names`.
        """
        if self.lora is None:
            return policy
        from scalerl.training.models.lora import LoraPolicy

        adapted = LoraPolicy(policy, self.lora, self.seed)
        if self.sent == "adapters":
            adapted.check_names()
        return adapted


def sent_weights(
    policy: Policy, sent: SentWeights, gather: Callable[[Tensor], Tensor] = lambda weight: weight.detach()
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that engines get, by the names that they expect, in a fixed order.

    Args:
        policy: The trained policy.
        sent: What engines get.
        gather: Function that returns a weight as a whole, if the model is sharded.
    """
    from scalerl.training.models.lora import LoraPolicy
    from scalerl.training.models.weights import checkpoint_weights

    if sent == "adapters":
        assert isinstance(policy, LoraPolicy), type(policy)
        return policy.adapters(gather)
    weights = policy.weights(gather)
    return checkpoint_weights(policy.model, weights) if sent == "checkpoint" else weights
