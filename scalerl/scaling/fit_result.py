"""The result that every fitting method returns.

Axes in names: D draws, P parameters in the order (A, ln C_mid, ln B, R0).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.draws import Draws, plain_draws
from scalerl.scaling.estimate import Estimate
from scalerl.scaling.futures import Futures
from scalerl.scaling.law import Array


class Parameters(NamedTuple):
    """Values of the law's parameters."""

    asymptote: float
    efficiency: float
    midpoint: float
    initial: float


class FitResult(NamedTuple):
    """Estimates and draws of one method on one curve."""

    asymptote: Estimate
    efficiency: Estimate
    midpoint: Estimate
    initial: Estimate
    center: Parameters | None
    """Optimum; None if the result is the mean over the draws."""
    covariance: Array
    """Covariance of (A, ln C_mid, ln B, R0), shape (P, P); zero for a fixed parameter, NaN if the method gives none."""
    draws: Draws
    """Draws of the parameters; a single draw if the method gives no uncertainty."""
    at_bound: tuple[str, ...]
    """Parameters that reached a limit of the metric or of the search."""
    noise_sd: float
    """Standard deviation of one point around the curve."""
    autocorrelation: float
    """Correlation of the noise of neighboring points."""
    departures: dict[str, float]
    """Probability of each family of curves in the draws; {"law": 1.0} if only the law was fitted."""
    futures: Futures | None = None
    """Draws of both futures (the law and a flat run); None if the method has only the law."""


def without_uncertainty(
    best: Parameters, at_bound: tuple[str, ...], noise_sd: float, autocorrelation: float
) -> FitResult:
    """Return an optimum as a result with a single draw and without intervals."""
    nan = float("nan")
    asymptote, efficiency, midpoint, initial = (Estimate(value, nan, nan, nan) for value in best)
    return FitResult(
        asymptote=asymptote,
        efficiency=efficiency,
        midpoint=midpoint,
        initial=initial,
        center=best,
        covariance=np.full((4, 4), nan),
        draws=plain_draws(*(np.array([value]) for value in (*best, 0.0, noise_sd))),
        at_bound=at_bound,
        noise_sd=noise_sd,
        autocorrelation=autocorrelation,
        departures={"law": 1.0},
    )


def lag_one(residual_N: Array) -> float:
    """Return the autocorrelation of residuals between neighboring points, in [-1, 1]; 0 if all residuals are zero."""
    total = float(residual_N @ residual_N)
    return float(residual_N[1:] @ residual_N[:-1]) / total if total > 0 else 0.0
