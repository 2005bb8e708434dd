"""Amounts of compute as people say them: 12.4 TFLOP, 310 device-hours, 8 device-minutes, 3.2 billion tokens."""

from __future__ import annotations

import math

UNITS = {"device_hours": "device-hours", "flops": "FLOPs", "step": "steps"}
"""Names of compute axes in text, if they differ from the column's name."""

FLOP_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
"""Prefixes of powers of 1,000."""

TOKEN_WORDS = ("", "thousand ", "million ", "billion ", "trillion ", "quadrillion ")
"""Words for powers of 1,000."""


def number_text(value: float) -> str:
    """Return a number with three digits or all digits before the point, such as 0.0123, 12.4 or 16,400."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "never"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 1000 <= abs(rounded) < 1e9 else f"{rounded:g}"


def money_text(value: float) -> str:
    """Return an amount of money: $37.50, $775, $12,500."""
    if 0 < value < 100 and round(value) != round(value, 2):
        return f"${value:.2f}"
    return f"${number_text(value)}"


def scale_of(value: float, axis: str) -> tuple[float, str]:
    """Return the size and the name of the unit in which people give an amount of compute on an axis."""
    unit = UNITS.get(axis, axis)
    if not math.isfinite(value) or value <= 0:
        return 1.0, unit
    if axis in ("flops", "tokens"):
        words = FLOP_PREFIXES if axis == "flops" else TOKEN_WORDS
        # rounded first, so that 999.9e9 is 1 T and not 1000 G
        power = min(max(math.floor(math.log10(float(f"{value:.3g}")) / 3), 0), len(words) - 1)
        return 1000.0**power, f"{words[power]}{'FLOP' if axis == 'flops' else 'tokens'}"
    if axis == "device_hours" and value < 1 / 6:
        return (1 / 3600, "device-seconds") if value < 1 / 60 else (1 / 60, "device-minutes")
    return 1.0, unit


def compute_text(value: float, axis: str) -> str:
    """Return an amount of compute with its unit.

    Args:
        value: Amount in the unit of the axis.
        axis: Name of the axis, as in `Curve`.
    """
    size, unit = scale_of(value, axis)
    number = f"{value:,.0f}" if axis == "step" and math.isfinite(value) else number_text(value / size)
    return f"{number} {unit}"


def range_text(value: float, low: float, high: float, axis: str) -> str:
    """Return an amount of compute with its interval in one unit: 691 GFLOP (659 to 724)."""
    size, unit = scale_of(value if math.isfinite(value) else low, axis)
    number, least, most = (number_text(amount / size) for amount in (value, low, high))
    return f"{number} {unit} ({least} to {most})"


def factor_text(factor: float) -> str:
    """Return a multiple of the compute in words: twice the compute, 1.5 times the compute."""
    return "twice the compute" if abs(factor - 2.0) < 1e-9 else f"{number_text(factor)} times the compute"
