"""The length penalty as a function of lengths.

Legend: P prompts, G rollouts per prompt.
"""

from __future__ import annotations

from torch import Tensor

from scalerl.config.recipe import LengthPenalty


def with_length_penalty(rewards_PG: Tensor, passed_PG: Tensor, tokens_PG: Tensor, control: LengthPenalty) -> Tensor:
    """Add clip((L_max - |y|) / L_cache - 1, -1, 0) to the rewards of correct rollouts only (ScaleRL eq. 9).

    Args:
        rewards_PG: Rewards before the penalty.
        passed_PG: Whether each rollout is correct.
        tokens_PG: Completion lengths.
        control: L_max and L_cache.
    """
    penalty_PG = ((control.max_tokens - tokens_PG) / control.cache_tokens - 1.0).clamp(-1.0, 0.0)
    return rewards_PG + penalty_PG * passed_PG
