"""Metrics of several samples per prompt: pass@k and majority votes. mean@k is in training/evaluation.py.

Axes: P prompts, N samples per prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
import numpy.typing as npt


def pass_at_k(passed_PN: npt.NDArray[np.bool_], k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples passes, averaged over prompts.

    A prompt with c passes of N has 1 - C(N - c, k) / C(N, k) (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Args:
        passed_PN: Whether each sample passed.
        k: Number of samples, at most N.
    """
    samples = passed_PN.shape[1]
    assert 1 <= k <= samples, (k, samples)
    passes_P = passed_PN.sum(axis=1)
    return float(np.mean([1.0 - comb(samples - int(c), k) / comb(samples, k) for c in passes_P]))


def pass_at_powers(passed_PN: npt.NDArray[np.bool_]) -> dict[int, float]:
    """Return pass@k for k = 1, 2, 4, ... and N."""
    samples = passed_PN.shape[1]
    ks = sorted({*(2**power for power in range(samples.bit_length()) if 2**power <= samples), samples})
    return {k: pass_at_k(passed_PN, k) for k in ks}


def majority(answers: Sequence[str | None], passed: Sequence[bool]) -> float:
    """Return 1 if the most common answer of one prompt passes, else 0; in a tie, the share of passing answers.

    Args:
        answers: Answer of each sample, normalized so that equal answers are equal texts; None: no answer and no vote.
        passed: Whether each sample passed; an answer passes if any of its samples does.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    right = {answer for answer, passes in zip(answers, passed, strict=True) if passes}
    leading = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in leading) / len(leading)
