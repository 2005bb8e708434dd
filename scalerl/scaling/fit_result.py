"""What every fitting method hands back, whatever its principle. Knows nothing of how it was found.

Axes in names: D draws, P parameters in the order (A, ln Cmid, ln B, R0).
"""

from __future__ import annotations

from typing import NamedTuple

from scalerl.scaling.draws import Draws
from scalerl.scaling.estimate import Estimate
from scalerl.scaling.law import Array


class Parameters(NamedTuple):
    """One setting of the law."""

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
    centre: Parameters | None
    """The curve a method names as its answer; None where the answer is the mean over the draws."""
    covariance: Array
    """Of (A, ln Cmid, ln B, R0), shape (P, P); zeros for what was held, not a number where the method gives none."""
    draws: Draws
    """A single draw, where the method gives a point and no uncertainty."""
    at_bound: tuple[str, ...]
    """Parameters that ran into a limit of the metric or of the search."""
    noise_sd: float
    """Standard deviation of one point about the curve."""
    autocorrelation: float
    """Correlation of the noise of neighbouring points."""
    departures: dict[str, float]
    """Probability of each kind of curve that the draws mix; {"law": 1.0} where only the law was fitted."""


def lag_one(residual_N: Array) -> float:
    """Autocorrelation of residuals between neighbouring points, in [-1, 1]; 0 for residuals that are all zero."""
    total = float(residual_N @ residual_N)
    return float(residual_N[1:] @ residual_N[:-1]) / total if total > 0 else 0.0
