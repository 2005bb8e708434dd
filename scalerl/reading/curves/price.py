"""What more compute gains and costs: in device-hours, and in money if a device-hour has a price.

Axes in names: D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import TAILS, Estimate
from scalerl.reading.curves.fit import Fit
from scalerl.reading.curves.forecast import gain_at
from scalerl.reading.curves.units import compute_text, factor_text, money_text
from scalerl.reading.tables.errors import CurveError

POINT = 0.01
"""A point of the metric, as a share of its range: a percentage point of a pass rate."""


@dataclass(frozen=True)
class Cost:
    """The price of an amount of compute, and of each point that it gains.

    Example: `Cost(compute=310.0, axis="device_hours", device_hours=310.0, money=775.0, per_point=150.0)` prints as
    `310 device-hours ($775)`.
    """

    compute: float
    """Amount of compute, unit of the curve's axis."""

    axis: str
    """Name of this axis."""

    device_hours: float
    """The same in device-hours; NaN if they are not known."""

    money: float
    """The same in the currency of the price; NaN without a price."""

    per_point: float
    """Cost of each point (a hundredth of the metric's range) of the expected gain: money, or device-hours without a
    price. NaN if neither is known, or the gain is below a tenth of a point."""

    @property
    def unnamed(self) -> bool:
        """Whether the compute has no unit that a reader knows."""
        return self.axis == "compute" and not math.isfinite(self.device_hours)

    def __str__(self) -> str:
        has_hours = math.isfinite(self.device_hours)
        amount = compute_text(self.device_hours, "device_hours") if has_hours else compute_text(self.compute, self.axis)
        return f"{amount} ({money_text(self.money)})" if math.isfinite(self.money) else amount

    def of_point(self) -> str:
        """Return the cost of a point as text, "$150 per point"; empty if it is not known."""
        if not math.isfinite(self.per_point):
            return ""
        if math.isfinite(self.money):
            return f"{money_text(self.per_point)} per point"
        return f"{compute_text(self.per_point, 'device_hours')} per point"


@dataclass(frozen=True)
class NextGain:
    """What more compute should gain, and what it costs: the words of comparisons, plans and studies.

    Example: `NextGain(budget=620.0, factor=2.0, gain=Estimate(0.052, 0.01, 0.035, 0.068), cost=Cost(...))` prints as
    `twice the compute (620 device-hours) should gain 0.052 (0.035 to 0.068), for another 310 device-hours ($775), $149
    per point`.
    """

    budget: float
    """Total compute, unit of the curve's axis."""

    factor: float
    """The same as a multiple of the compute so far."""

    gain: Estimate
    """Level at the budget minus level now, in the metric's unit."""

    cost: Cost
    """Price of the compute between now and the budget."""

    def __str__(self) -> str:
        total, point = compute_text(self.budget, self.cost.axis), self.cost.of_point()
        text = f"{factor_text(self.factor)} ({total}) should gain {self.gain:.3f}, for another {self.cost}"
        return f"{text}, {point}" if point else text


def next_gain(runs: Fit | Sequence[Fit], price: float | None = None, factor: float = 2.0) -> NextGain:
    """Return what a multiple of its compute should gain for a run, or on average for one of several runs of a recipe.

    Args:
        runs: Fits of the runs, with one compute axis.
        price: Price of a device-hour; None: the cost is in device-hours.
        factor: Multiple of the compute of each run; above 1.

    Raises:
        CurveError: As for `cost_of`.
    """
    fits = [runs] if isinstance(runs, Fit) else list(runs)
    last = float(np.mean([f.last_compute for f in fits]))
    curve = with_hours_of([f.curve for f in fits])
    gain = gain_at(fits[0], factor * last) if len(fits) == 1 else mean_gain(fits, factor)
    return NextGain(factor * last, factor, gain, cost_of(curve, (factor - 1.0) * last, gain.mean, price))


def mean_gain(fits: Sequence[Fit], factor: float) -> Estimate:
    """Return the mean gain of several runs, each at a multiple of its own compute."""
    rng = np.random.default_rng(0)
    # shuffled, so that the draws of different runs are independent
    wide_D = np.mean([rng.permutation(f.posterior.wide_sample.gain(factor * f.last_compute)) for f in fits], axis=0)
    gains = [gain_at(f, factor * f.last_compute) for f in fits]
    mean, sd = float(np.mean([gain.mean for gain in gains])), math.hypot(*(gain.sd for gain in gains)) / len(gains)
    low, high = np.quantile(wide_D, TAILS)
    return Estimate(mean, sd, min(float(low), mean), max(float(high), mean))


def with_hours_of(curves: Sequence[Curve]) -> Curve:
    """Return the first curve with the mean device-hours per unit of compute of all that know them."""
    rates = [curve.hours_per_unit for curve in curves if math.isfinite(curve.hours_per_unit)]
    return replace(curves[0], hours_per_unit=float(np.mean(rates))) if rates else curves[0]


def checked_price(price: float | None, curve: Curve) -> float | None:
    """Return the price of a device-hour after checking it.

    Raises:
        CurveError: The price is not a positive number, or the curve has no device-hours.
    """
    if price is None:
        return None
    if not (math.isfinite(price) and price > 0):
        raise CurveError(
            f"the price of a device-hour must be a number above 0; got {price:g}. Leave it out to count device-hours"
        )
    if not math.isfinite(curve.hours_per_unit):
        raise CurveError(
            f"a price of {price:g} per device-hour needs device-hours; this curve has only {curve.unit}. Add a column "
            "device_hours, or leave the price out"
        )
    return price


def shared_price(price: float | None, of_runs: Sequence[float | None]) -> float | None:
    """Return the price of an output about several runs: the one that was given, else the one that all runs have."""
    prices = set(of_runs)
    return price if price is not None or len(prices) != 1 else prices.pop()


def cost_of(curve: Curve, compute: float, gain: float = math.nan, price: float | None = None) -> Cost:
    """Return what an amount of compute costs.

    Args:
        curve: The run, which determines the axis and its device-hours.
        compute: Amount of compute, unit of the curve's axis.
        gain: Expected gain, in the metric's unit; NaN leaves out the cost of a point.
        price: Price of a device-hour.

    Raises:
        CurveError: As for `checked_price`.
    """
    price = checked_price(price, curve)
    hours = compute * curve.hours_per_unit
    money = hours * price if price is not None else math.nan
    low, high = curve.bounds
    points = gain / (POINT * (high - low))
    of_point = money if price is not None else hours
    return Cost(compute, curve.axis, hours, money, of_point / points if points >= 0.1 else math.nan)
