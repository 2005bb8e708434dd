"""The forecast of a fitted run: its level at the amounts of compute that a user asks for, next to naive forecasts.

Axes in names: M amounts of compute, D draws.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.scaling.baselines import BASELINES
from scalerl.scaling.estimate import TAILS, Estimate, EstimateAt, as_json, short, summarize
from scalerl.scaling.fit import Fit
from scalerl.scaling.law import Array
from scalerl.scaling.readers import CurveError


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
        kind = ["the metric is the training reward, not a held-out score"] if self.fit.curve.training else []
        lines = [*kind, f"now, at {short(self.now.compute)} {unit}: {Estimate.__str__(self.now)}"]
        for i, estimate in enumerate(self.at):
            naive = ", ".join(f"{name} {values[i]:.3f}" for name, values in self.baselines.items())
            lines.append(f"at {short(estimate.compute)} {unit}: {Estimate.__str__(estimate)}; {naive}")
        lines.append(f"gain still to come: {self.gain_to_come}")
        lines.append(f"95% of the climb is complete, in {unit}: {self.done}")
        if self.target is not None:
            lines.append(f"the target is reached, in {unit}: {self.target}")
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
    levels_D = fit.draws.levels(np.array([last]))[0]
    return Forecast(
        fit=fit,
        at=estimates,
        now=estimate_at(fit, last),
        gain_to_come=summarize(fit.draws.asymptote - levels_D),
        done=reach(fit.draws.compute_done()),
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


def gain_at(fit: Fit, compute: float) -> Estimate:
    """Return the level at a compute minus the level now: the difference of both forecasts, and its interval.

    Mean and interval are those of the forecasts at both, so that the level now plus the gain is the level then.
    """
    now, then = fit.mean([fit.last_compute, compute])
    draws_D = fit.gain(compute)
    low, high = np.quantile(draws_D, TAILS)
    mean = float(then - now)
    return Estimate(mean, float(draws_D.std()), min(float(low), mean), max(float(high), mean))


def compute_for(fit: Fit, target: float) -> Array:
    """Return the compute at which each drawn curve reaches a level, shape (D,); infinite if never, 0 at the start."""
    low, high = fit.curve.bounds
    if not low <= target <= high:
        raise CurveError(f"target must lie within the metric's bounds [{low:g}, {high:g}]; got {target:g}")
    return fit.draws.compute_for(np.full(len(fit.draws), float(target)))


def reach(compute_D: Array) -> Reach:
    """Return the interval of an amount of compute that may be infinite."""
    # quantiles without interpolation, because there is none between a number and infinity
    low, median, high = np.quantile(compute_D, (TAILS[0], 0.5, TAILS[1]), method="higher")
    return Reach(float(low), float(median), float(high), float(np.isfinite(compute_D).mean()))
