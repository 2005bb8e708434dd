"""The contract between the loop and a learner, which makes one update from one batch.

tests/train/test_learner_contract.py tests every learner. Legend: B rollouts, T tokens of the longest prompt plus
completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scalerl.config.mismatch import Mismatch, NoCorrection
from scalerl.core.errors import RunError
from scalerl.learn.losses import LOG_RATIO_LIMIT
from scalerl.rollouts.replay import Difference
from scalerl.rollouts.weights import WeightChannel
from scalerl.types import Rollout

PromptedRollout = tuple[tuple[int, ...], Rollout]
"""(tokens of the prompt, rollout)."""


class BadGradient(RunError):
    """The loss, the gradient or a weight is not finite; the weights were not changed."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The inputs of one update. The token weights sum to one, so any split gives the same gradient.

    Example (two prompts, two rollouts each, up to 7 tokens): tokens_BT has shape [4, 7].
    """

    tokens_BT: Tensor
    """Prompt, then completion, then padding with 0."""
    length_B: Tensor
    """Number of prompt and completion tokens."""
    behavior_BT: Tensor
    """Log-probability of each sampled token when it was sampled; 0 elsewhere."""
    advantages_B: Tensor
    """One advantage per rollout."""
    trained_BT: Tensor
    """Tokens that carry loss; never the first of a row."""
    weights_BT: Tensor
    """Share of each token in the loss; 0 where `trained_BT` is false."""
    experts_BTLK: Tensor | None = None
    """For mixtures: experts that the engine used for each token, int16; -1 if not recorded."""
    replay_experts: bool = False
    """Whether the forward pass uses these experts (`recipe.routing_replay`); otherwise they are only compared."""
    mismatch: Mismatch = field(default_factory=NoCorrection)
    """Correction for differences between the engine's probabilities and the policy's (`recipe.mismatch`)."""
    stale_BT: Tensor | None = None
    """Tokens that older weights than those in training sampled, or whose context they computed; None: no token."""
    nucleus: tuple[Tensor, Tensor] | None = None
    """Under top-p: (place among the B x T tokens, id) of every id that could be sampled; the policy's probabilities are
    normalized over the same ids."""
    prompt_B: Tensor | None = None
    """Index of each rollout's prompt, if known; rollouts of one prompt may then share its computation."""
    prompt_length_B: Tensor | None = None
    """Number of tokens of each rollout's prompt."""
    idle_cores: bool = True
    """Whether the generators recently left CPU cores idle, which helpers of the trainer may then use."""

    def __post_init__(self) -> None:
        shape = self.tokens_BT.shape
        assert shape == self.behavior_BT.shape == self.trained_BT.shape == self.weights_BT.shape, shape
        assert self.length_B.shape == self.advantages_B.shape == shape[:1], shape

    @property
    def trained_B(self) -> Tensor:
        """Rollouts with at least one trained token."""
        return self.trained_BT.any(dim=1)

    def micro_batches(
        self, budget: int, among: Tensor | None = None, packed: bool = False
    ) -> Iterator[tuple[Tensor, int]]:
        """Yield (rows, width) of micro-batches of at most `budget` tokens, with rows of similar length together.

        Args:
            budget: Tokens of one micro-batch, including padding (rows x width) unless packed. A longer rollout forms a
                separate micro-batch.
            among: Rows to use, such as those of one rank; None for all that have trained tokens.
            packed: Whether to count tokens without padding.
        """
        order = self.trained_B.nonzero()[:, 0] if among is None else among
        order = order[self.length_B[order].argsort(stable=True, descending=True)]
        ends = self.length_B[order].cumsum(0)
        start = 0
        while start < len(order):
            width = int(self.length_B[order[start]])
            before = int(ends[start]) - width
            fitting = int((ends <= before + budget).sum()) - start if packed else budget // width
            rows = order[start : start + max(1, fitting)]
            yield rows, width
            start += len(rows)

    def shared_micro_batches(self, budget: int) -> Iterator[tuple[Tensor, int]]:
        """Yield (rows, width) of micro-batches of at most `budget` tokens, ordered by prompt, each prompt counted once.

        Args:
            budget: Tokens of one micro-batch; a prompt is computed again in every micro-batch with rollouts of it.
        """
        assert self.prompt_B is not None and self.prompt_length_B is not None
        kept = self.trained_B.nonzero()[:, 0]
        kept = kept[self.length_B[kept].argsort(stable=True, descending=True)]
        lengths, prompts = self.length_B.tolist(), self.prompt_length_B.tolist()
        by_prompt: dict[int, list[int]] = {}  # in the order of their longest rollouts
        for row, prompt in zip(kept.tolist(), self.prompt_B[kept].tolist(), strict=True):
            by_prompt.setdefault(prompt, []).append(row)
        rows: list[int] = []
        used = 0
        for group in by_prompt.values():
            for place, row in enumerate(group):
                new = lengths[row] - (prompts[row] if place and rows else 0)
                if rows and used + new > budget:
                    yield torch.tensor(rows), max(lengths[r] for r in rows)
                    rows, used, new = [], 0, lengths[row]
                rows.append(row)
                used += new
        if rows:
            yield torch.tensor(rows), max(lengths[r] for r in rows)

    def shared_tokens(self) -> int | None:
        """Return the number of tokens to compute if each prompt is computed once; None if prompts are not known."""
        if self.prompt_B is None or self.prompt_length_B is None:
            return None
        kept = self.trained_B
        once = dict(zip(self.prompt_B[kept].tolist(), self.prompt_length_B[kept].tolist(), strict=True))
        return int((self.length_B - self.prompt_length_B)[kept].sum()) + sum(once.values())


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

    def to_dict(self) -> dict[str, Any]:
        """Return the columns without those that do not apply to the model."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class TokenSums(NamedTuple):
    """Sums and extremes over the trained tokens of an update.

    Example: TokenSums(tokens=6100.0, loss=-0.002, log_ratio=1.8, capped=0.0, entropy=2500.0, routed=0.0, rerouted=0.0,
                       stale=4100.0, fresh_gap=0.004, stale_gap=61.0, ratio=6104.0, square=6150.0, corrected=0.0,
                       low=-0.9, high=0.7)
    """

    tokens: float
    loss: float
    log_ratio: float
    capped: float
    entropy: float
    routed: float
    """Trained tokens x layers whose experts the engine recorded, and how many of them differ."""
    rerouted: float
    stale: float
    """Tokens that older weights sampled, or whose context they computed."""
    fresh_gap: float
    """Sum of |log ratio| over the other tokens, and over these."""
    stale_gap: float
    ratio: float
    square: float
    """Sum of the squared ratios."""
    corrected: float
    low: float
    """Smallest log ratio, at most 0."""
    high: float

    @classmethod
    def of(cls, parts: Sequence[Sequence[float]]) -> TokenSums:
        """Return the sums and extremes of parts with these fields, such as micro-batches or ranks, added in order."""
        *sums, lows, highs = zip([0.0] * len(cls._fields), *parts, strict=True)
        return cls._make([*map(sum, sums), min(lows), max(highs)])

    def means(self) -> dict[str, Any]:
        """Return means and extremes by their names in StepStats."""
        n, fresh = max(1.0, self.tokens), self.tokens - self.stale
        return {
            "loss": self.loss,
            "trained_tokens": int(self.tokens),
            "log_ratio_mean": self.log_ratio / n,
            "log_ratio_min": self.low,
            "log_ratio_max": self.high,
            "capped_share": self.capped / n,
            "entropy": self.entropy / n,
            "router_disagreement": self.rerouted / self.routed if self.routed else None,
            "log_ratio_fresh": self.fresh_gap / fresh if fresh else None,
            "log_ratio_stale": self.stale_gap / self.stale if self.stale else None,
            "effective_samples": self.ratio**2 / (n * self.square) if self.square else None,
            "corrected_share": self.corrected / n,
        }


@dataclass(slots=True)
class TokenMeter:
    """The sums of micro-batches, which stay on the device until they are read together."""

    parts: list[Tensor] = field(default_factory=list)
    """For each micro-batch the fields of TokenSums, float64."""

    def add(
        self,
        loss: Tensor,
        log_ratio_N: Tensor,
        capped_N: Tensor,
        entropy_N: Tensor,
        stale_N: Tensor,
        corrected_N: Tensor,
        differs_NL: Tensor | None = None,
    ) -> None:
        """Add one micro-batch: its share of the loss, and the other values for each trained token.

        Args:
            loss: The micro-batch's share of the loss.
            log_ratio_N: Policy minus engine, nats.
            capped_N: Whether the ratio was capped.
            entropy_N: Nats.
            stale_N: Whether older weights sampled the token or computed its context.
            corrected_N: Whether the correction for mismatch masked or truncated it.
            differs_NL: Whether the router's choice differs from the engine's, for each layer; None if not recorded.
        """
        routed = (0.0, 0.0) if differs_NL is None else (differs_NL.numel(), differs_NL.sum())
        gap_N, ratio_N = log_ratio_N.abs(), log_ratio_N.double().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        by_age = (stale_N.sum(), (gap_N * ~stale_N).sum(), (gap_N * stale_N).sum())
        spread = (ratio_N.sum(), (ratio_N**2).sum(), corrected_N.sum())
        values = (len(log_ratio_N), loss.detach(), log_ratio_N.sum(), capped_N.sum(), entropy_N.sum(), *routed)
        own = torch.zeros(len(TokenSums._fields), dtype=torch.float64, device=loss.device)
        for place, value in enumerate((*values, *by_age, *spread, log_ratio_N.min(), log_ratio_N.max())):
            # `own[place] = value` would copy a number from the host and wait for the GPU
            own[place].copy_(value) if isinstance(value, Tensor) else own[place].fill_(value)
        self.parts.append(own)

    def read(self) -> TokenSums:
        """Wait for the device and return the sums."""
        return TokenSums.of(torch.stack(self.parts).tolist() if self.parts else [])


class Learner(Protocol):
    """A policy in training."""

    updates: int
    """Number of completed updates, which is also the version of the weights."""

    def step(self, batch: TrainBatch) -> StepStats:
        """Perform one update: micro-batches, gradients accumulated in FP32, clipping and the optimizer step.

        A batch without trained tokens counts as an update and changes nothing.

        Raises:
            BadGradient: The loss or the gradient is not finite; the weights are unchanged.
        """

    def send(self, version: int, channel: WeightChannel) -> None:
        """Send all weights over a channel as `version`.

        Torch engines get the names of the model's parameters, vLLM those of a checkpoint on disk. The channel is used
        in the process that holds the weights, so they do not pass through the loop's process.
        """

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Recompute the log-probabilities of rollouts and compare those of the learner's version.

        Args:
            version: Version of the learner's weights.
            rollouts: Rollouts with their prompts. Those of other versions get log ratios but do not enter the
                difference.

        Returns:
            The difference; None if no rollout is of this version.
        """

    def save(self, directory: Path) -> None:
        """Write the learner's part of a checkpoint.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """

    def begin_save(self, directory: Path) -> Future[None]:
        """Do what `save` does, perhaps in a thread while training goes on; errors of writing are in the result.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """

    def load(self, directory: Path, updates: int) -> None:
        """Restore the state that `save` wrote after `updates` updates."""

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model; with `model.lora` also the adapters, to `adapter` next to it."""

    def notes(self) -> dict[str, str]:
        """Return what a user must know about how updates are computed, by key: that rows are padded, and why."""

    def watch(self) -> None:
        """Raise ProcessDied if a process of the learner has ended; called while the loop waits."""

    def close(self) -> None:
        """End the learner's processes, if it has any; nothing is saved."""
