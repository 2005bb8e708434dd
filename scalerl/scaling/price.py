"""What more compute costs: in device-hours, and in money if a device-hour has a price."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalerl.scaling.curve import Curve
from scalerl.scaling.readers import CurveError
from scalerl.scaling.units import compute_text, number_text

POINT = 0.01
"""A point of the metric, as a share of its range: a percentage point of a pass rate."""


@dataclass(frozen=True)
class Cost:
    """The price of an amount of compute, and of each point that it gains.

    Example: `Cost(compute=310.0, axis="device_hours", device_hours=310.0, money=775.0, per_point=150.0)` prints as
    `310 device-hours ($775, $150 per point)`.
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

    def __str__(self) -> str:
        known = math.isfinite(self.device_hours)
        amount = compute_text(self.device_hours, "device_hours") if known else compute_text(self.compute, self.axis)
        money = math.isfinite(self.money)
        notes = [f"${number_text(self.money)}"] if money else []
        if math.isfinite(self.per_point):
            point = f"${number_text(self.per_point)}" if money else compute_text(self.per_point, "device_hours")
            unit = f" {amount.partition(' ')[2]}"
            # "310 device-hours (60 per point)", but "310 device-hours (50 device-seconds per point)"
            notes.append(f"{point.removesuffix(unit)} per point")
        return f"{amount} ({', '.join(notes)})" if notes else amount


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
