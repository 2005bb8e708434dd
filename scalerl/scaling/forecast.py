"""The record of a fit and its forecasts: the level at any compute, its band, the gain, and naive forecasts.

The posterior's forecast weighs two futures (`futures`): the draws of both and the rare events are computed there. The
methods of `Fit` turn them into means and bands, and `forecast` collects these for the amounts of compute that a user
asks for.

Axes in names: M amounts of compute, D draws.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalerl.scaling.baselines import BASELINES
from scalerl.scaling.curve import Curve
from scalerl.scaling.estimate import TAILS, Estimate, EstimateAt, as_json, short, summarize
from scalerl.scaling.futures import Futures
from scalerl.scaling.law import Array, Draws, plain_draws, sigmoid
from scalerl.scaling.noise import evaluations
from scalerl.scaling.readers import CurveError


class Band(NamedTuple):
    """A curve with its 90% band; every field has shape (M,)."""

    compute: Array
    mean: Array
    low: Array
    high: Array
    sd: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class FitResult:
    """Estimates and draws of one method on one curve."""

    asymptote: Estimate
    """A, the ceiling, in the metric's unit."""

    efficiency: Estimate
    """B, the steepness in ln C; > 0, no unit."""

    midpoint: Estimate
    """C_mid, the compute at which half of the climb is complete; unit of the compute axis."""

    initial: Estimate
    """R0, the level before training, in the metric's unit."""

    noise_sd: float
    """Standard deviation of one point around the curve, in the metric's unit."""

    autocorrelation: float
    """Correlation of the noise of neighboring points, in (-1, 1)."""

    covariance: Array
    """Covariance of (A, ln C_mid, ln B, R0), shape (4, 4); zero for a fixed parameter, NaN if the method gives none."""

    draws: Draws
    """Draws of the parameters, from which everything else is computed; one draw if there is no uncertainty."""

    at_bound: tuple[str, ...]
    """Parameters that reached a limit of the metric or of the search."""

    departures: dict[str, float]
    """Probability of each family of curves in the draws: {"law": 1.0}, or with late start, second rise and creep."""

    futures: Futures | None = None
    """Draws of both futures (the law and a flat run) and the probability of a fall; None if the method has only the
    law."""


