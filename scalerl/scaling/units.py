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


def compute_text(value: float, axis: str) -> str:
    """Return an amount of compute with its unit.

    Args:
        value: Amount in the unit of the axis.
        axis: Name of the axis, as in `Curve`.
    """
    if math.isfinite(value) and value and axis in ("flops", "tokens"):
        words = FLOP_PREFIXES if axis == "flops" else TOKEN_WORDS
        # rounded first, so that 999.9e9 is 1 T and not 1000 G
        value = float(f"{value:.3g}")
        power = min(max(math.floor(math.log10(abs(value)) / 3), 0), len(words) - 1)
        return f"{number_text(value / 1000.0**power)} {words[power]}{'FLOP' if axis == 'flops' else 'tokens'}"
    if axis == "device_hours" and 0 < value < 1 / 6:
        minutes = 60.0 * value
        return (
            f"{number_text(minutes)} device-minutes" if minutes >= 1 else f"{number_text(60 * minutes)} device-seconds"
        )
    if axis == "step" and math.isfinite(value):
        return f"{value:,.0f} steps"
    return f"{number_text(value)} {UNITS.get(axis, axis)}"


def factor_text(factor: float) -> str:
    """Return a multiple of the compute in words: twice the compute, 1.5 times the compute."""
    return "twice the compute" if abs(factor - 2.0) < 1e-9 else f"{number_text(factor)} times the compute"
