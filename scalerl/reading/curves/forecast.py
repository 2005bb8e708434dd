"""The forecast of a fitted run: its level at the amounts of compute that a user asks for, next to naive forecasts.

Axes in names: M amounts of compute, D draws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike

from scalerl.reading.curves.baselines import BASELINES
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import TAILS, Estimate, EstimateAt, as_json, estimate_of, quantiles, short_number
from scalerl.reading.curves.families import LEVEL
from scalerl.reading.curves.fit import CEILING, Fit, checked_fit
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import InNotebooks
from scalerl.reading.curves.units import compute_text
from scalerl.reading.tables.errors import CurveError


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
        return self.text("")

    def text(self, axis: str) -> str:
        """Return the interval as text; amounts of compute on an axis have its unit."""
        ever = "" if self.probability == 1 else f", reached with probability {self.probability:.2f}"
        if not axis:
            return f"{short_number(self.low)} to {short_number(self.high)}, median {short_number(self.median)}{ever}"
        ends = (self.low, self.median, self.high)
        low, median, high = (compute_text(value, axis) if math.isfinite(value) else "never" for value in ends)
        return f"{low} to {high}, median {median}{ever}"


FAR_AHEAD = 4.0
"""Multiple of the run's compute beyond which a forecast says how far ahead it is."""


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(InNotebooks):
    """The forecast of one fitted run."""

    fit: Fit
    """The fit that is extrapolated."""

    at: tuple[EstimateAt, ...]
    """The level of the curve at each requested compute, in the order of the request."""

    evaluations: tuple[EstimateAt, ...]
    """One evaluation at the same compute, or the mean of `mean_of`: its mean is that of the curve, its interval
    includes its noise."""

    now: EstimateAt
    """The level of the curve at the last point, without its noise."""

    gain_to_come: Estimate
    """Level at which the run ends minus level now, in the metric's unit, whether the run rises or stays."""

    done: Reach
    """The compute at which 95% of the climb from R0 to A is complete."""

    target: Reach | None
    """The compute at which the target is reached, if one was given."""

    baselines: dict[str, tuple[float, ...]]
    """The values of each naive forecast at the same compute as `at`."""

    mean_of: int = 1
    """Number of successive evaluations around each compute whose mean `evaluations` is."""

    def __repr__(self) -> str:
        curve, now = self.fit.curve, Estimate.__format__(self.now, ".3f")
        levels = [f"now {now}", *(f"{level:.3f} at {curve.text(level.compute)}" for level in self.at)]
        return f"Forecast({', '.join(levels)})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        numbers = {name: as_json(value) for name, value in vars(self).items() if name != "fit"}
        return {**numbers, "fit": self.fit.to_dict()}

    def __str__(self) -> str:
        curve = self.fit.curve
        kind = ["the metric is the training reward, not a held-out score"] if curve.training else []
        far = [level.compute for level in self.at if level.compute > FAR_AHEAD * self.fit.last_compute]
        if far:
            axis = "" if curve.axis == "step" else "; a number alone is in this unit, and --compute step takes steps"
            kind.append(f"{curve.text(far[0])} is {far[0] / self.fit.last_compute:.1f} times the run{axis}")
        lines = [*kind, f"now, at {curve.text(self.now.compute)}: {Estimate.__str__(self.now)}"]
        evaluation = evaluation_text(curve, self.mean_of)
        for i, (estimate, single) in enumerate(zip(self.at, self.evaluations, strict=True)):
            naive = ", ".join(f"{name} {values[i]:.3f}" for name, values in self.baselines.items())
            head = f"at {curve.text(estimate.compute)}: {Estimate.__str__(estimate)}"
            lines.append(f"{head}, {evaluation} {single.low:.3f} to {single.high:.3f}; {naive}")
        lines.append(f"gain still to come: {self.gain_to_come}")
        verb = "was" if self.done.high <= self.now.compute else "is"
        lines.append(f"95% of the climb {verb} complete at {self.done.text(curve.axis)}")
        if self.target is not None:
            lines.append(f"the target is reached at {self.target.text(curve.axis)}")
        lines += [*self.notes(), *self.fit.posterior.sentences()]
        if not self.fit.identified:
            lines.append(f"{CEILING} is NOT identified: {self.fit.reason}")
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """Return sentences about what a reader may find strange in the forecast."""
        fit, notes = self.fit, []
        low, high = fit.curve.bounds
        if "asymptote" in fit.at_bound or self.now.mean > high - AT_BOUND * (high - low):
            notes.append(f"the curve runs into the metric's bound of {high:g}, beyond which nothing can be gained")
        below = [level for level in self.at if level.compute > fit.last_compute and level.mean < self.now.mean - 5e-4]
        if below and not fit.posterior.fallen:
            notes.append(
                f"the forecast at {fit.curve.text(below[0].compute)} is below the present level: the last evaluations "
                "are above the curve, and such noise does not last"
            )
        notes += filter(None, [upper_part(fit, [level.compute for level in self.at])])
        return notes


