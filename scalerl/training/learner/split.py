"""Assignment of rollouts to ranks: longest first, each to the rank with the fewest tokens so far."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_split(length_B: Tensor, rows: Tensor, ranks: int) -> list[Tensor]:
    """Return the rows of each rank, so that all ranks have about the same number of tokens.

    The largest load is at most a third larger than in the best split (Graham 1969). Ties are broken by order and by the
    lower rank, so that every rank computes the same split.

    Args:
        length_B: Number of tokens of every rollout.
        rows: Rollouts to split.
        ranks: Number of ranks; with fewer rollouts than ranks, some get none.
    """
    loads, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: tuple[list[int], list[list[int]]]
    for row in rows[length_B[rows].argsort(stable=True, descending=True)].tolist():
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        loads[rank] += int(length_B[row])
        shares[rank].append(row)
    return [torch.tensor(share, dtype=torch.long) for share in shares]
