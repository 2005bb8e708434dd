import math

import numpy as np
import pytest

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.curves.price import cost_of
from scalerl.reading.curves.units import compute_text, factor_text, money_text, number_text


@pytest.mark.parametrize(
    ("value", "axis", "text"),
    [
        (12.4e12, "flops", "12.4 TFLOP"),
        (9.999e11, "flops", "1 TFLOP"),
        (5.0, "flops", "5 FLOP"),
        (3.2e9, "tokens", "3.2 billion tokens"),
        (850_000, "tokens", "850 thousand tokens"),
        (16_400.0, "device_hours", "16,400 device-hours"),
        (0.1, "device_hours", "6 device-minutes"),
        (0.004, "device_hours", "14.4 device-seconds"),
        (1200, "step", "1,200 steps"),
        (0.0, "flops", "0 FLOPs"),
        (38.0, "compute", "38 compute"),
        (math.inf, "flops", "never FLOPs"),
    ],
)
def test_compute_is_written_as_people_say_it(value, axis, text):
    assert compute_text(value, axis) == text


def test_numbers_and_multiples():
    assert [number_text(v) for v in (0.012345, 12.44, 999.6, 1234.0, 5.4e12)] == ["0.0123", "12.4", "1,000", "1,230",
                                                                                  "5.4e+12"]  # fmt: skip
    assert (factor_text(2.0), factor_text(1.5)) == ("twice the compute", "1.5 times the compute")


def curve(axis="device_hours", **rest):
    return Curve([0, 10, 20, 30], [0.1, 0.2, 0.3, 0.4], axis=axis, **rest)


def test_the_cost_of_a_point_by_hand():
    # 20 device-hours for 0.05 = 5 points: 4 device-hours per point; at 2.50 it is 50, 10 per point
    hours, money = cost_of(curve(), 20.0, 0.05), cost_of(curve(), 20.0, 0.05, 2.5)
    assert (hours.device_hours, hours.per_point) == pytest.approx((20.0, 4.0)) and math.isnan(hours.money)
    assert (money.money, money.per_point) == pytest.approx((50.0, 10.0))
    assert str(hours) == "20 device-hours" and hours.of_point() == "4 device-hours per point"
    assert str(money) == "20 device-hours ($50)" and money.of_point() == "$10 per point"


def test_a_point_is_a_hundredth_of_the_range_and_none_is_bought_by_no_gain():
    wide = Curve([0, 10, 20, 30], [10, 20, 30, 40], bounds=(0, 100), axis="device_hours")
    assert cost_of(wide, 20.0, 5.0).per_point == pytest.approx(4.0)
    assert [math.isnan(cost_of(curve(), 20.0, gain).per_point) for gain in (0.0, -0.1, 0.0005, math.nan)] == [True] * 4


def test_without_device_hours_the_cost_is_in_the_unit_of_the_axis():
    assert str(cost_of(curve("step"), 20.0, 0.05)) == "20 steps"
    assert str(cost_of(curve("flops", hours_per_unit=0.5), 20.0, 0.05)) == "10 device-hours"


@pytest.mark.parametrize(("value", "text"), [(37.5, "$37.50"), (12_500.0, "$12,500")])
def test_money_has_cents_below_a_hundred(value, text):
    assert money_text(value) == text


@pytest.mark.parametrize("price", [0.0, math.nan])
def test_a_price_is_a_positive_number(price):
    with pytest.raises(CurveError, match="above 0; got"):
        cost_of(curve(), 20.0, 0.05, price)
    with pytest.raises(CurveError, match="needs device-hours"):
        cost_of(curve("step"), 20.0, 0.05, 2.5)


def test_hours_of_a_file_follow_its_parts():
    rows = [{"step": 10 * i, "device_hours": 3.0 * i, "pass_rate": 0.1 * i} for i in range(6)]
    of_steps = Curve.from_rows(rows, axis="step")
    assert of_steps.hours_per_unit == pytest.approx(0.3) == of_steps.first(3).hours_per_unit
    assert of_steps.between(20).hours_per_unit == pytest.approx(0.3)
    rows[-1] = {"step": 50, "device_hours": None, "pass_rate": 0.5}
    assert Curve.from_rows(rows, axis="step").hours_per_unit == pytest.approx(0.3)
    assert math.isnan(Curve.from_rows([{"step": i, "pass_rate": 0.1} for i in range(1, 6)]).hours_per_unit)
    assert np.isfinite(Curve.from_rows(rows, axis="device_hours").hours_per_unit)


@pytest.mark.parametrize(
    ("values", "axis", "text"),
    [
        ((6.908e11, 6.585e11, 7.235e11), "flops", "691 GFLOP (658 to 724)"),
        ((120.0, 80.0, math.inf), "step", "120 steps (80 to never)"),
    ],
)
def test_an_interval_has_one_unit(values, axis, text):
    from scalerl.reading.curves.units import range_text

    assert range_text(*values, axis) == text
