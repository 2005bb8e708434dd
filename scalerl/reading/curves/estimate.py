"""A number with its uncertainty: the record, its computation from draws, and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import Guided

INTERVAL_MASS = 0.90
"""Nominal probability of every interval in this package."""

TAILS = ((1.0 - INTERVAL_MASS) / 2.0, (1.0 + INTERVAL_MASS) / 2.0)
"""Quantiles at the ends of an interval."""

NINE_IN_TEN = 1.645
"""Half width of the central 90% interval of a normal distribution, in standard deviations."""


def as_json(value: Any) -> Any:
    """Return a record as JSON values: a dict of its fields; numbers that JSON lacks (infinite, NaN) become None."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def with_error(mean: float, stderr: float = math.nan) -> str:
    """Return a mean with its standard error as text, `0.254 ± 0.014`; NaN is an unknown value."""
    error = f" ± {stderr:.3f}" if math.isfinite(stderr) else ""
    return f"{mean:.3f}{error}" if math.isfinite(mean) else "unknown"


def percent(share: float) -> str:
    """Return a share with two digits, `12%`, `1.2%`, `0.12%`; NaN is "-"."""
    if not math.isfinite(share):
        return "-"
    return f"{share:.0%}" if abs(share) >= 0.0995 or not share else f"{100 * share:.2g}%"


@dataclass(frozen=True)
class Estimate(Guided):
    """One quantity with its 90% interval.

    Example: `Estimate(mean=0.612, sd=0.008, low=0.598, high=0.627)` prints as
    `0.6120 (0.5980 to 0.6270)`, the mean and the interval, which is skewed if the draws are.
    """

    mean: float
    """Posterior mean, in the unit of the quantity."""

    sd: float
    """Standard deviation, same unit."""

    low: float
    """Lower end of the 90% interval."""

    high: float
    """Upper end of the 90% interval."""

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        if self.sd == 0:
            return f"{short_number(self.mean)} (fixed)"
        # what is only in the interval may be much wider than the standard deviation
        sd = max(self.sd, (self.high - self.low) / 4.0)
        return f"{rounded(self.mean, sd)} ({rounded(self.low, sd)} to {rounded(self.high, sd)})"

    def __format__(self, spec: str) -> str:
        """Return `0.612 (0.598 to 0.627)` for the format ".3f" of its numbers; without a format, as `str`."""
        if not spec:
            return str(self)
        unsigned = spec.replace(".", "z.", 1)  # 0.000, not -0.000
        mean, low, high = (f"{value:{unsigned}}" for value in (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})"


@dataclass(frozen=True)
class EstimateAt(Estimate):
    """An estimate at one amount of compute."""

    compute: float
    """Amount of compute, in the unit of the curve's axis."""

    def __str__(self) -> str:
        return f"at {short_number(self.compute)}: {super().__str__()}"


def summarize(draws_D: Array) -> Estimate:
    """Return the mean, standard deviation and 90% interval of draws, shape (D,)."""
    low, high = np.quantile(draws_D, TAILS)
    return Estimate(float(draws_D.mean()), float(draws_D.std()), float(low), float(high))


def weighted_mean(values_MD: Array, weight_D: Array) -> Array:
    """Return the means of weighted draws, shape (M,); not by a matrix product, whose bits depend on M."""
    return np.asarray(np.einsum("md,d->m", values_MD, weight_D))


def quantiles(values: Array, weight_D: Array, at: Sequence[float] = TAILS) -> Array:
    """Return quantiles of weighted draws along the last axis, shape (quantiles, ...).

    Half of the weight of a draw lies on each side of it.
    """
    if np.ptp(weight_D) == 0:
        return np.asarray(np.quantile(values, at, axis=-1))
    values, weight_D = values[..., weight_D > 0], weight_D[weight_D > 0]
    order = np.argsort(values, axis=-1)
    rows = np.take_along_axis(values, order, axis=-1).reshape(-1, len(weight_D))
    weights = weight_D[order].reshape(rows.shape) / weight_D.sum()
    share = np.cumsum(weights, axis=-1) - weights / 2.0
    found = np.array([np.interp(at, share_D, row_D) for share_D, row_D in zip(share, rows, strict=True)])
    return np.asarray(found.T.reshape(len(at), *values.shape[:-1]))


def estimate_of(draws_D: Array, mean_D: Array, wide_D: Array) -> Estimate:
    """Return the estimate from draws with weights for the mean and for the interval, which includes the mean.

    Args:
        draws_D: The draws.
        mean_D: Weights for mean and standard deviation; need not sum to one.
        wide_D: Weights for the interval.
    """
    mean = float(np.average(draws_D, weights=mean_D))
    sd = math.sqrt(float(np.average((draws_D - mean) ** 2, weights=mean_D)))
    low, high = quantiles(draws_D, wide_D)
    return Estimate(mean, sd, min(float(low), mean), max(float(high), mean))


def one_power(estimate: Estimate) -> tuple[int, tuple[float, float, float]]:
    """Return the power of ten for printing an estimate (0: none), and its mean, low and high divided by it."""
    power = math.floor(math.log10(estimate.mean))
    power = 0 if -3 <= power < 5 else power
    return power, (estimate.mean / 10.0**power, estimate.low / 10.0**power, estimate.high / 10.0**power)


def short_number(value: float) -> str:
    """Return a number for a sentence: four significant digits, no trailing zeros, words for infinite and NaN."""
    if math.isnan(value):
        return "unknown"
    return f"{value:.4g}" if math.isfinite(value) else "never"


def decimals_for(value: float, sd: float) -> int | None:
    """Return the decimals for two digits of the uncertainty (0.0083: 4, 0.12: 2, 35: 0); None: use powers of ten."""
    if not (math.isfinite(value) and math.isfinite(sd)) or not 1e-9 < sd < 1e6 or abs(value) >= 1e7:
        return None
    return max(0, 1 - math.floor(math.log10(sd)))


def rounded(value: float, sd: float) -> str:
    """Return the number, rounded to the precision of its uncertainty."""
    decimals = decimals_for(value, sd)
    return short_number(value) if decimals is None else f"{value:.{decimals}f}"
