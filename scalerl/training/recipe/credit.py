"""Returns of turns, from which `recipe.turn_credit` computes advantages, as functions of tensors.

Legend: B rows (sequences), K turns of the longest rollout, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def returns_to_go(rewards_BK: Tensor, discount: float) -> Tensor:
    """Return G_k = r_k + discount * G_{k+1}, with G_K = 0 (Sutton and Barto 2018, section 13.3).

    A turn cannot change the rewards before it, which are only noise in its gradient. Rewards of turns that a rollout
    does not have must be 0.
    """
    assert rewards_BK.ndim == 2, rewards_BK.shape
    returns_BK = torch.zeros_like(rewards_BK, dtype=torch.float64)
    later_B = returns_BK[:, 0]
    for turn in reversed(range(rewards_BK.shape[1])):
        later_B = rewards_BK[:, turn].double() + discount * later_B
        returns_BK[:, turn] = later_B
    return returns_BK.to(rewards_BK.dtype)


def of_tokens(values_BK: Tensor, turn_BT: Tensor) -> Tensor:
    """Return values_BT: for each token the value of its turn."""
    assert len(values_BK) == len(turn_BT), (values_BK.shape, turn_BT.shape)
    return values_BK.gather(1, turn_BT)
