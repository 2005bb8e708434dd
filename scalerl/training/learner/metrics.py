"""Metrics of an update: sums over its trained tokens, by name, and the columns of metrics.jsonl made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from scalerl.training.recipe.losses import LOG_RATIO_LIMIT


@dataclass(frozen=True, slots=True)
class StepStats:
    """Metrics of one update, as columns of metrics.jsonl; documented in docs/metrics.md.

    Example: StepStats(loss=-0.002, trained_tokens=6100, log_ratio_mean=0.0003, log_ratio_min=-0.9, log_ratio_max=0.7,
                       capped_share=0.0, entropy=0.41, grad_norm=0.32, learning_rate=6e-5)
    """

    loss: float
    trained_tokens: int
    log_ratio_mean: float
    log_ratio_min: float
    log_ratio_max: float
    capped_share: float
    entropy: float
    grad_norm: float
    """L2 norm before clipping; 0 for a step without trained tokens."""
    learning_rate: float
    """Learning rate of this step; 0 for a step without trained tokens."""
    router_disagreement: float | None = None
    """Share of trained tokens and layers whose experts differ, for mixtures whose engine records experts."""
    log_ratio_fresh: float | None = None
    """Mean |log ratio| of trained tokens that only the current weights computed, context included, nats; None without
    such tokens. The next: of the others."""
    log_ratio_stale: float | None = None
    effective_samples: float | None = None
    """Effective sample size of the ratios as a share of the tokens, (sum r)^2 / (n sum r^2) (Kong 1992)."""
    corrected_share: float = 0.0
    """Share of trained tokens that `recipe.mismatch` masked or truncated."""
    kl: float | None = None
    """Mean estimate of the KL divergence from the reference, nats, if the loss has this term."""

    def to_dict(self) -> dict[str, Any]:
        """Return the columns without those that do not apply to the model."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSums:
    """Sums and extremes over trained tokens: of a micro-batch, a rank or an update. Without tokens, all are 0.

    Example: TokenSums(tokens=6100.0, loss=-0.002, log_ratio=1.8, log_ratio_min=-0.9, log_ratio_max=0.7, capped=0.0,
                       entropy=2500.0, routed=0.0, rerouted=0.0, stale=4100.0, fresh_gap=0.004, stale_gap=61.0,
                       ratio=6104.0, ratio_squared=6150.0, corrected=0.0)
    """

    tokens: float = 0.0
    loss: float = 0.0
    """The share of the tokens in the loss of the update; all other sums are over tokens with equal weights."""
    log_ratio: float = 0.0
    """Policy minus engine, nats."""
    log_ratio_min: float = field(default=0.0, metadata={"over parts": min})
    """At most 0."""
    log_ratio_max: float = field(default=0.0, metadata={"over parts": max})
    """At least 0."""
    capped: float = 0.0
    """Tokens whose ratio was capped."""
    entropy: float = 0.0
    """Nats."""
    routed: float = 0.0
    """Tokens x layers whose experts the engine recorded."""
    rerouted: float = 0.0
    """Tokens x layers whose experts differ from the recorded ones."""
    stale: float = 0.0
    """Tokens that older weights sampled, or whose context they computed."""
    fresh_gap: float = 0.0
    """Sum of |log ratio| over the tokens that are not stale."""
    stale_gap: float = 0.0
    """Sum of |log ratio| over the stale tokens."""
    ratio: float = 0.0
    ratio_squared: float = 0.0
    corrected: float = 0.0
    """Tokens that `recipe.mismatch` masked or truncated."""
    referenced: float = 0.0
    """Tokens whose log-probability under the reference is known."""
    kl: float = 0.0
    """Estimates of the KL divergence from the reference over these tokens, nats."""

    @classmethod
    def of(cls, parts: Sequence[TokenSums]) -> TokenSums:
        """Return the sums and extremes over parts, such as micro-batches or ranks, added in order."""
        columns = {name: [getattr(part, name) for part in (cls(), *parts)] for name in SUM_NAMES}
        return cls(**{name: OVER_PARTS[name](values) for name, values in columns.items()})

    def means(self) -> dict[str, Any]:
        """Return means and extremes by their names in StepStats."""
        n, fresh = max(1.0, self.tokens), self.tokens - self.stale
        return {
            "loss": self.loss,
            "trained_tokens": int(self.tokens),
            "log_ratio_mean": self.log_ratio / n,
            "log_ratio_min": self.log_ratio_min,
            "log_ratio_max": self.log_ratio_max,
            "capped_share": self.capped / n,
            "entropy": self.entropy / n,
            "router_disagreement": self.rerouted / self.routed if self.routed else None,
            "log_ratio_fresh": self.fresh_gap / fresh if fresh else None,
            "log_ratio_stale": self.stale_gap / self.stale if self.stale else None,
            "effective_samples": self.ratio**2 / (n * self.ratio_squared) if self.ratio_squared else None,
            "corrected_share": self.corrected / n,
            "kl": self.kl / self.referenced if self.referenced else None,
        }


