"""Groups of rollouts as padded tensors, and their metrics as columns of metrics.jsonl (docs/metrics.md).

Legend: P prompts, G rollouts per prompt, B = P x G rollouts, T tokens of the longest prompt plus completion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.config.recipe import OffPolicy
from scalerl.models.routing import UNKNOWN
from scalerl.rollouts.replay import flat_nuclei
from scalerl.tasks.answers import FORMS
from scalerl.types import Rollout, ScoredGroup


@dataclass(frozen=True, slots=True)
class RolloutTensors:
    """Rollouts of one update, padded at the end.

    Example (two prompts, two rollouts each, up to 7 tokens): tokens_BT has shape [4, 7], and prompt_B is [0, 0, 1, 1].
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
    truncated_B: Tensor
    """Rollouts that reached their length limit."""
    interrupted_B: Tensor
    """Rollouts whose thinking was ended by the inserted phrase."""
    rewards_PG: Tensor
    """Rewards from the verifier or reward function."""
    passed_PG: Tensor
    """Rollouts that passed; a truncated rollout has not."""
    counted_PG: Tensor
    """Rollouts with a reward; the others carry no loss, and their reward means nothing."""
    sampled_PG: Tensor
    """Tokens sampled in the longest turn of each rollout, the number that the limit of `recipe.length` applies to.
    Without an environment, a rollout is one turn."""
    experts_BTLK: Tensor | None = None
    """Experts that the engine used for each token, int16; -1 if not recorded. None if no token has any."""
    nucleus: tuple[Tensor, Tensor] | None = None
    """(place among the B x T tokens, id) of every id that a token could be under top-p; None without top-p."""

    @property
    def completion_tokens_PG(self) -> Tensor:
        """Completion lengths in tokens."""
        return (self.length_B - self.prompt_length_B).view(self.rewards_PG.shape)


def collate(groups: Sequence[ScoredGroup]) -> RolloutTensors:
    """Pad the rollouts of a batch of groups into tensors."""
    rollouts = [(p, g.group.visit.prompt.tokens, r) for p, g in enumerate(groups) for r in g.group.rollouts]
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
        truncated_B=torch.tensor([r.truncated for _, _, r in rollouts]),
        interrupted_B=torch.tensor([r.interrupted for _, _, r in rollouts]),
        rewards_PG=torch.tensor([[score.reward for score in group.scores] for group in groups]),
        passed_PG=torch.tensor([[score.passed for score in group.scores] for group in groups]),
        counted_PG=torch.tensor([[score.counted for score in group.scores] for group in groups]),
        sampled_PG=torch.tensor([[_longest_turn(one) for one in group.group.rollouts] for group in groups]),
        experts_BTLK=_experts(with_start, shape[1]),
        nucleus=flat_nuclei(with_start, shape[1]),
    )


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


def why_untrained(rollouts: RolloutTensors, usable_BT: Tensor) -> str:
    """Return why a batch has no trained token, given the tokens that may carry loss before prompts are filtered."""
    usable_B, counted_B = usable_BT.any(dim=1), rollouts.counted_PG.view(-1)
    causes = {
        "without a reward": ~counted_B,
        "truncated": ~usable_B & counted_B & rollouts.truncated_B,
        "too old": ~usable_B & counted_B & ~rollouts.truncated_B,
    }
    counts = {cause: int(rollouts_B.sum()) for cause, rollouts_B in causes.items() if rollouts_B.any()}
    parts = ", ".join(f"{count} {cause}" for cause, count in counts.items())
    if not usable_B.any():
        return f"none of the {len(usable_B)} rollouts can carry loss ({parts})"
    rest = f" among the rollouts that can carry loss ({parts} of {len(usable_B)})" if parts else ""
    return f"no prompt had any variance in its rewards{rest}"


def staleness(rollouts: RolloutTensors, now: int, off_policy: OffPolicy) -> dict[str, float]:
    """Return the staleness in updates of the batch's sampled tokens, and the share that was too old to carry loss.

    Unless `off_policy` masks old tokens, the schedule must not let them arise; an engine must not report weights that
    it cannot have.
    """
    age_N, bound = (now - rollouts.version_BT[rollouts.sampled_BT]).float(), off_policy.max_lag
    low, high = float(age_N.min()), float(age_N.max())
    assert low >= 0 and (high <= bound or off_policy.masks), f"{low:g} to {high:g} updates old; the bound is {bound}"
    return {
        "staleness_mean": float(age_N.mean()),
        "staleness_max": high,
        "stale_share": float((age_N > bound).float().mean()),
    }


def environment_row(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the metrics of the step's rollouts with an environment, and the means of its own numbers."""
    ends = [rollout.outcome for group in groups for rollout in group.group.rollouts if rollout.outcome]
    told: dict[str, list[float]] = {
        "turns": [end.turns for end in ends],
        "tool_calls": [end.calls for end in ends],
        "observed_tokens": [end.observed for end in ends],
        "reply_wait_s": [end.waited_s for end in ends],
    }
    for end in ends:
        for name, value in end.metrics.items():
            told.setdefault(f"environment/{name}", []).append(value)
    return {name: sum(values) / len(values) for name, values in told.items() if values}


def answer_row(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return shares of the batch's answers: in the prompt (of the passes; NaN without one), by form, and unread."""
    passes = [score.in_prompt for group in groups for score in group.scores if score.passed]
    row = {"answer_in_prompt": sum(passes) / len(passes) if passes else math.nan}
    scores = [score for group in groups for score in group.scores if score.form]
    if scores:
        forms = Counter(score.form for score in scores)
        row |= {f"answer_{form}": forms[form] / len(scores) for form in FORMS}
        row["answer_unread"] = sum(score.text_only for score in scores) / len(scores)
    return row


def rollout_row(rollouts: RolloutTensors, rewards_PG: Tensor, keep_P: Tensor) -> dict[str, Any]:
    """Return the metrics of the step's rollouts."""
    tokens_PG = rollouts.completion_tokens_PG.float()
    return {
        "pass_rate": float(rollouts.passed_PG[rollouts.counted_PG].float().mean()),
        "reward": float(rewards_PG[rollouts.counted_PG].mean()),
        "prompts": len(keep_P),
        "kept_prompts": int(keep_P.sum()),
        "truncation_rate": float(rollouts.truncated_B.float().mean()),
        "interruption_rate": float(rollouts.interrupted_B.float().mean()),
        "completion_tokens_mean": float(tokens_PG.mean()),
        "completion_tokens_max": int(tokens_PG.max()),
    }
