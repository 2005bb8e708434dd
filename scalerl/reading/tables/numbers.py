"""Converts text to numbers: percentages, times, dates, `3/100`, numbers as numpy and torch print them."""

from __future__ import annotations

import math
import re
from datetime import datetime

EMPTY = frozenset(("", "null", "none", "n/a", "na", "-", "--", "no log", "nil"))
"""Texts of an empty cell. (A notebook of transformers prints `No Log`.)"""

PERCENT = re.compile(r"([-+]?\d+(?:[.,]\d+)?)\s*%")
NUMBER_WITH_UNIT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(ms|s|sec|secs|seconds|m|min|h)")
SECONDS_PER_UNIT = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)|(\d+):([0-5]\d)")
"""`0:12:01`, `1 day, 2:03:04` and `12:01`."""
SPOKEN = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+(?:\.\d+)?)s")
"""`1d 2h 3m 4s`, as ms-swift prints times."""
OF = re.compile(r"(\d+)\s*/\s*\d+")
"""`12/100`: a step and their number."""
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
"""`1,000`."""
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
WRAPPED_NUMBER = re.compile(
    r"(?:(?:np|numpy|torch|jnp)\.)?(?:float\d*|int\d*|tensor|array|Tensor)\(\s*([^(),]+?)\s*(?:,[^()]*)?\)"
)
"""numpy 2 prints `np.float64(0.5)`, torch `tensor(0.5)`."""
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def number_of(text: str) -> float | None:
    """Return the number of a cell, or None: also of a percentage, a time, a date (seconds since 1970), `3/100`.

    Examples: "0.5" is 0.5, "57.9%" 0.579, "1,000" 1000, "0,5" 0.5, "1m 2s" 62, "0:01:02" 62, "44.7s" 44.7.
    """
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip()
    if not text or not (text[0].isdigit() or text[0] in "+-.," or text[-1] == ")"):
        return None
    if match := PERCENT.fullmatch(text):
        return float(match[1].replace(",", ".")) / 100
    if match := WRAPPED_NUMBER.fullmatch(text):
        return number_of(match[1])
    if GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if DECIMAL_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    return time_of(text)


def time_of(text: str) -> float | None:
    """Return the seconds of a time or date, or the first number of `3/100`; None if a text is none of these."""
    if match := NUMBER_WITH_UNIT.fullmatch(text):
        return float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if match := CLOCK.fullmatch(text):
        days, hours, minutes, seconds, only_minutes, only_seconds = match.groups()
        if only_minutes:
            return float(only_minutes) * 60 + float(only_seconds)
        return float(days or 0) * 86400 + float(hours) * 3600 + float(minutes) * 60 + float(seconds)
    if match := SPOKEN.fullmatch(text):
        parts = [float(part or 0) for part in match.groups()]
        return math.fsum(part * size for part, size in zip(parts, (86400, 3600, 60, 1), strict=True))
    if match := OF.fullmatch(text):
        return float(match[1])
    if DATE.match(text):
        try:
            return datetime.fromisoformat(text.replace(",", ".")).timestamp()
        except (ValueError, OverflowError):
            return None
    return None