SUM_NAMES = tuple(part.name for part in fields(TokenSums))
"""The sums in the order in which a tensor holds them, between a device or a rank and TokenSums."""

OVER_PARTS: dict[str, Callable[[Sequence[float]], float]] = {
    part.name: part.metadata.get("over parts", sum) for part in fields(TokenSums)
}
"""How the value over several parts is made from theirs."""


def packed_values(values: Mapping[str, Tensor | float], device: torch.device) -> Tensor:
    """Return one float64 tensor on a device of values by name; the host does not wait. Sums without a value are 0."""
    assert values.keys() <= set(SUM_NAMES), values.keys() - set(SUM_NAMES)
    out = torch.zeros(len(SUM_NAMES), dtype=torch.float64, device=device)
    for name, value in values.items():
        # `out[place] = value` would copy a number from the host and wait for the GPU
        place = out[SUM_NAMES.index(name)]
        place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)
    return out


def summed_values(parts: Sequence[Tensor]) -> TokenSums:
    """Wait for the device and return the sums over parts that `packed_values` made."""
    rows = torch.stack(list(parts)).tolist() if parts else []
    return TokenSums.of([TokenSums(**dict(zip(SUM_NAMES, row, strict=True))) for row in rows])


@dataclass(slots=True)
class TokenMeter:
    """The sums of micro-batches, which stay on the device until they are read together."""

    parts: list[Tensor] = field(default_factory=list)
    """One tensor of `packed_values` for each micro-batch."""

    def add(
        self,
        *,
        loss: Tensor,
        log_ratio_n: Tensor,
        capped_n: Tensor,
        entropy_n: Tensor,
        stale_n: Tensor,
        corrected_n: Tensor,
        differs_nL: Tensor | None = None,
        kl_n: Tensor | None = None,
    ) -> None:
        """Add one micro-batch: its share of the loss, and the other values for each of its n trained tokens.

        Args:
            loss: The micro-batch's share of the loss.
            log_ratio_n: Policy minus engine, nats.
            capped_n: Whether the ratio was capped.
            entropy_n: Nats.
            stale_n: Whether older weights sampled the token or computed its context.
            corrected_n: Whether the correction for mismatch masked or truncated it.
            differs_nL: Whether the router's choice differs from the engine's, for each layer; None if not recorded.
            kl_n: Estimate of the KL divergence from the reference, nats; None without one.
        """
        shape = log_ratio_n.shape
        assert len(shape) == 1 and shape == capped_n.shape == entropy_n.shape == stale_n.shape == corrected_n.shape
        gap_n, ratio_n = log_ratio_n.abs(), log_ratio_n.double().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        values: dict[str, Tensor | float] = {
            "tokens": len(log_ratio_n),
            "loss": loss.detach(),
            "log_ratio": log_ratio_n.sum(),
            "log_ratio_min": log_ratio_n.min(),
            "log_ratio_max": log_ratio_n.max(),
            "capped": capped_n.sum(),
            "entropy": entropy_n.sum(),
            "stale": stale_n.sum(),
            "fresh_gap": (gap_n * ~stale_n).sum(),
            "stale_gap": (gap_n * stale_n).sum(),
            "ratio": ratio_n.sum(),
            "ratio_squared": (ratio_n**2).sum(),
            "corrected": corrected_n.sum(),
        }
        if differs_nL is not None:
            values |= {"routed": differs_nL.numel(), "rerouted": differs_nL.sum()}
        if kl_n is not None:
            values |= {"referenced": len(kl_n), "kl": kl_n.sum()}
        self.parts.append(packed_values(values, loss.device))

    def read(self) -> TokenSums:
        """Wait for the device and return the sums."""
        return summed_values(self.parts)