def without_uncertainty(
    best: tuple[float, float, float, float], at_bound: tuple[str, ...], noise_sd: float, autocorrelation: float
) -> FitResult:
    """Return an optimum (A, B, C_mid, R0) as a result with a single draw and without intervals."""
    nan = float("nan")
    asymptote, efficiency, midpoint, initial = (Estimate(value, nan, nan, nan) for value in best)
    return FitResult(
        asymptote=asymptote, efficiency=efficiency, midpoint=midpoint, initial=initial,
        covariance=np.full((4, 4), nan), draws=plain_draws(*(np.array([value]) for value in (*best, 0.0, noise_sd))),
        at_bound=at_bound, noise_sd=noise_sd, autocorrelation=autocorrelation, departures={"law": 1.0},
    )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(FitResult):
    """The law fitted to one curve. `identified` and `warnings` show how far to trust it."""

    curve: Curve
    """The points that were fitted, after exclusion and averaging."""

    last_compute: float
    """Compute of the run's last point, before any averaging; "2x" means twice this."""

    method: str
    """Key of `METHODS`."""

    identified: bool
    """Whether the ceiling is known; if False, `asymptote` is a range and not a result."""

    reason: str
    """Reason why `identified` is True or False, as one sentence."""

    warnings: tuple[str, ...]
    """Symptoms of the curve, repairs, and limits that were reached."""

    @cached_property
    def residual_sum_of_squares(self) -> float:
        """Residual sum of squares around `predict(curve.compute).mean`."""
        residual_N = self.curve.metric - self.mean(self.curve.compute)
        return float(residual_N @ residual_N)

    def levels(self, compute: ArrayLike) -> Array:
        """Return the level of each draw of each future at each compute, shape (M, D)."""
        compute_M = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        if self.futures is not None:
            return self.futures.levels(compute_M)
        return self.draws.levels(compute_M, self.curve.bounds[1])

    def mean(self, compute: ArrayLike) -> Array:
        """Return the mean of the curve at each compute, shape (M,); for least squares, the curve of the optimum."""
        compute_M = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        if self.futures is not None:
            return self.futures.mean(compute_M)
        return sigmoid(compute_M, self.asymptote.mean, self.efficiency.mean, self.midpoint.mean, self.initial.mean)

    def evaluations(self, compute: ArrayLike) -> Array:
        """Return draws of single noisy evaluations, shape (M, D), within the metric's bounds."""
        compute_M = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        if self.futures is not None:
            futures = self.futures.for_intervals
            levels_MD = futures.with_rare_events(futures.levels(compute_M), compute_M)
            return futures.with_noise(levels_MD, compute_M)
        levels_MD = self.levels(compute_M)
        sd_MD = np.broadcast_to(self.draws.noise_sd, levels_MD.shape)
        return evaluations(levels_MD, sd_MD, *self.curve.bounds, np.random.default_rng(1))

    def gain(self, compute: float) -> Array:
        """Return the gain of each draw from the last point to a compute, shape (D,); falls are left out."""
        if self.futures is not None:
            return self.futures.gain(compute)
        levels_2D = self.draws.levels(np.array([self.last_compute, compute]), self.curve.bounds[1])
        return np.asarray(levels_2D[1] - levels_2D[0])

    def predict(self, compute: ArrayLike, *, noise: bool = False) -> Band:
        """Return the mean and 90% band of the curve, or of single noisy evaluations, at any compute.

        Beyond the last point, the band includes the probability that the run falls later, at the rate of public runs.
        Mean and standard deviation do not include it.

        Args:
            compute: Amounts of compute, shape (M,), >= 0, in the unit of the curve's axis.
            noise: Whether the band is for a single evaluation (wider) instead of the curve.
        """
        compute_M = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        levels_MD = self.levels(compute_M)
        mean_M = self.mean(compute_M)
        if levels_MD.shape[1] == 1:
            unknown_M = np.full(len(compute_M), np.nan)
            return Band(compute_M, mean_M, unknown_M, unknown_M, unknown_M)
        wide_MD = levels_MD
        if self.futures is not None:
            futures = self.futures.for_intervals
            wide_MD = futures.with_rare_events(futures.levels(compute_M), compute_M)
        if noise:
            wide_MD = levels_MD = self.evaluations(compute_M)
        low_M, high_M = np.quantile(wide_MD, TAILS, axis=1)
        return Band(compute_M, mean_M, low_M, high_M, levels_MD.std(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, without the draws."""
        names = (
            *("asymptote", "efficiency", "midpoint", "initial", "method", "identified", "reason", "noise_sd"),
            *("autocorrelation", "residual_sum_of_squares", "warnings", "at_bound", "departures", "last_compute"),
        )
        return {
            **{name: as_json(getattr(self, name)) for name in names},
            "futures": None if self.futures is None else self.futures.to_dict(),
            "axis": self.curve.axis,
            "label": self.curve.label,
            "points": len(self.curve),
        }

    def __str__(self) -> str:
        title = f"{self.curve.label}: " if self.curve.label else ""
        lines = [
            f"{title}{self.method} fit of {len(self.curve)} points to {self.last_compute:.4g} {self.curve.unit}",
            f"  ceiling    A      {self.asymptote}",
            f"  steepness  B      {self.efficiency}",
            f"  midpoint   C_mid  {self.midpoint}",
            f"  level      R0     {self.initial}",
            f"  noise      {self.noise_sd:.2g} per point, autocorrelation {self.autocorrelation:.2f}",
            f"  ceiling {'identified' if self.identified else 'NOT identified'}: {self.reason}",
        ]
        return "\n".join(lines + [f"  warning: {warning}" for warning in self.warnings])


@dataclass(frozen=True)
class Reach:
    """The compute at which an event happens, as an interval; its ends are infinite if the event may never happen."""

    low: float
    """Lower end of the 90% interval, in the unit of the compute axis."""

    median: float
    """Median of the compute at which the event happens."""

    high: float
    """Upper end of the 90% interval."""

    probability: float
    """Probability that the event ever happens, in [0, 1]."""

    def __str__(self) -> str:
        ever = "" if self.probability == 1 else f", reached with probability {self.probability:.2f}"
        return f"{short(self.low)} to {short(self.high)}, median {short(self.median)}{ever}"


@dataclass(frozen=True, eq=False)
class Forecast:
    """The forecast of one fitted run."""

    fit: Fit
    """The fit that is extrapolated."""

    at: tuple[EstimateAt, ...]
    """The level of the curve at each requested compute, in the order of the request."""

    now: EstimateAt
    """The level of the curve at the last point, without its noise."""

    gain_to_come: Estimate
    """Ceiling minus level now, in the metric's unit."""

    done: Reach
    """The compute at which 95% of the climb from R0 to A is complete."""

    target: Reach | None
    """The compute at which the target is reached, if one was given."""

    baselines: dict[str, tuple[float, ...]]
    """The values of each naive forecast at the same compute as `at`."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        numbers = {name: as_json(value) for name, value in vars(self).items() if name != "fit"}
        return {**numbers, "fit": self.fit.to_dict()}

    def __str__(self) -> str:
        unit = self.fit.curve.unit
        lines = [f"now, at {short(self.now.compute)} {unit}: {Estimate.__str__(self.now)}"]
        for i, estimate in enumerate(self.at):
            naive = ", ".join(f"{name} {values[i]:.3f}" for name, values in self.baselines.items())
            lines.append(f"at {short(estimate.compute)} {unit}: {Estimate.__str__(estimate)}; {naive}")
        lines.append(f"gain still to come: {self.gain_to_come}")
        lines.append(f"95% of the climb is complete, in {unit}: {self.done}")
        if self.target is not None:
            lines.append(f"the target is reached, in {unit}: {self.target}")
        if self.fit.futures is not None:
            lines += self.fit.futures.sentences()
        if not self.fit.identified:
            lines.append(f"ceiling NOT identified: {self.fit.reason}")
        return "\n".join(lines)


def forecast(fit: Fit, at: Sequence[float | str] = ("2x", "4x"), target: float | None = None) -> Forecast:
    """Forecast the level of a run at more compute, and the compute at which it reaches a target.

    Args:
        fit: Fit of the run so far.
        at: Amounts of compute in the curve's unit, or "4x" for four times the last point.
        target: Level of the metric; `Forecast.target` is the compute at which it is reached.

    Raises:
        CurveError: An amount that is neither a positive number nor a multiple, or a target outside the metric's bounds.
    """
    compute_M = np.array([amount(item, fit) for item in at], dtype=np.float64)
    last = fit.last_compute
    estimates = tuple(estimate_at(fit, float(compute)) for compute in compute_M)
    levels_D = fit.draws.levels(np.array([last]), fit.curve.bounds[1])[0]
    return Forecast(
        fit=fit,
        at=estimates,
        now=estimate_at(fit, last),
        gain_to_come=gain(fit, levels_D),
        done=reach(fit.draws.compute_done(fit.curve.bounds[1])),
        target=None if target is None else reach(compute_for(fit, target)),
        baselines={name: tuple(float(v) for v in make(fit.curve)(compute_M)) for name, make in BASELINES.items()},
    )


def amount(item: float | str, fit: Fit) -> float:
    """Return an amount of compute in the curve's unit; "4x" is four times the last point of the curve."""
    if isinstance(item, str):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*[x×]\s*", item.lower())
        factor = float(match.group(1)) if match and match.group(1).count(".") <= 1 and match.group(1) != "." else 0.0
        value = factor * fit.last_compute
    else:
        value = float(item)
    if not (np.isfinite(value) and value > 0):
        raise CurveError(
            f"compute must be a positive number, or a multiple of the last point such as '4x'; got {item!r}"
        )
    return value


def estimate_at(fit: Fit, compute: float) -> EstimateAt:
    """Return the level of the curve at one compute."""
    band = fit.predict([compute])
    return EstimateAt(float(band.mean[0]), float(band.sd[0]), float(band.low[0]), float(band.high[0]), compute)


def gain(fit: Fit, levels_D: Array) -> Estimate:
    """Return the ceiling minus the given levels of the same draws."""
    if len(levels_D) == 1:
        nan = float("nan")
        return Estimate(float(fit.draws.asymptote[0] - levels_D[0]), nan, nan, nan)
    return summarize(fit.draws.asymptote - levels_D)


def compute_for(fit: Fit, target: float) -> Array:
    """Return the compute at which each drawn curve reaches a level, shape (D,); infinite if never, 0 at the start."""
    low, high = fit.curve.bounds
    if not low <= target <= high:
        raise CurveError(f"target must lie within the metric's bounds [{low:g}, {high:g}]; got {target:g}")
    return fit.draws.compute_for(np.full(len(fit.draws.asymptote), float(target)), high)


def reach(compute_D: Array) -> Reach:
    """Return the interval of an amount of compute that may be infinite."""
    # quantiles without interpolation, because there is none between a number and infinity
    low, median, high = np.quantile(compute_D, (TAILS[0], 0.5, TAILS[1]), method="higher")
    return Reach(float(low), float(median), float(high), float(np.isfinite(compute_D).mean()))
