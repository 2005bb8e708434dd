"""The compute-performance law and its inverse, as plain functions of arrays. Knows nothing of data, noise or fitting.

    R(C) = R0 + (A - R0) u(C),    u(C) = 1 / (1 + (Cmid / C)^B)          (arXiv 2510.13786, equation 1)

In ln C this is a logistic curve of slope B centred at ln Cmid, and that form is the one computed here: it neither
overflows nor divides by zero, and gives u(0) = 0 exactly, so that the evaluation before training is an ordinary point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CLIMB_DONE = 0.95
"""Share of the climb from R0 to A after which a run counts as finished; the "C95" of a fit."""


def log_compute(compute: ArrayLike) -> Array:
    """Natural logarithm of compute, minus infinity at zero. Any shape; same shape back."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(compute, dtype=np.float64)), dtype=np.float64)


def climb(log_c: ArrayLike, log_midpoint: ArrayLike, efficiency: ArrayLike) -> Array:
    """Share u of the climb that is done at ln C; arguments broadcast, result in [0, 1]."""
    # one array, worked on in place: on a grid this function takes most of the time, and fresh arrays take most of that
    work = np.subtract(log_midpoint, log_c, dtype=np.float64)
    work = np.asarray(np.multiply(work, efficiency, dtype=np.float64))
    with np.errstate(over="ignore"):  # to infinity, of which the reciprocal is zero, as it should be
        np.exp(work, out=work)
    work += 1.0
    return np.reciprocal(work, out=work)


def sigmoid(
    compute: ArrayLike, asymptote: ArrayLike, efficiency: ArrayLike, midpoint: ArrayLike, initial: ArrayLike
) -> Array:
    """R(C) of equation 1; arguments broadcast. At C = Cmid it is halfway between R0 and A."""
    u = climb(log_compute(compute), log_compute(midpoint), efficiency)
    start = np.asarray(initial, dtype=np.float64)
    return np.asarray(start + (np.asarray(asymptote, dtype=np.float64) - start) * u, dtype=np.float64)