def evaluation_text(curve: Curve, mean_of: int = 1) -> str:
    """Return what one evaluation is, or the mean of several, with its prompts: "one evaluation of 256 prompts"."""
    of = f" of {curve.prompts:,} prompts" if curve.prompts else ""
    return f"one evaluation{of}" if mean_of == 1 else f"the mean of {mean_of} evaluations{of}"


def band_text(fit: Fit) -> str:
    """Return what the band of a picture means, as sentences: the curve's level, one evaluation, and the upper part."""
    twice = 2.0 * fit.last_compute
    level, single = (fit.predict([twice], noise=noise) for noise in (False, True))
    sentences = [
        "The band has the curve's level with 90% probability",
        f"at {fit.curve.text(twice)} it is {level.low[0]:.3f} to {level.high[0]:.3f}, and {evaluation_text(fit.curve)} "
        f"is within {single.low[0]:.3f} to {single.high[0]:.3f}",
    ]
    above = upper_part(fit, [twice, 2.0 * twice])
    return f"{': '.join(sentences)}.{f' {above[0].upper()}{above[1:]}.' if above else ''}"


def upper_part(fit: Fit, compute_M: Sequence[float]) -> str:
    """Return what the upper part of the band means, if it is above that of the curves in the mean; else nothing."""
    low, high = fit.curve.bounds
    band = fit.predict(compute_M)
    in_mean_M = quantiles(fit.posterior.levels(np.asarray(compute_M)), fit.posterior.mean_D, TAILS[1:])[0]
    return UPPER_TEXT if (band.high - in_mean_M).max(initial=0.0) > UPPER_PART * (high - low) else ""


UPPER_TEXT = (
    "the upper part of the band, and of the ceiling's interval, is for a late or slow rise beyond the law, which the "
    "points so far neither show nor exclude"
)

AT_BOUND = 0.005
"""Distance from the metric's bound, as a share of its range, at which a curve is at the bound."""

UPPER_PART = 0.01
"""Part of the band above that of the curves in the mean, as a share of the range, from which it is explained."""


def forecast(
    fit: Fit,
    at: float | str | Sequence[float | str] = ("2x", "4x"),
    target: float | None = None,
    *,
    mean_of: int = 1,
) -> Forecast:
    """Forecast the level of a run at more compute, and the compute at which it reaches a target.

    Args:
        fit: Fit of the run so far.
        at: One or more amounts of compute: in the curve's unit, "4x" for four times the last point, or "+100" for 100
            more than it.
        target: Level of the metric; `Forecast.target` is the compute at which it is reached.
        mean_of: Number of successive evaluations around each compute whose mean `Forecast.evaluations` is.

    Raises:
        CurveError: An amount that is neither a positive number nor a multiple, a target outside the metric's bounds, or
            `mean_of` below 1.
    """
    checked_fit(fit)
    items = list(at) if isinstance(at, Sequence) and not isinstance(at, str) else np.ravel(at).tolist()
    compute_M = np.array([amount(item, fit) for item in items], dtype=np.float64)
    last = fit.last_compute
    now, *estimates = levels_at(fit, [last, *compute_M])
    drawn = fit.posterior
    climbs_D = ~drawn.of(LEVEL.name)
    to_come_D = drawn.ends_D - drawn.levels(np.array([last]))[0]
    return Forecast(
        fit=fit,
        at=tuple(estimates),
        evaluations=tuple(levels_at(fit, compute_M, noise=True, mean_of=mean_of)),
        now=now,
        gain_to_come=estimate_of(to_come_D, drawn.mean_D, drawn.wide_D),
        done=reach(drawn.draws.compute_done(), drawn.mean_D * climbs_D, drawn.wide_D * climbs_D),
        target=None if target is None else reach(compute_for(fit, target), drawn.mean_D, drawn.wide_D),
        baselines={name: tuple(float(v) for v in make(fit.curve)(compute_M)) for name, make in BASELINES.items()},
        mean_of=mean_of,
    )


