"""What one step did, as a row of metrics.jsonl; the names are documented in docs/metrics.md. It computes no losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from scalerl.train.batch import Batch


@dataclass(slots=True)
class TokenMeter:
    """Sums over the trained tokens of a step's micro-batches."""

    tokens: int = 0
    loss: float = 0.0
    _sums: dict[str, float] = field(default_factory=lambda: {"log_ratio": 0.0, "capped": 0.0, "entropy": 0.0})
    _extremes: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, loss: Tensor, log_ratio_N: Tensor, capped_N: Tensor, entropy_N: Tensor) -> None:
        """Take in one micro-batch: its share of the loss, and per trained token the rest."""
        self.tokens += len(log_ratio_N)
        self.loss += float(loss.detach())
        self._sums["log_ratio"] += float(log_ratio_N.sum())
        self._sums["capped"] += float(capped_N.sum())
        self._sums["entropy"] += float(entropy_N.sum())
        low, high = self._extremes
        self._extremes = [min(low, float(log_ratio_N.min())), max(high, float(log_ratio_N.max()))]

    def row(self) -> dict[str, Any]:
        """Return means and extremes."""
        n = max(1, self.tokens)
        return {
            "loss": self.loss,
            "trained_tokens": self.tokens,
            "log_ratio_mean": self._sums["log_ratio"] / n,
            "log_ratio_min": self._extremes[0],
            "log_ratio_max": self._extremes[1],
            "capped_share": self._sums["capped"] / n,
            "entropy": self._sums["entropy"] / n,
        }


def staleness(batch: Batch, now: int) -> dict[str, float]:
    """Return the age in updates of the batch's sampled tokens."""
    age_N = (now - batch.version_BT[batch.sampled_BT]).float()
    return {"staleness_mean": float(age_N.mean()), "staleness_max": float(age_N.max())}


def rollout_row(batch: Batch, rewards_PG: Tensor, passed_PG: Tensor, keep_P: Tensor) -> dict[str, Any]:
    """Return what the step's rollouts were like."""
    completion_B = (batch.length_B - batch.prompt_length_B).float()
    return {
        "pass_rate": float(passed_PG.float().mean()),
        "reward": float(rewards_PG.mean()),
        "prompts": len(keep_P),
        "kept_prompts": int(keep_P.sum()),
        "truncation_rate": float(batch.truncated_B.float().mean()),
        "interruption_rate": float(batch.interrupted_B.float().mean()),
        "completion_tokens_mean": float(completion_B.mean()),
        "completion_tokens_max": int(completion_B.max()),
    }
