"""The length penalty as a function of lengths.

Legend: P prompts, G rollouts per prompt.
"""

from __future__ import annotations

from torch import Tensor

from scalerl.training.config.length import LengthPenalty


def with_length_penalty(rewards_PG: Tensor, passed_PG: Tensor, tokens_PG: Tensor, control: LengthPenalty) -> Tensor:
    """Add clip((L_max - |y|) / L_cache - 1, -1, 0) to the rewards of correct rollouts only (ScaleRL eq. 9).

    L_max limits each turn of a rollout with an environment, so the penalty is that of the longest turn, which was the
    closest to being truncated. Replies were not sampled and have no limit here.

    Args:
        rewards_PG: Rewards before the penalty.
        passed_PG: Whether each rollout is correct.
        tokens_PG: Tokens sampled in the longest turn of each rollout.
        control: L_max and L_cache.
    """
    penalty_PG = ((control.max_tokens - tokens_PG) / control.cache_tokens - 1.0).clamp(-1.0, 0.0)
    return rewards_PG + penalty_PG * passed_PG
