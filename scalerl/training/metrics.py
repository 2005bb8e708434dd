"""Metrics of one step, as columns of metrics.jsonl; docs/metrics.md explains the names.

Legend: P prompts, G rollouts per prompt, B = P x G, T tokens; N trained tokens of a micro-batch, L layers with experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from scalerl.training.batch import RolloutTensors

_SUMS = ("log_ratio", "capped", "entropy", "routed", "rerouted")


@dataclass(slots=True)
class TokenMeter:
    """Sums over the trained tokens of a step's micro-batches."""

    tokens: int = 0
    loss: float = 0.0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    _extremes: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, loss: Tensor, log_ratio_N: Tensor, capped_N: Tensor, entropy_N: Tensor) -> None:
        """Add one micro-batch: its share of the loss, and the other values for each trained token."""
        self.tokens += len(log_ratio_N)
        self.loss += float(loss.detach())
        self._sums["log_ratio"] += float(log_ratio_N.sum())
        self._sums["capped"] += float(capped_N.sum())
        self._sums["entropy"] += float(entropy_N.sum())
        low, high = self._extremes
        self._extremes = [min(low, float(log_ratio_N.min())), max(high, float(log_ratio_N.max()))]

    def add_routing(self, differs_NL: Tensor) -> None:
        """Add, for each trained token and layer, whether the router's choice differs from the engine's."""
        self._sums["routed"] += differs_NL.numel()
        self._sums["rerouted"] += float(differs_NL.sum())

    @classmethod
    def merged(cls, meters: Sequence[TokenMeter]) -> TokenMeter:
        """Return one meter with the sums of several, such as those of the ranks."""
        return cls(
            tokens=sum(meter.tokens for meter in meters),
            loss=sum(meter.loss for meter in meters),
            _sums={name: sum(meter._sums[name] for meter in meters) for name in meters[0]._sums},
            _extremes=[min(meter._extremes[0] for meter in meters), max(meter._extremes[1] for meter in meters)],
        )

    def means(self) -> dict[str, Any]:
        """Return means and extremes by their names in StepStats."""
        n = max(1, self.tokens)
        return {
            "loss": self.loss,
            "trained_tokens": self.tokens,
            "log_ratio_mean": self._sums["log_ratio"] / n,
            "log_ratio_min": self._extremes[0],
            "log_ratio_max": self._extremes[1],
            "capped_share": self._sums["capped"] / n,
            "entropy": self._sums["entropy"] / n,
            "router_disagreement": self._sums["rerouted"] / self._sums["routed"] if self._sums["routed"] else None,
        }


def staleness(rollouts: RolloutTensors, trained_BT: Tensor, now: int, max_lag: int) -> dict[str, float]:
    """Return the staleness in updates of the batch's sampled tokens, and the share that was too old to carry loss."""
    age_N = (now - rollouts.version_BT[rollouts.sampled_BT]).float()
    trained_N = (now - rollouts.version_BT[trained_BT]).float()
    assert not len(trained_N) or float(trained_N.max()) <= max_lag, (float(trained_N.max()), max_lag)
    return {
        "staleness_mean": float(age_N.mean()),
        "staleness_max": float(age_N.max()),
        "stale_share": float((age_N > max_lag).float().mean()),
    }


def rollout_row(rollouts: RolloutTensors, rewards_PG: Tensor, keep_P: Tensor) -> dict[str, Any]:
    """Return the metrics of the step's rollouts."""
    tokens_PG = rollouts.completion_tokens_PG.float()
    return {
        "pass_rate": float(rollouts.passed_PG.float().mean()),
        "reward": float(rewards_PG.mean()),
        "prompts": len(keep_P),
        "kept_prompts": int(keep_P.sum()),
        "truncation_rate": float(rollouts.truncated_B.float().mean()),
        "interruption_rate": float(rollouts.interrupted_B.float().mean()),
        "completion_tokens_mean": float(tokens_PG.mean()),
        "completion_tokens_max": int(tokens_PG.max()),
    }
