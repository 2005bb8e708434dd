"""The batch of an update: `collate` pads the rollouts, and `TrainBatch` adds what the recipe decided about them.

Legend: P prompts, G rollouts per prompt, N = P x G rollouts, B rows (sequences: one of each rollout, or several with
agents), T tokens of the longest prompt plus completion, L layers with experts, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from scalerl.core.types import Rollout, ScoredGroup
from scalerl.training.engines.replay import flat_nuclei
from scalerl.training.models.routing import UNKNOWN


@dataclass(frozen=True, slots=True)
class RolloutTensors:
    """Rollouts of one update, padded at the end.

    Example (two prompts of 2 tokens and 1, two rollouts each; 8 was injected):
        tokens_BT         [[5, 6, 7, 8, 9], [5, 6, 4, 0, 0], [1, 2, 3, 0, 0], [1, 1, 0, 0, 0]]
        sampled_BT        [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
        behavior_BT       [[0, 0, -0.1, 0, -0.3], [0, 0, -0.1, 0, 0], ...]
        version_BT        [[0, 0, 3, 0, 3], [0, 0, 3, 0, 0], ...]
        length_B          [5, 3, 3, 2]
        prompt_length_B   [2, 2, 1, 1]
        prompt_B          [0, 0, 1, 1]
        rollout_B         [0, 1, 2, 3]
        shared_B          [0, 0, 1, 1]
        truncated_B       [False, False, False, False]
        interrupted_B     [True, False, False, False]
        rewards_PG        [[1.0, -1.0], [-1.0, 1.0]]
        passed_PG         [[True, False], [False, True]]
        counted_PG        [[True, True], [True, True]]
        sampled_PG        [[2, 1], [2, 1]]
    """

    tokens_BT: Tensor
    """Prompt, then completion, then padding with 0."""
    sampled_BT: Tensor
    """Completion tokens that the policy sampled (not injected, not padding)."""
    behavior_BT: Tensor
    """Log-probability of each sampled token when it was sampled; 0 elsewhere."""
    version_BT: Tensor
    """Version of the weights that sampled each token; 0 for tokens that were not sampled."""
    context_BT: Tensor
    """Oldest version that sampled the token or one before it in its rollout; 0 for tokens that were not sampled. A swap
    keeps the cache, so a token is of one version only if its whole context is: each token's keys and values, and those
    of the prompt, were computed with the weights that sampled the next token."""
    prompt_length_B: Tensor
    """Number of prompt tokens."""
    length_B: Tensor
    """Number of prompt and completion tokens."""
    prompt_B: Tensor
    """Index of each rollout's prompt."""
    rollout_B: Tensor
    """Index, in the order of rewards_PG, of the rollout of each row: rows are sequences, and the rollouts of agents may
    have several. Otherwise 0, 1, 2, ..."""
    shared_B: Tensor
    """A number for each sequence of prompt tokens; equal ones are next to each other. Rows of one prompt share one,
    unless they have prompts of their own."""
    truncated_B: Tensor
    """Sequences that ended at a limit of length or turns."""
    interrupted_B: Tensor
    """Sequences of which thinking was ended by the inserted phrase."""
    rewards_PG: Tensor
    """Rewards from the verifier or reward function."""
    passed_PG: Tensor
    """Rollouts that passed; a truncated one has only if its environment gave a score."""
    counted_PG: Tensor
    """Rollouts with a reward; the others carry no loss, and their reward means nothing."""
    sampled_PG: Tensor
    """Tokens sampled in the longest turn of each rollout, the number that the limit of `recipe.length` applies to.
    Without an environment, a rollout is one turn."""
    experts_BTLK: Tensor | None = None
    """Experts that the engine used for each token, int16; -1 if not recorded. None if no token has any."""
    nucleus: tuple[Tensor, Tensor] | None = None
    """(place among the B x T tokens, id) of every id that a token could be under top-p, where the policy's
    probabilities are normalized over the same ids; None without top-p."""

    def __post_init__(self) -> None:
        shape = self.tokens_BT.shape
        assert len(shape) == 2, shape
        for tokenwise_BT in (self.sampled_BT, self.behavior_BT, self.version_BT, self.context_BT):
            assert tokenwise_BT.shape == shape, (tokenwise_BT.shape, shape)
        prompts = (self.prompt_length_B, self.prompt_B, self.shared_B)
        for rolloutwise_B in (self.length_B, *prompts, self.rollout_B, self.truncated_B, self.interrupted_B):
            assert rolloutwise_B.shape == shape[:1], (rolloutwise_B.shape, shape)
        for scores_PG in (self.rewards_PG, self.passed_PG, self.counted_PG, self.sampled_PG):
            assert scores_PG.shape == self.rewards_PG.shape, (scores_PG.shape, self.rewards_PG.shape)
        assert self.rewards_PG.ndim == 2 and self.rewards_PG.numel() <= shape[0], (self.rewards_PG.shape, shape)
        experts = self.experts_BTLK
        assert experts is None or (experts.ndim == 4 and experts.shape[:2] == shape), (experts, shape)
        assert self.nucleus is None or self.nucleus[0].shape == self.nucleus[1].shape

    @classmethod
    def without_rewards(
        cls,
        tokens_BT: Tensor,
        length_B: Tensor,
        *,
        behavior_BT: Tensor | None = None,
        prompt_B: Tensor | None = None,
        prompt_length_B: Tensor | None = None,
    ) -> Self:
        """Return rollouts of tokens that nobody sampled or scored, for checks, estimates and measurements.

        Args:
            tokens_BT: Prompt, then completion, then padding.
            length_B: Number of prompt and completion tokens.
            behavior_BT: Log-probabilities under the policy that is said to have sampled them; zeros by default.
            prompt_B: A number for each prompt, equal for its rollouts; by default each rollout has its own prompt.
            prompt_length_B: Number of prompt tokens; 1 by default.
        """
        rows = len(tokens_BT)
        prompt_B = torch.arange(rows) if prompt_B is None else prompt_B
        prompt_length_B = torch.ones(rows, dtype=torch.long) if prompt_length_B is None else prompt_length_B
        position_T = torch.arange(tokens_BT.shape[1])
        sampled_BT = (position_T >= prompt_length_B[:, None]) & (position_T < length_B[:, None])
        versions_BT, nothing_B = torch.zeros(tokens_BT.shape, dtype=torch.int32), torch.zeros(rows, dtype=torch.bool)
        return cls(
            tokens_BT=tokens_BT,
            sampled_BT=sampled_BT,
            behavior_BT=torch.zeros(tokens_BT.shape) if behavior_BT is None else behavior_BT,
            version_BT=versions_BT,
            context_BT=versions_BT,
            prompt_length_B=prompt_length_B,
            length_B=length_B,
            prompt_B=prompt_B,
            rollout_B=torch.arange(rows),
            shared_B=prompt_B,
            truncated_B=nothing_B,
            interrupted_B=nothing_B,
            rewards_PG=torch.zeros(rows, 1),
            passed_PG=nothing_B[:, None],
            counted_PG=nothing_B[:, None],
            sampled_PG=(length_B - prompt_length_B)[:, None],
        )

    def share_of_rollouts(self, state_B: Tensor) -> float:
        """Return the share of the rollouts of which any sequence has a state."""
        has_N = torch.zeros(self.rewards_PG.numel()).index_add_(0, self.rollout_B, state_B.float())
        return float((has_N > 0).float().mean())

    @property
    def completion_tokens_PG(self) -> Tensor:
        """Completion lengths in tokens, all sequences of a rollout together."""
        counts_B = self.length_B - self.prompt_length_B
        counts_N = torch.zeros(self.rewards_PG.numel(), dtype=counts_B.dtype).index_add_(0, self.rollout_B, counts_B)
        return counts_N.view(self.rewards_PG.shape)


def collate(groups: Sequence[ScoredGroup]) -> RolloutTensors:
    """Pad the rollouts of a batch of groups into tensors."""
    rows = list(rows_of(groups))
    of_rollout = [number for _, number, _ in rows]
    rollouts = [(p, sequence.after(groups[p].group.visit.prompt), sequence) for p, _, sequence in rows]
    lengths = [len(prompt) + len(rollout) for _, prompt, rollout in rollouts]
    shape = (len(rollouts), max(lengths))
    tokens, sampled = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    behavior, versions, contexts = (np.zeros(shape, kind) for kind in (np.float32, np.int32, np.int32))
    for b, (_, prompt, rollout) in enumerate(rollouts):
        start, end = len(prompt), lengths[b]
        tokens[b, :start], tokens[b, start:end] = prompt, rollout.tokens
        sampled[b, start:end] = rollout.sampled
        behavior[b, start:end] = rollout.logps * rollout.sampled
        versions[b, start:end] = rollout.versions * rollout.sampled
        contexts[b, start:end] = np.minimum.accumulate(rollout.versions) * rollout.sampled
    with_start = [(len(prompt), rollout) for _, prompt, rollout in rollouts]
    return RolloutTensors(
        tokens_BT=torch.from_numpy(tokens),
        sampled_BT=torch.from_numpy(sampled),
        behavior_BT=torch.from_numpy(behavior),
        version_BT=torch.from_numpy(versions),
        context_BT=torch.from_numpy(contexts),
        prompt_length_B=torch.tensor([len(prompt) for _, prompt, _ in rollouts]),
        length_B=torch.tensor(lengths),
        prompt_B=torch.tensor([p for p, _, _ in rollouts]),
        rollout_B=torch.tensor(of_rollout),
        shared_B=torch.tensor(_shared([(p, prompt) for p, prompt, _ in rollouts])),
        truncated_B=torch.tensor([r.truncated for _, _, r in rollouts]),
        interrupted_B=torch.tensor([r.interrupted for _, _, r in rollouts]),
        rewards_PG=torch.tensor([[score.reward for score in group.scores] for group in groups]),
        passed_PG=torch.tensor([[score.passed for score in group.scores] for group in groups]),
        counted_PG=torch.tensor([[score.counted for score in group.scores] for group in groups]),
        sampled_PG=torch.tensor([[_longest_turn(rollout) for rollout in group.group.rollouts] for group in groups]),
        experts_BTLK=_experts(with_start, shape[1]),
        nucleus=flat_nuclei(with_start, shape[1]),
    )


def rows_of(groups: Sequence[ScoredGroup]) -> Iterator[tuple[int, int, Rollout]]:
    """Yield the sequences of a batch in the order of rows, with the indices of prompt and rollout."""
    for p, group in enumerate(groups):
        numbered = enumerate(group.group.rollouts, p * len(group.group.rollouts))
        rows = [(number, sequence) for number, rollout in numbered for sequence in rollout.sequences]
        if any(sequence.prompt is not None for _, sequence in rows):
            rows = _by_prompt(rows)
        yield from ((p, number, sequence) for number, sequence in rows)


def _by_prompt(rows: Sequence[tuple[int, Rollout]]) -> list[tuple[int, Rollout]]:
    """Return rows with those of equal prompts next to each other, which then share its computation."""
    places: dict[tuple[int, ...] | None, int] = {}
    return sorted(rows, key=lambda row: places.setdefault(row[1].prompt, len(places)))


def _shared(prompts: Sequence[tuple[int, tuple[int, ...]]]) -> list[int]:
    """Return a number for each run of equal entries."""
    changes = [a is not b and a != b for a, b in pairwise(prompts)]
    return list(accumulate(changes, initial=0))


def _longest_turn(rollout: Rollout) -> int:
    return rollout.outcome.longest if rollout.outcome else int(rollout.sampled.sum())


def _experts(rollouts: Sequence[tuple[int, Rollout]], width: int) -> Tensor | None:
    """Return the recorded experts at the positions of the tokens that they processed, one before the predicted tokens.

    Args:
        rollouts: Pairs of the prompt's length in tokens and the rollout.
        width: T.
    """
    recorded = next((rollout.experts for _, rollout in rollouts if rollout.experts is not None), None)
    if recorded is None:
        return None
    out = np.full((len(rollouts), width, *recorded.shape[1:]), UNKNOWN, np.int16)
    for b, (start, rollout) in enumerate(rollouts):
        if rollout.experts is not None:
            out[b, start - 1 : start - 1 + len(rollout)] = rollout.experts
    return torch.from_numpy(out)


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What an update depends on besides its rollouts and the recipe.

    Example: StepSettings(version=120, idle_cores=False)
    """

    version: int = 0
    """Version of the weights that are trained, which is the number of earlier updates."""
    idle_cores: bool = True
    """Whether the generators recently left CPU cores idle, which helpers of the trainer may then use."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The inputs of one update. The token weights sum to one, so any split gives the same gradient.

    Example (the rollouts in the example of `RolloutTensors`; by the recipe's defaults):
        rollouts       RolloutTensors(...)
        advantages_B   [1.0, -1.0, -1.0, 1.0]
        trained_BT     [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
        weights_BT     [[0, 0, 1/6, 0, 1/6], [0, 0, 1/6, 0, 0], [0, 1/6, 1/6, 0, 0], ...]
        settings       StepSettings(version=4, idle_cores=True)
    """

    rollouts: RolloutTensors
    advantages_B: Tensor
    """One advantage per rollout; or [B, T], one per token, with `recipe.turn_credit`."""
    trained_BT: Tensor
    """Tokens that carry loss; never the first of a row."""
    weights_BT: Tensor
    """Share of each token in the loss; 0 where `trained_BT` is false."""
    settings: StepSettings = StepSettings()

    def __post_init__(self) -> None:
        shape = self.rollouts.tokens_BT.shape
        assert self.trained_BT.shape == self.weights_BT.shape == shape, (self.trained_BT.shape, shape)
        assert self.advantages_B.shape in (shape[:1], shape), (self.advantages_B.shape, shape)
        assert self.trained_BT.dtype == torch.bool, self.trained_BT.dtype

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
        order = order[self.rollouts.length_B[order].argsort(stable=True, descending=True)]
        ends = self.rollouts.length_B[order].cumsum(0)
        start = 0
        while start < len(order):
            width = int(self.rollouts.length_B[order[start]])
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
        trained_rows = self.trained_B.nonzero()[:, 0]
        trained_rows = trained_rows[self.rollouts.length_B[trained_rows].argsort(stable=True, descending=True)]
        lengths, prompts = self.rollouts.length_B.tolist(), self.rollouts.prompt_length_B.tolist()
        by_prompt: dict[int, list[int]] = {}  # in the order of their longest rollouts
        for row, prompt in zip(trained_rows.tolist(), self.rollouts.shared_B[trained_rows].tolist(), strict=True):
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

    def shared_tokens(self) -> int:
        """Return the number of tokens to compute if each prompt is computed once."""
        trained_B, rollouts = self.trained_B, self.rollouts
        lengths_b = rollouts.prompt_length_B[trained_B]
        length_of_prompt = dict(zip(rollouts.shared_B[trained_B].tolist(), lengths_b.tolist(), strict=True))
        return int((rollouts.length_B[trained_B] - lengths_b).sum()) + sum(length_of_prompt.values())
