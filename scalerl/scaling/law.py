"""The compute-performance law as functions of arrays.

    R(C) = R0 + (A - R0) u(C),    u(C) = 1 / (1 + (C_mid / C)^B)          (arXiv 2510.13786, equation 1)

In ln C this is a logistic curve with slope B and center ln C_mid. This form does not overflow or divide by zero, and
u(0) is exactly 0, so the evaluation before training needs no special case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CLIMB_DONE = 0.95
"""Share of the climb from R0 to A after which a run counts as complete."""


def log_compute(compute: ArrayLike) -> Array:
    """Return the natural logarithm of compute, of the same shape; minus infinity at zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(compute, dtype=np.float64)), dtype=np.float64)


def climb(log_c: ArrayLike, log_midpoint: ArrayLike, efficiency: ArrayLike) -> Array:
    """Return the share u of the climb that is complete at ln C; arguments broadcast, result in [0, 1]."""
    # in place: on a grid, most of the time is spent in this function, mainly for the allocation of arrays
    work = np.subtract(log_midpoint, log_c, dtype=np.float64)
    work = np.asarray(np.multiply(work, efficiency, dtype=np.float64))
    with np.errstate(over="ignore"):  # overflow to infinity is intended: its reciprocal is zero
        np.exp(work, out=work)
    work += 1.0
    return np.reciprocal(work, out=work)


def sigmoid(
    compute: ArrayLike, asymptote: ArrayLike, efficiency: ArrayLike, midpoint: ArrayLike, initial: ArrayLike
) -> Array:
    """Return R(C) of equation 1; arguments broadcast. R(C_mid) is halfway between R0 and A."""
    u = climb(log_compute(compute), log_compute(midpoint), efficiency)
    start = np.asarray(initial, dtype=np.float64)
    return np.asarray(start + (np.asarray(asymptote, dtype=np.float64) - start) * u, dtype=np.float64)