AMOUNT = re.compile(r"(\+?)\s*([0-9]*\.?[0-9]+(?:e[+-]?\d+)?)\s*([x×]?)")


def amount(item: float | str, fit: Fit) -> float:
    """Return an amount of compute in the curve's unit.

    Args:
        item: A number; or text: "4x" (four times the last point), "+100" or "+1x" (more than it), or a number beyond
            it, because a small number such as "2" is more likely meant as a multiple.
        fit: The run.

    Raises:
        CurveError: It is none of these.
    """
    last, value = fit.last_compute, float("nan")
    if isinstance(item, str):
        match = AMOUNT.fullmatch(item.strip().lower())
        if match is not None:
            value = float(match[2]) * (last if match[3] else 1.0) + (last if match[1] else 0.0)
            if not match[1] and not match[3] and value < last:
                raise CurveError(
                    f"got {item!r}, which is less than the run's {fit.curve.text(last)}; for a multiple write {item}x, "
                    f"for more than now write +{item}"
                )
    elif isinstance(item, SupportsFloat) and np.ndim(item) == 0:
        value = float(item)
    if not (np.isfinite(value) and value > 0):
        raise CurveError(
            f"compute must be a positive number, a multiple of the last point such as '4x', or more than it such as "
            f"'+100'; got {item!r}"
        )
    return value


def levels_at(fit: Fit, compute_M: ArrayLike, noise: bool = False, mean_of: int = 1) -> list[EstimateAt]:
    """Return the level of the curve at each compute, or of one evaluation there, or of the mean of several."""
    band = fit.predict(compute_M, noise=noise, mean_of=mean_of)
    columns = (band.mean, band.sd, band.low, band.high, band.compute)
    return [EstimateAt(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def gain_at(fit: Fit, compute: float) -> Estimate:
    """Return the level at a compute minus the level now: the difference of both forecasts, and its interval.

    Mean and interval are those of the forecasts at both, so that the level now plus the gain is the level then.
    """
    now, then = fit.mean([fit.last_compute, compute])
    drawn, mean = fit.posterior, float(then - now)
    estimate = estimate_of(drawn.gain(compute), drawn.mean_D, drawn.wide_D)
    return Estimate(mean, estimate.sd, min(estimate.low, mean), max(estimate.high, mean))


def compute_for(fit: Fit, target: float) -> Array:
    """Return the compute at which each drawn curve reaches a level, shape (D,); infinite if never, 0 at the start."""
    low, high = fit.curve.bounds
    if not low <= target <= high:
        raise CurveError(f"target must lie within the metric's bounds [{low:g}, {high:g}]; got {target:g}")
    return fit.posterior.compute_for(target)


def reach(compute_D: Array, mean_D: Array | None = None, wide_D: Array | None = None) -> Reach:
    """Return the interval of an amount of compute that may be infinite.

    Args:
        compute_D: The compute of each draw.
        mean_D: Weights for median and probability; None: equal ones.
        wide_D: Weights for the interval; None: those for the median.
    """
    order_D, mean_D = np.argsort(compute_D, kind="stable"), np.ones(len(compute_D)) if mean_D is None else mean_D
    sorted_D, wide_D = compute_D[order_D], mean_D if wide_D is None else wide_D

    def at(weight_D: Array, share: float) -> float:
        """Return a quantile without interpolation, because there is none between a number and infinity."""
        cumulative_D = np.cumsum(weight_D[order_D])
        return float(sorted_D[min(np.searchsorted(cumulative_D, share * cumulative_D[-1]), len(sorted_D) - 1)])

    median, ever = at(mean_D, 0.5), np.average(np.isfinite(compute_D), weights=mean_D)
    low, high = at(wide_D, TAILS[0]), at(wide_D, TAILS[1])
    return Reach(min(low, median), median, max(high, median), float(ever))
